"""The launches through a drafter's life, under Triton's interpreter: what the circuit interpreted would have done."""

from __future__ import annotations

import gc
import math
from weakref import ref

import pytest
import torch
from torch import Tensor

import compiler.triton.program as launch_program
import drafts.triton_runner as triton_runner
from circuit import BindingError
from compiler.triton import CudaGraphProgram, LaunchPlan
from compiler.triton.launch import Launch
from compiler.triton.memory import Memory
from drafts.batch import RowBatch
from drafts.levers import ModelLevers
from drafts.proposer import DraftProposer
from drafts.proposer_state import ProposerState
from drafts.triton_runner import TritonRunner
from tests.drafts.drafter_twin import (
    InjectedFault,
    Text,
    make_proposer,
    snapshot,
)
from tests.drafts.tiny_head import VOCAB
from tests.support.fake_cuda import GPU, FakeCuda
from tests.support.launch_twins import Twins, programs

pytestmark = pytest.mark.interpreted

WORDS = -(-VOCAB // 32)


class OnFakeGpu(CudaGraphProgram):
    """Captured whatever device the weights are on."""

    def __init__(self, plan: LaunchPlan, *, device: torch.device) -> None:
        super().__init__(plan, device=GPU)


@pytest.mark.parametrize(
    "sizes",
    [{"index_kpool": 1, "index_topk": 3}, {}, {"index_kpool": 16, "index_topk": 32}],
    ids=lambda sizes: f"kpool {sizes.get('index_kpool', 4)}",
)
def test_life_of_a_drafter(sizes: dict[str, int]) -> None:
    """Prefill, propose, verify, true rows, rewind, catch-up, and lengths that grow in a bucket and beyond it."""
    twins = Twins(21, **sizes)
    twins.propose(21, 2)
    assert twins.both(lambda proposer, state, _: proposer.after_verify(1, state)) == 23

    def true_rows(proposer: DraftProposer, state: ProposerState, text: Text) -> list[int]:
        return proposer.catchup_batch([text.tokens[22:25]], [text.hiddens[21:24]], [21], [state])

    assert twins.both(true_rows) == [3]
    twins.propose(24, 2)  # the same program at another length
    assert programs(twins.runner) == [(0, 16, 4), (0, 64, 4), (2, 1, 4)]
    kept = twins.both(lambda proposer, state, _: proposer.rewind(17, state))
    twins.both(lambda proposer, state, text: text.append(proposer, state, 63))
    assert kept <= 17
    # rows 63 and 64: the second lies in block 4, which takes a wider table
    twins.propose(63, 2)
    assert (2, 1, 8) in programs(twins.runner)
    assert twins.ours.path_counters == {
        name.replace("reference", "triton"): count for name, count in twins.theirs.path_counters.items()
    }


@pytest.mark.parametrize("is_exact", [True, False], ids=["one by one", "side by side"])
def test_batch_of_three_with_masks_and_confidences(is_exact: bool) -> None:
    """In a bucket of four where rows may run beside one another; each sequence is masked on its own, or not."""
    twins = Twins(5, 0, 33, is_exact=is_exact)
    generator = torch.Generator().manual_seed(3)
    mask = torch.randint(-(2**31), 2**31, (2, WORDS), generator=generator).to(torch.int32)
    kept = mask.clone()
    drafts, _ = twins.propose_batch(2 if is_exact else 1, grammar_bitmasks=[mask, None, mask])
    assert torch.equal(mask, kept)
    for row in (0, 2):
        assert all(is_allowed(mask[step], draft) for step, draft in enumerate(drafts[row]))
    if is_exact:
        assert {rows for drafts, rows, _ in programs(twins.runner) if drafts} == {1}
        return
    # masked and free ones are runs of their own
    assert {rows for drafts, rows, _ in programs(twins.runner) if drafts} == {1, 2}
    twins.both(lambda proposer, state, _: proposer.rewind(5, state))
    twins.propose_batch(2)
    assert (2, 4, 4) in programs(twins.runner)


def test_mask_that_ends_early_and_drafts_that_have_none() -> None:
    """Draft 1 may be one of the first 32 tokens only, draft 2 is free."""
    twins = Twins(9)
    short = torch.full((1,), -1, dtype=torch.int32)
    assert twins.propose(9, 2, grammar_bitmask=short)[0] < 32


def is_allowed(words: Tensor, token: int) -> bool:
    return bool(int(words[token // 32]) >> (token % 32) & 1)


@pytest.mark.parametrize(
    "decisions",
    [
        {"index_share": "pools_and_new_rows", "supplied_hidden": "pre_norm"},
        {"index_share": "exact_set"},
        {"recycle": "block_output", "supplied_hidden": "pre_norm", "hidden_source": "pre_norm"},
    ],
    ids=["pools and new rows, target's norm", "exact set", "recycled block output, no norm"],
)
def test_decisions(decisions: dict[str, str]) -> None:
    Twins(18, decisions=decisions).propose(18, 2)


def test_deferred_token_and_its_embedding() -> None:
    twins = Twins(6)
    buffers: list[Tensor] = []

    def step(proposer: DraftProposer, state: ProposerState, text: Text) -> int:
        buffers.append(torch.full((proposer.config.hidden_size,), math.nan))
        token, hidden = int(text.tokens[7]), text.hiddens[6]
        assert proposer.propose(token, hidden, 6, 1, state, draft_embed_target=buffers[-1]) == []
        return proposer.read_deferred_draft_token()

    token = twins.both(step)
    assert torch.equal(buffers[0], buffers[1])
    assert torch.equal(buffers[0], twins.ours.weights["embed_tokens"][token])


def test_weights_copied_in_place_are_seen() -> None:
    """Of every name, derived ones among them: a reload changes what is drafted to what the new weights draft."""
    twins = Twins(12)
    before = twins.propose(12, 1)
    fresh = make_proposer(seed=7)
    for proposer in (twins.ours, twins.theirs):
        for name, weight in proposer.weights.items():
            weight.copy_(fresh.weights[name])
    assert twins.propose(12, 1) != before


def test_source_of_derived_weights_bound_to_other_memory_is_refused() -> None:
    twins = Twins(12)
    weights = twins.ours.weights
    assert isinstance(weights, dict)
    derived = list(twins.runner._derived)
    state, text = twins.states[0][0], twins.texts[0]
    before = snapshot(twins.ours, state)
    name = derived[0].sources[0]
    weights[name] = weights[name].clone()
    with pytest.raises(BindingError) as caught:
        text.append(twins.ours, state, 14)
    assert str(caught.value).startswith(f"weight {name!r}: bound to other memory than {derived[0].name} was made of")
    assert "copy new values into the tensor that was bound, or bind a new runner" in str(caught.value)
    assert snapshot(twins.ours, state) == before


def test_weight_bound_to_other_memory_is_read_there() -> None:
    twins = Twins(12)
    for proposer in (twins.ours, twins.theirs):
        assert isinstance(proposer.weights, dict)
        proposer.weights["eh_proj"] = proposer.weights["eh_proj"].flip(0).contiguous()
    twins.both(lambda proposer, state, text: text.append(proposer, state, 14))


def test_weight_of_another_dtype_or_layout_is_refused_by_name() -> None:
    twins = Twins(12)
    weights, state, text = twins.ours.weights, twins.states[0][0], twins.texts[0]
    assert isinstance(weights, dict)
    kept = weights["eh_proj"]
    for other, reason in ((kept.double(), "got torch.float64"), (kept.T.contiguous().T, "contiguous on cpu")):
        weights["eh_proj"] = other
        with pytest.raises(BindingError, match="'eh_proj'") as caught:
            text.append(twins.ours, state, 13)
        assert reason in str(caught.value)


def test_derived_weights_are_made_once_for_all_programs() -> None:
    twins = Twins(3)
    runner = twins.runner
    twins.both(lambda proposer, state, text: text.append(proposer, state, 25))
    made = [tuple(map(id, derived)) for _, derived in runner._programs.values()]
    assert len(made) == 2
    assert made[0] == made[1]


def test_two_runners_over_one_proposer_take_turns() -> None:
    """Each has memory of its own; what one wrote the other goes on from."""
    twins = Twins(10)
    first, binding = twins.runner, twins.ours.circuit_draft()
    assert binding is not None
    second = TritonRunner(binding)
    twins.propose(10, 1)
    twins.ours.set_circuit_draft(second)
    twins.propose(11, 1)
    twins.ours.set_circuit_draft(first)
    twins.propose(12, 1)
    assert programs(first) == [(0, 16, 4), (1, 1, 4)]
    assert programs(second) == [(1, 1, 4)]


def test_dropped_runner_makes_its_programs_again() -> None:
    """With derived weights of what is bound by then, which refuses nothing."""
    twins = Twins(12)
    twins.runner.drop()
    assert programs(twins.runner) == []
    name = "self_attn.kv_a_proj_with_mqa"
    for proposer in (twins.ours, twins.theirs):
        assert isinstance(proposer.weights, dict)
        proposer.weights[name] = proposer.weights[name].flip(0).contiguous()
    twins.both(lambda proposer, state, text: text.append(proposer, state, 14))


@pytest.mark.parametrize("failing", ["absorb_index", "lm_head"])
def test_exception_in_a_launch_leaves_rows_as_they_were(failing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the launch, or when it has counted up who arrived; the next run is as if nothing had been."""
    twins = Twins(11)
    state, text = twins.states[0][0], twins.texts[0]
    before, run_launch = snapshot(twins.ours, state), launch_program.run_launch

    def fail(launch: Launch, memory: Memory) -> None:
        if launch.name == failing:
            # as a launch leaves them that does not come to its end
            memory.counters.fill_(1)
            raise InjectedFault(launch.name)
        run_launch(launch, memory)

    with monkeypatch.context() as patch:
        patch.setattr(launch_program, "run_launch", fail)
        with pytest.raises(InjectedFault):
            text.propose(twins.ours, state, 11, 1)
    assert snapshot(twins.ours, state) == before
    twins.propose(11, 1)


def test_more_context_rows_than_one_run_takes() -> None:
    """300 rows are runs of 256 and 64 rows, which must meet inside a pool."""
    twins = Twins(2, max_seq_len=320, text_rows=310)
    twins.both(lambda proposer, state, text: text.append(proposer, state, 302))
    assert programs(twins.runner) == [(0, 16, 4), (0, 64, 32), (0, 256, 32)]


def test_more_rows_than_one_chain_takes() -> None:
    """17 sequences side by side are sixteen and one."""
    lengths = [0] * 17
    twins = Twins(*lengths, is_exact=False, levers=ModelLevers(propose_batch_max=17), max_seq_len=17)
    twins.propose_batch(1)
    assert programs(twins.runner) == [(1, 1, 4), (1, 16, 4)]


@pytest.mark.slow
def test_captured_drafts_are_the_interpreted_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a stand-in that records launches: lengths that grow, a reload that is seen, and one that is captured anew."""
    FakeCuda(monkeypatch)
    monkeypatch.setattr(triton_runner, "CudaGraphProgram", OnFakeGpu)
    twins = Twins(0)
    twins.runner._captures = True
    twins.propose(0, 1)
    before = twins.propose(1, 1)
    for proposer in (twins.ours, twins.theirs):
        proposer.weights["self_attn.kv_b_proj"].mul_(-3.0)
        proposer.weights["lm_head"].copy_(proposer.weights["lm_head"].flip(0))
    assert twins.propose(1, 1) != before
    assert twins.runner.counts == {"captured": 1, "replayed": 3}
    for proposer in (twins.ours, twins.theirs):
        assert isinstance(proposer.weights, dict)
        proposer.weights["lm_head"] = proposer.weights["lm_head"].flip(0).contiguous()
    twins.propose(1, 1)
    assert twins.runner.counts == {"captured": 2, "recaptured": 1, "replayed": 4}
    held = [ref(graph.graph) for program, _ in twins.runner._programs.values() for graph in program._graphs.values()]
    twins.runner.drop()
    gc.collect()
    assert [graph() for graph in held] == [None]


def test_no_rows_draft_nothing() -> None:
    twins = Twins()
    rows = empty_rows(twins.ours)
    twins.runner.write_rows(rows, twins.ours.cache)
    drafts = twins.runner.draft(rows, twins.ours.cache, num_drafts=2, has_confidence=True)
    assert drafts.ids.shape == (0, 2)
    assert drafts.confidences is not None
    assert drafts.confidences.shape == (0, 2)


def empty_rows(proposer: DraftProposer) -> RowBatch:
    none = torch.empty(0, dtype=torch.int64)
    hidden = torch.empty(0, proposer.config.hidden_size)
    return RowBatch(none, hidden, none, none, torch.empty(0, 1, dtype=torch.int64))


def test_what_is_no_binding_is_refused_by_name() -> None:
    with pytest.raises(
        BindingError, match="TritonRunner: expected a DraftBinding, got None; circuit_draft returns None"
    ):
        TritonRunner(None)  # type: ignore[arg-type]
