"""The lever draft_head: what each form drafts by every path, and that writes into lm_head are seen."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from circuit import to_text
from compiler import load_device, roofline_of
from drafts.decisions import Decisions
from drafts.levers import ModelLevers
from drafts.plan_drafter import bind_without_weights, plan_drafter
from drafts.proposer import DraftProposer
from drafts.triton_runner import TritonRunner, compile_for_launches, launch_circuit, launch_plan
from tests.drafts.drafter_twin import make_proposer, make_text, swap_in
from tests.drafts.tiny_head import tiny_config

INT8 = ModelLevers(draft_head="int8")
TRIMMED_INT8 = ModelLevers(draft_head="int8", draft_vocab=tuple(range(1, 61, 2)))
FORMS = pytest.mark.parametrize("levers", [INT8, TRIMMED_INT8], ids=["all tokens", "some tokens"])


def drafted(proposer: DraftProposer) -> tuple[list[list[int]], list[list[float]]]:
    """Drafts and confidences of a text at several positions."""
    text, state = make_text(proposer, 40), proposer.alloc_state()
    ids, confidences = [], []
    for position in (5, 18, 31):
        text.append(proposer, state, position)
        made: list[list[float]] = []
        token, hidden = int(text.tokens[position + 1]), text.hiddens[position]
        ids += proposer.propose_batch([token], [hidden], [position], 3, [state], confidences=made)
        confidences += made
        proposer.after_verify(0, state)
    proposer.free_state(state)
    return ids, confidences


@FORMS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
def test_int8_head_drafts_alike_by_the_eager_head_and_the_circuit(levers: ModelLevers, dtype: torch.dtype) -> None:
    proposer = make_proposer(levers=levers, dtype=dtype)
    ids, confidences = drafted(proposer)
    swap_in(proposer)
    circuit_ids, circuit_confidences = drafted(proposer)
    assert ids == circuit_ids
    torch.testing.assert_close(torch.tensor(confidences), torch.tensor(circuit_confidences))


def test_int8_head_has_other_logits_than_the_whole_one() -> None:
    _, rough = drafted(make_proposer(levers=INT8))
    _, whole = drafted(make_proposer())
    assert rough != whole
    torch.testing.assert_close(torch.tensor(rough[0]), torch.tensor(whole[0]), rtol=0.05, atol=0.01)


@FORMS
@pytest.mark.parametrize("path", ["eager", "circuit"])
def test_int8_head_sees_rows_written_into_lm_head(path: str, levers: ModelLevers) -> None:
    proposer = make_proposer(path, levers=levers)
    before = drafted(proposer)
    proposer.weights["lm_head"].mul_(-1.0)
    after = drafted(proposer)
    assert after != before
    proposer.weights["lm_head"].mul_(-1.0)
    assert drafted(proposer) == before


@pytest.mark.interpreted
def test_int8_head_drafts_alike_by_launches() -> None:
    proposer = make_proposer(levers=INT8)
    expected = drafted(proposer)
    binding = proposer.circuit_draft()
    assert binding is not None
    assert "lm_head" not in binding.circuit.weights
    proposer.set_circuit_draft(TritonRunner(binding))
    ids, confidences = drafted(proposer)
    assert ids == expected[0]
    torch.testing.assert_close(torch.tensor(confidences), torch.tensor(expected[1]))


@pytest.mark.interpreted
def test_certified_head_drafts_by_launches_what_the_whole_head_drafts() -> None:
    whole, proposer = make_proposer(), make_proposer(levers=ModelLevers(draft_head="int8_certified"))
    binding, plain = proposer.circuit_draft(), whole.circuit_draft()
    assert binding is not None
    assert plain is not None
    # the same circuit: the launches alone differ, and not those of a confidence, which is over all logits
    assert to_text(binding.circuit) == to_text(plain.circuit)
    launches = []
    for has_confidence in (False, True):
        circuit = launch_circuit(binding, num_drafts=1, has_confidence=has_confidence)
        compiled = compile_for_launches(binding, circuit, num_rows=1, max_blocks=4, num_blocks=9, num_sequences=3)
        launches.append([launch.name for launch in launch_plan(compiled, name="one draft").launches])
    assert launches[0][10:] == ["lm_head_bounds", "lm_head_rescore"]
    assert launches[1][10:] == ["lm_head"]
    proposer.set_circuit_draft(TritonRunner(binding))
    expected = []
    for one in (whole, proposer):
        text, state = make_text(one, 20), one.alloc_state()
        text.prefill(one, state, 12)
        expected.append(text.propose(one, state, 12, 3))
    assert expected[0] == expected[1]


@pytest.mark.parametrize(
    ("levers", "launches", "bytes_a_weight"),
    [
        (ModelLevers(), ["lm_head"], 2),
        (INT8, ["lm_head"], 1),
        (ModelLevers(draft_head="int8_certified"), ["lm_head_bounds", "lm_head_rescore"], 1),
        (TRIMMED_INT8, ["lm_head"], 30 / 61),
    ],
    ids=["bf16", "int8", "int8_certified", "int8 of some tokens"],
)
def test_plan_counts_the_bytes_of_each_form(levers: ModelLevers, launches: list[str], bytes_a_weight: float) -> None:
    config = tiny_config(dtype=torch.bfloat16, hidden_size=2000)
    binding = bind_without_weights(config, Decisions(), draft_head=levers.head)
    device = load_device("h200", measured=Path("none"))
    made = plan_drafter(
        binding,
        device=device,
        roofline=roofline_of(device, is_16_bit=True, bandwidth=None, launch_gap_us=None),
        backend="triton",
        batch=1,
        context=64,
        num_drafts=3,
    )
    head = made.first[10:]
    assert [launch.name for launch in head] == launches
    assert all("lm_head" in launch.kernel for launch in head)
    # beside the rows a scale or an error each, and the norm
    assert head[0].weight_bytes == pytest.approx(61 * 2000 * bytes_a_weight, rel=0.08)
    assert made.launches_per_draft == 10 + len(launches)
