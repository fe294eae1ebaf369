"""A drafter captured on a GPU: against the interpreter on the CPU in float32, against its launches bit for bit."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

import compiler.triton.program as launch_program
from compiler.triton.launch import Launch
from compiler.triton.memory import Memory
from drafts.proposer import DraftProposer
from drafts.proposer_state import ProposerState
from drafts.triton_runner import TritonRunner
from tests.drafts.drafter_twin import Contents, Text, contents, make_proposer, make_text
from tests.support.launch_twins import Twins, programs, swap_in_launches
from tests.support.launches import launch_device

pytestmark = pytest.mark.gpu

# a GPU sums in another order; values are of order 1, over chains of up to four drafts
CLOSE = {"atol": 1e-5, "rtol": 1e-4}
POOLS = [{"index_kpool": 1, "index_topk": 3}, {}, {"index_kpool": 16, "index_topk": 32}]
DTYPES = [torch.float32, torch.bfloat16]

each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=["f32", "bf16"])


@pytest.mark.parametrize("sizes", POOLS, ids=["kpool 1", "kpool 4", "kpool 16"])
@pytest.mark.parametrize(
    "decisions",
    [
        {},
        {"index_share": "pools_and_new_rows", "supplied_hidden": "pre_norm"},
        {"index_share": "exact_set"},
        {"recycle": "block_output"},
    ],
    ids=["defaults", "shared pools, target's norm", "exact set", "recycled block output"],
)
def test_captured_life_is_the_interpreted_one(decisions: dict[str, str], sizes: dict[str, int]) -> None:
    """Prefill, drafts at growing lengths in one graph and beyond its table, a verify, a rewind, a catch-up."""
    twins = Twins(21, decisions=decisions, closeness=CLOSE, **sizes)
    for position in (21, 22, 23, 24):
        twins.propose(position, 3)
    twins.both(lambda proposer, state, _: proposer.after_verify(1, state))
    twins.both(lambda proposer, state, _: proposer.rewind(17, state))
    twins.both(lambda proposer, state, text: text.append(proposer, state, 63))
    twins.propose(63, 3)
    assert {(3, 1, 4), (3, 1, 8)} <= set(programs(twins.runner))
    assert_all_captured(twins.runner)


def test_batch_of_three_in_a_bucket_of_four() -> None:
    twins = Twins(5, 0, 33, is_exact=False, closeness=CLOSE)
    twins.propose_batch(3)
    twins.propose_batch(2)
    assert {rows for drafts, rows, _ in programs(twins.runner) if drafts} == {4}
    assert_all_captured(twins.runner)


def test_sixteen_rows_with_masks() -> None:
    lengths = [*range(0, 32, 2)]
    twins = Twins(*lengths, is_exact=False, closeness=CLOSE)
    generator = torch.Generator().manual_seed(3)
    words = -(-twins.ours.config.vocab_size // 32)
    masks = [torch.randint(-(2**31), 2**31, (2, words), generator=generator).to(torch.int32) for _ in lengths]
    twins.propose_batch(2, grammar_bitmasks=masks)
    assert_all_captured(twins.runner)


class Captured:
    """Two drafters on the GPU of the same weights: one captured, one launch by launch; they give the same bits."""

    def __init__(self, *lengths: int, **options: Any) -> None:
        self.drafters: list[DraftProposer] = []
        self.runners: list[TritonRunner] = []
        self.states: list[list[ProposerState]] = []
        for captures in (True, False):
            proposer = make_proposer(device=launch_device(), num_sequences=len(lengths), **options)
            self.drafters.append(proposer)
            self.runners.append(swap_in_launches(proposer, is_exact=False, captures=captures))
        device = launch_device()
        self.texts: list[Text] = []
        for index in range(len(lengths)):
            text = make_text(make_proposer(**options), 90, seed=20 + index)
            self.texts.append(Text(text.tokens.to(device), text.hiddens.to(device)))
        for proposer in self.drafters:
            self.states.append([proposer.alloc_state() for _ in lengths])
            for text, state, length in zip(self.texts, self.states[-1], lengths, strict=True):
                text.prefill(proposer, state, length)

    def propose(self, position: int, num_drafts: int) -> list[int]:
        """Draft for the first sequence by both."""
        found = [
            self.texts[0].propose(proposer, states[0], position, num_drafts)
            for proposer, states in zip(self.drafters, self.states, strict=True)
        ]
        assert found[0] == found[1]
        self.check()
        return found[0]

    def check(self) -> None:
        for ours, theirs in zip(*self.states, strict=True):
            for part, other in zip(
                held(contents(self.drafters[0], ours)), held(contents(self.drafters[1], theirs)), strict=True
            ):
                assert torch.equal(part.view(torch.uint8), other.view(torch.uint8))


def held(found: Contents) -> tuple[torch.Tensor, ...]:
    return tuple(part.contiguous() for part in (found.latent, found.pool_keys, found.raw))


@each_dtype
def test_graph_is_its_launches_bit_for_bit_as_lengths_grow(dtype: torch.dtype) -> None:
    twins = Captured(5, dtype=dtype)
    for position in range(5, 60, 3):
        twins.texts[0].append(twins.drafters[0], twins.states[0][0], position)
        twins.texts[0].append(twins.drafters[1], twins.states[1][0], position)
        twins.propose(position, 3)
    assert [key for key in programs(twins.runners[0]) if key[0]] == [(3, 1, 4)]
    assert_all_captured(twins.runners[0])


@each_dtype
def test_weights_copied_are_seen_and_weights_bound_anew_are_captured_anew(dtype: torch.dtype) -> None:
    twins = Captured(12, dtype=dtype)
    before = twins.propose(12, 3)
    fresh = make_proposer(seed=7, dtype=dtype)
    for proposer in twins.drafters:
        for name, weight in proposer.weights.items():
            weight.copy_(fresh.weights[name])
    assert twins.propose(12, 3) != before
    runner = twins.runners[0]
    captured = runner.counts["captured"]
    for proposer in twins.drafters:
        assert isinstance(proposer.weights, dict)
        proposer.weights["lm_head"] = proposer.weights["lm_head"].flip(0).contiguous()
    twins.propose(12, 3)
    assert runner.counts["recaptured"] == 1
    assert runner.counts["captured"] == captured + 1
    assert_all_captured(runner)


def test_buckets_captured_out_of_order_leave_one_another_alone() -> None:
    """Wide tables before narrow ones, many rows before one, many drafts before few; then all of them again."""
    twins = Captured(70, 9, 3)
    for _ in range(2):
        for position, num_drafts in ((70, 3), (8, 2), (66, 1), (8, 3)):
            for proposer, states in zip(twins.drafters, twins.states, strict=True):
                proposer.rewind(position - position % 4, states[0])
                twins.texts[0].append(proposer, states[0], position)
            twins.propose(position, num_drafts)
        ids = []
        for proposer, states in zip(twins.drafters, twins.states, strict=True):
            ends = [proposer.drafter_rows(state) for state in states]
            tokens = [int(text.tokens[end + 1]) for text, end in zip(twins.texts, ends, strict=True)]
            hiddens = torch.stack([text.hiddens[end] for text, end in zip(twins.texts, ends, strict=True)])
            ids.append(proposer.propose_batch(tokens, hiddens, ends, 2, states))
        assert ids[0] == ids[1]
        twins.check()
    assert_all_captured(twins.runners[0])


def test_two_runners_over_one_proposer_take_turns() -> None:
    twins = Twins(10, closeness=CLOSE)
    first, binding = twins.runner, twins.ours.circuit_draft()
    assert binding is not None
    second = TritonRunner(binding)
    for position in range(10, 18):
        twins.ours.set_circuit_draft(second if position % 2 else first)
        twins.propose(position, 2)
    assert_all_captured(first)
    assert_all_captured(second)


def test_replays_take_no_memory() -> None:
    twins = Captured(12)
    twins.propose(12, 3)
    twins.propose(13, 3)
    before = torch.cuda.memory_allocated()
    for position in range(14, 34):
        twins.propose(position, 3)
    assert torch.cuda.memory_allocated() == before


def test_failing_capture_is_said_once_and_its_launches_run(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A launch that waits for the device, which a capture refuses."""
    twins = Twins(12, closeness=CLOSE)
    run_launch = launch_program.run_launch

    def wait(launch: Launch, memory: Memory) -> None:
        run_launch(launch, memory)
        if launch.name == "o_proj":
            torch.cuda.current_stream().synchronize()

    monkeypatch.setattr(launch_program, "run_launch", wait)
    with caplog.at_level(logging.WARNING, logger="circuit"):
        twins.propose(12, 2)
        twins.propose(13, 2)
    assert twins.runner.counts["uncaptured"] == 2
    assert len(caplog.records) == 1
    monkeypatch.undo()
    # the device still works, and other programs are still captured
    twins.propose(14, 1)
    assert twins.runner.counts["uncaptured"] == 2


def assert_all_captured(runner: TritonRunner) -> None:
    counts = runner.counts
    assert counts["captured"] >= 1
    assert counts["replayed"] >= 1
    assert counts["uncaptured"] == 0
