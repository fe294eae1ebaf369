"""Where the life cycle's machine works: a drafter of a random kind, its twin, the model, and what must always hold."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar, TypeVar

import pytest
import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant
from torch import Tensor

from circuit import StateError
from drafts.eager_glm5_next import EagerGlm5NextHead
from drafts.levers import ModelLevers
from drafts.proposer import DraftProposer
from drafts.runner import DraftRunner
from tests.drafts.drafter_twin import (
    FailingOps,
    InjectedFault,
    assert_same_contents,
    contents,
    make_proposer,
    poison_dead,
)
from tests.drafts.lifecycle_model import Carried, Live, Twin

MAX_ROWS = 44
MAX_DRAFTS = 3
MAX_LIVE = 3  # of 4 sequences, so that one carried cache never starves the pool
CLOSE = {"atol": 1e-5, "rtol": 1e-4}  # drafted hiddens have gone through several products before they are compared

Result = TypeVar("Result")


@cache
def _prototype(kpool: int, index_share: str) -> tuple[DraftProposer, DraftRunner, EagerGlm5NextHead]:
    """Weights, circuit and eager head of a kind; they keep nothing of a run."""
    sizes: dict[str, Any] = {"hidden_size": 12, "index_kpool": kpool, "index_topk": 2 * kpool, "n_routed_experts": 4}
    proposer = make_proposer(max_num_drafts=MAX_DRAFTS, decisions={"index_share": index_share}, **sizes)
    binding = proposer.circuit_draft()
    assert binding is not None
    head = EagerGlm5NextHead(proposer.config, proposer.weights, proposer.decisions)
    return proposer, DraftRunner(binding), head


@cache
def _hiddens(width: int) -> Tensor:
    return torch.randn(2048, width, generator=torch.Generator().manual_seed(3))


class LifecycleDesk(RuleBasedStateMachine):
    """The drafter, its twin and the model, `self.live` and `self.carried`; subclasses add the calls as rules."""

    num_calls: ClassVar[int] = 0
    num_faults: ClassVar[int] = 0

    @initialize(
        kpool=st.sampled_from([4, 4, 3, 1]),
        index_share=st.sampled_from(["off", "off", "pools_and_new_rows", "exact_set"]),
        is_exact=st.booleans(),
        starts_on_circuit=st.booleans(),
        lengths=st.lists(st.sampled_from([0, 2, 9, 16, 21, 30]), min_size=1, max_size=MAX_LIVE),
    )
    def start(self, kpool: int, index_share: str, is_exact: bool, starts_on_circuit: bool, lengths: list[int]) -> None:
        prototype, self.runner, head = _prototype(kpool, index_share)
        self.kpool, self.is_exact = kpool, is_exact
        self.proposer, never_drafts = (
            DraftProposer(
                prototype.config,
                prototype.weights,
                prototype.decisions,
                max_seq_len=MAX_ROWS,
                max_num_drafts=MAX_DRAFTS,
                num_sequences=count,
                levers=ModelLevers(mtp_kv_exact=is_exact),
            )
            for count in (MAX_LIVE + 1, 1)
        )
        self.twin = Twin(never_drafts, head)
        self.proposer.cache.poison_freed = True
        self.depth = self.proposer.cache.tail_depth
        self.live: list[Live] = []
        self.carried: list[Carried] = []
        self.num_pairs = 0
        self.proposer.set_circuit_draft(self.runner if starts_on_circuit else None)
        for index, length in enumerate(lengths):
            self.alloc(budget=None)
            self.catchup(index=index, count=length, shift=0, fault=None)

    def pick(self, index: int) -> Live:
        return self.live[index % len(self.live)]

    def new_pairs(self, count: int) -> tuple[list[int], Tensor]:
        """Tokens and hiddens that no row had before, so that no two pools tie."""
        first, self.num_pairs = self.num_pairs, self.num_pairs + count
        table = _hiddens(self.proposer.config.hidden_size)
        index = torch.arange(first, first + count) % len(table)
        return [(7 * number + number // 5) % 61 for number in range(first, first + count)], table[index]

    def call(self, fault: int | None, function: Callable[[], Result]) -> Result | None:
        """Call the drafter, with an exception in place of operation `fault`; None when that was raised."""
        LifecycleDesk.num_calls += 1
        if fault is None:
            return function()
        try:
            with FailingOps(fault):
                return function()
        except InjectedFault:
            LifecycleDesk.num_faults += 1
            return None

    def refuse(self, match: str, function: Callable[[], object]) -> None:
        """Call the drafter where it has to refuse."""
        LifecycleDesk.num_calls += 1
        with pytest.raises(StateError, match=match):
            function()

    def check(self, *touched: Live) -> None:
        """Compare with a fresh prefill of the pairs; then make everything NaN that must not matter."""
        for live in touched:
            rows = len(live.rows)
            assert self.proposer.drafter_rows(live.state) == rows
            assert self.proposer.last_pair_key(live.state) == (rows - 1 if rows else None)
            assert live.state.sequence.raw_from == live.rows.raw_from
            assert live.state.num_drafted == live.num_drafted
            twin_state = self.twin.prefilled(live.rows, rows)
            expected = contents(self.twin.proposer, twin_state)
            assert_same_contents(contents(self.proposer, live.state), expected, **CLOSE)
            self.twin.proposer.free_state(twin_state)
        poison_dead(self.proposer, *(live.state for live in self.live))

    @invariant()
    def every_block_has_one_owner(self) -> None:
        if not hasattr(self, "live"):
            return
        memory = self.proposer.cache
        blocks = [block for live in self.live for block in live.state.sequence.blocks]
        blocks += [block for carried in self.carried for block in carried.kv.carried.rows.blocks]
        assert len(set(blocks)) == len(blocks)
        assert 0 not in blocks
        assert len(blocks) + memory.num_free_blocks == memory.num_blocks - 1
        assert memory.num_free_sequences == MAX_LIVE + 1 - len(self.live)
