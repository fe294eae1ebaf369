"""A drafter over launches beside one whose circuit is interpreted: every step by both, and the same comes of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from drafts.proposer import DraftProposer
from drafts.proposer_state import ProposerState
from drafts.runner import DraftRunner
from drafts.triton_runner import TritonRunner
from tests.drafts.drafter_twin import (
    Contents,
    Text,
    assert_same_contents,
    contents,
    make_proposer,
    make_text,
    poison_dead,
)
from tests.support.launches import launch_device


class Twins:
    """Two drafters of the same weights with sequences of mixed lengths; launches run where kernels run, the other here.

    Every step is done by both, and must give the same ids and the same live cache, beside NaN in all that is dead.
    """

    def __init__(
        self,
        *lengths: int,
        is_exact: bool = True,
        captures: bool = True,
        text_rows: int = 90,
        closeness: dict[str, float] | None = None,
        **options: Any,
    ) -> None:
        sequences = {"num_sequences": max(len(lengths), 1)} | options
        self.ours, self.theirs = make_proposer(device=launch_device(), **sequences), make_proposer(**sequences)
        self.closeness = closeness or {}
        self.runner = swap_in_launches(self.ours, is_exact=is_exact, captures=captures)
        binding = self.theirs.circuit_draft()
        assert binding is not None
        self.theirs.set_circuit_draft(DraftRunner(binding))
        self.texts: list[Text] = [make_text(self.theirs, text_rows, seed=20 + index) for index in range(len(lengths))]
        self.states: list[tuple[ProposerState, ProposerState]] = [
            (self.ours.alloc_state(), self.theirs.alloc_state()) for _ in lengths
        ]
        for index, length in enumerate(lengths):
            self.both(lambda proposer, state, text, rows=length: text.prefill(proposer, state, rows), index)

    def text_of(self, proposer: DraftProposer, index: int = 0) -> Text:
        """A sequence's text on a drafter's device."""
        device = proposer.cache.latent.device
        return Text(self.texts[index].tokens.to(device), self.texts[index].hiddens.to(device))

    def both(self, step: Callable[[DraftProposer, ProposerState, Text], Any], index: int = 0) -> Any:
        """Do a step to one sequence of both; return what it gave."""
        ours, theirs = self.states[index]
        poison_dead(self.ours, *(state for state, _ in self.states))
        got = step(self.ours, ours, self.text_of(self.ours, index))
        assert got == step(self.theirs, theirs, self.texts[index])
        self.check()
        return got

    def propose(self, position: int, num_drafts: int, index: int = 0, **options: Any) -> list[int]:
        """Draft after token position + 1 of a sequence."""

        def step(proposer: DraftProposer, state: ProposerState, text: Text) -> list[int]:
            token, hidden = int(text.tokens[position + 1]), text.hiddens[position]
            return proposer.propose(token, hidden, position, num_drafts, state, **options)

        drafts = self.both(step, index)
        assert isinstance(drafts, list)
        return drafts

    def propose_batch(self, num_drafts: int, **options: Any) -> tuple[list[list[int]], list[list[float]]]:
        """Draft for all sequences at their ends, with confidences."""
        poison_dead(self.ours, *(state for state, _ in self.states))
        found = []
        for proposer, which in ((self.ours, 0), (self.theirs, 1)):
            states = [pair[which] for pair in self.states]
            ends = [proposer.drafter_rows(state) for state in states]
            confidences: list[list[float]] = []
            texts = [self.text_of(proposer, index) for index in range(len(self.texts))]
            tokens = [int(text.tokens[end + 1]) for text, end in zip(texts, ends, strict=True)]
            hiddens = torch.stack([text.hiddens[end] for text, end in zip(texts, ends, strict=True)])
            ids = proposer.propose_batch(tokens, hiddens, ends, num_drafts, states, confidences=confidences, **options)
            found.append((ids, confidences))
        (ids, ours), (expected, theirs) = found
        assert ids == expected
        assert [len(row) for row in ours] == [len(row) for row in ids]
        for row, expected_row in zip(ours, theirs, strict=True):
            assert row == pytest.approx(expected_row, rel=1e-5)
        self.check()
        return ids, ours

    def check(self) -> None:
        """Hold that the live caches of all sequences are the same."""
        for ours, theirs in self.states:
            assert self.ours.drafter_rows(ours) == self.theirs.drafter_rows(theirs)
            held = contents(self.ours, ours)
            here = Contents(held.latent.cpu(), held.pool_keys.cpu(), held.raw.cpu())
            assert_same_contents(here, contents(self.theirs, theirs), **self.closeness)


def swap_in_launches(proposer: DraftProposer, *, is_exact: bool = True, captures: bool = True) -> TritonRunner:
    """Let a proposer draft by launches."""
    binding = proposer.circuit_draft()
    assert binding is not None
    runner = TritonRunner(binding, is_exact=is_exact, captures=captures)
    proposer.set_circuit_draft(runner)
    return runner


def programs(runner: TritonRunner) -> list[tuple[int, int, int]]:
    """Drafts, rows and table blocks of every program that was made."""
    return sorted((key.num_drafts, key.num_rows, key.max_blocks) for key in runner._programs)
