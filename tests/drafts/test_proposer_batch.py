"""propose_batch: each sequence gets what propose alone would give it, and one sequence is no matter to another."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from drafts.eager_glm5_next import EagerGlm5NextHead, EagerPath
from drafts.levers import ModelLevers
from drafts.proposer import DraftProposer
from drafts.proposer_state import ProposerState
from tests.drafts.drafter_twin import (
    CLOSE,
    Text,
    assert_same_contents,
    both_paths,
    contents,
    make_proposer,
    make_text,
    snapshot,
    swap_in,
)

LENGTHS = (0, 1, 15, 16, 17, 33)


class Batch:
    """Sequences of mixed lengths, each with a text of its own, at their ends."""

    def __init__(self, proposer: DraftProposer, lengths: tuple[int, ...] = LENGTHS) -> None:
        self.proposer, self.lengths = proposer, lengths
        self.texts: list[Text] = [make_text(proposer, 60, seed=10 + index) for index in range(len(lengths))]
        self.states: list[ProposerState] = [proposer.alloc_state() for _ in lengths]
        for text, state, length in zip(self.texts, self.states, lengths, strict=True):
            text.prefill(proposer, state, length)

    def propose(self, order: list[int] | None = None, num_drafts: int = 3, **options: Any) -> list[list[int]]:
        order = list(range(len(self.lengths))) if order is None else order
        return self.proposer.propose_batch(
            [int(self.texts[index].tokens[self.lengths[index] + 1]) for index in order],
            torch.stack([self.texts[index].hiddens[self.lengths[index]] for index in order]),
            [self.lengths[index] for index in order],
            num_drafts,
            [self.states[index] for index in order],
            **options,
        )

    def propose_alone(self, index: int, num_drafts: int = 3) -> list[int]:
        return self.texts[index].propose(self.proposer, self.states[index], self.lengths[index], num_drafts)


def make_batch(path: str, lengths: tuple[int, ...] = LENGTHS, **options: Any) -> Batch:
    return Batch(make_proposer(path, num_sequences=len(lengths), **options), lengths)


@both_paths
@pytest.mark.parametrize("kpool", [1, 3, 4])
def test_batch_of_mixed_lengths_is_propose_one_by_one_bit_for_bit(path: str, kpool: int) -> None:
    sizes = {"index_kpool": kpool, "index_topk": 2 * kpool}
    batch, alone = make_batch(path, **sizes), make_batch(path, **sizes)
    confidences: list[list[float]] = []
    drafts = batch.propose(confidences=confidences)
    assert drafts == [alone.propose_alone(index) for index in range(len(LENGTHS))]
    assert snapshot(batch.proposer, *batch.states) == snapshot(alone.proposer, *alone.states)
    for index in range(len(LENGTHS)):
        single: list[list[float]] = []
        assert alone.propose([index], confidences=single) == [drafts[index]]
        assert single == [confidences[index]]


@both_paths
def test_order_of_a_batch_changes_nothing(path: str) -> None:
    batch = make_batch(path)
    confidences: list[list[float]] = []
    drafts = batch.propose(confidences=confidences)
    for order in ([5, 4, 3, 2, 1, 0], [2, 0, 5, 1, 4, 3]):
        other: list[list[float]] = []
        assert batch.propose(order, confidences=other) == [drafts[index] for index in order]
        assert other == [confidences[index] for index in order]


@both_paths
def test_confidence_is_the_probability_of_the_draft_over_the_whole_vocabulary(path: str) -> None:
    batch = make_batch(path)
    proposer = batch.proposer
    confidences: list[list[float]] = [[9.0]]
    drafts = batch.propose(confidences=confidences)
    assert [len(row) for row in confidences] == [3] * len(LENGTHS)
    # an oracle in float64 over the eager head's logits, step by step
    from_logits = recorded_logits(proposer, batch)
    for row, made, logits in zip(confidences, drafts, from_logits, strict=True):
        for value, draft, step in zip(row, made, logits, strict=True):
            expected = float(torch.softmax(step.double(), dim=-1)[draft])
            assert value == pytest.approx(expected, abs=1e-6)
            assert draft == int(step.argmax())


def recorded_logits(proposer: DraftProposer, batch: Batch) -> list[list[Tensor]]:
    """Logits [vocab] of each draft of each sequence, by the eager head."""
    recorder = EagerPath(EagerGlm5NextHead(proposer.config, proposer.weights, proposer.decisions), record_edges=True)
    proposer.set_circuit_draft(recorder)
    rows = []
    for index in range(len(batch.lengths)):
        batch.propose_alone(index)
        rows.append([step.logits[0] for step in recorder.last_steps])
    return rows


def without(token: int) -> Tensor:
    """A bitmask that allows every token but one."""
    allowed = torch.full((2,), -1, dtype=torch.int64)
    allowed[token // 32] ^= 1 << (token % 32)
    return allowed.int()


@both_paths
def test_confidence_ignores_the_grammar(path: str) -> None:
    batch = make_batch(path, (9,))
    free: list[list[float]] = []
    drafts = batch.propose(num_drafts=1, confidences=free)
    mask = without(drafts[0][0])
    masked: list[list[float]] = []
    other = batch.propose(num_drafts=1, confidences=masked, grammar_bitmasks=[mask])
    assert other != drafts
    assert masked[0][0] < free[0][0]
    assert masked[0][0] + free[0][0] < 1 + 1e-6


@both_paths
def test_one_sequence_of_nan_stays_alone(path: str) -> None:
    batch, clean = make_batch(path), make_batch(path)
    expected = clean.propose()
    poisoned = batch.texts[2].hiddens
    poisoned[batch.lengths[2]] = float("nan")
    drafts = batch.propose()
    others = [index for index in range(len(LENGTHS)) if index != 2]
    assert [drafts[index] for index in others] == [expected[index] for index in others]
    for index in others:
        assert_same_contents(
            contents(batch.proposer, batch.states[index]), contents(clean.proposer, clean.states[index]), atol=0, rtol=0
        )


@both_paths
def test_sequence_near_its_limit_gets_what_fits_beside_full_ones(path: str) -> None:
    batch = make_batch(path, (10, 30, 32, 33), max_seq_len=33)
    confidences: list[list[float]] = []
    drafts = batch.propose(confidences=confidences)
    assert [len(row) for row in drafts] == [3, 3, 1, 0]
    assert [len(row) for row in confidences] == [3, 3, 1, 0]
    alone = make_batch(path, (10, 30, 32, 33), max_seq_len=33)
    assert drafts == [alone.propose_alone(index) for index in range(4)]


@both_paths
def test_drafters_that_are_ahead_are_rewound_each_to_its_position(path: str) -> None:
    batch = make_batch(path)
    drafts = batch.propose(num_drafts=3)
    assert batch.propose(num_drafts=3) == drafts
    assert [batch.proposer.drafter_rows(state) for state in batch.states] == [length + 3 for length in LENGTHS]


@both_paths
def test_empty_batch_gives_an_empty_list(path: str) -> None:
    proposer = make_proposer(path)
    confidences = [[1.0]]
    assert proposer.propose_batch([], torch.empty(0, 20), [], 3, [], confidences=confidences) == []
    assert proposer.propose_batch([], [], [], 3, []) == []
    assert confidences == []


@both_paths
@pytest.mark.parametrize("most", [1, 2])
def test_batch_beyond_its_limit_is_refused_and_one_at_it_runs(path: str, most: int) -> None:
    batch = make_batch(path, (5, 6, 7), levers=ModelLevers(propose_batch_max=most))
    assert batch.proposer.propose_batch_max == most
    before = snapshot(batch.proposer, *batch.states)
    with pytest.raises(ValueError, match=f"at most {most} sequences, got {most + 1}; split the batch"):
        batch.propose(list(range(most + 1)))
    assert snapshot(batch.proposer, *batch.states) == before
    assert len(batch.propose(list(range(most)))) == most


@both_paths
def test_bad_row_in_a_batch_is_refused_before_any_runs(path: str) -> None:
    batch = make_batch(path)
    before = snapshot(batch.proposer, *batch.states)
    hiddens = [text.hiddens[0] for text in batch.texts]
    with pytest.raises(ValueError, match="got 61"):
        batch.proposer.propose_batch([1, 2, 3, 4, 5, 61], hiddens, list(LENGTHS), 2, batch.states)
    with pytest.raises(ValueError, match=r"got torch\.float64"):
        batch.proposer.propose_batch([1] * 6, [*hiddens[:5], hiddens[5].double()], list(LENGTHS), 2, batch.states)
    assert snapshot(batch.proposer, *batch.states) == before


class _Invariant:
    """The eager path under the claim that rows do not influence one another, which holds within rounding."""

    name = "invariant"
    is_batch_invariant = True
    binding = None

    def __init__(self, inner: Any) -> None:
        self.inner, self.batches = inner, []

    def write_rows(self, *args: Any) -> None:
        self.inner.write_rows(*args)

    def draft(self, rows: Any, cache: Any, **options: Any) -> Any:
        self.batches.append((rows.num_rows, options["num_drafts"]))
        return self.inner.draft(rows, cache, **options)


def test_path_that_is_batch_invariant_runs_alike_rows_beside_one_another() -> None:
    batch, alone = make_batch("eager", (10, 30, 32, 33, 4), max_seq_len=33), make_batch("eager", (10, 30, 32, 33, 4))
    path = _Invariant(batch.proposer.path)
    batch.proposer.set_circuit_draft(path)
    masks = [None, None, None, None, torch.full((2, 2), -1, dtype=torch.int32)]
    confidences: list[list[float]] = []
    drafts = batch.propose(grammar_bitmasks=masks, confidences=confidences)
    # two full rows, one that fits a single draft, none of the full state, and the one with a mask
    assert path.batches == [(2, 3), (1, 1), (1, 3)]
    for index, num_drafts in enumerate((3, 3, 1, 0, 3)):
        expected: list[list[float]] = []
        single = alone.propose([index], num_drafts, confidences=expected)
        assert drafts[index] == single[0][:num_drafts]
        assert confidences[index] == pytest.approx(expected[0][:num_drafts], abs=1e-6)


def test_batches_of_both_paths_draft_alike() -> None:
    batch = make_batch("eager")
    eager: list[list[float]] = []
    drafts = batch.propose(confidences=eager)
    swap_in(batch.proposer)
    circuit: list[list[float]] = []
    assert batch.propose(confidences=circuit) == drafts
    for one, two in zip(eager, circuit, strict=True):
        torch.testing.assert_close(torch.tensor(one), torch.tensor(two), **CLOSE)
