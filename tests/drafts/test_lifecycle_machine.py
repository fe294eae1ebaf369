"""A drafter under any sequence of calls, against a twin that never drafts.

The machine drives several sequences at once over both paths and keeps, for every row, the pair that the row must hold:
a committed token with the target's hidden, or a draft with the hidden that drafted it. After each call the sequences it
touched are compared with a fresh prefill of their pairs, and every chain with one that the eager head drafts on such a
prefill. All that must not matter is NaN: freed memory, rows and pool keys beyond each end, lost raw rows, the null
places. `--lifecycle-steps N` runs N calls in place of 300 examples.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar, TypeVar

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
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
from tests.drafts.lifecycle_model import Carried, Chain, Live, Rows, Twin

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


sequences = st.integers(0, MAX_LIVE - 1)
counts = st.integers(0, 9)
backs = st.sampled_from([0, 0, 0, 1, 1, 2, 3, 4, 7, 12, 40])
num_drafts = st.integers(0, MAX_DRAFTS)
# most calls come through; of the others a failing operation early, in the middle, among the writes
faults = st.one_of(st.none(), st.none(), st.none(), st.integers(0, 400))
has_live = precondition(lambda machine: bool(machine.live))
has_carried = precondition(lambda machine: bool(machine.carried))


class Lifecycle(RuleBasedStateMachine):
    """Rules are the calls of the contract; `self.live` and `self.carried` are the model."""

    num_calls: ClassVar[int] = 0
    num_faults: ClassVar[int] = 0

    @initialize(
        kpool=st.sampled_from([4, 4, 3, 1]),
        index_share=st.sampled_from(["off", "off", "pools_and_new_rows", "exact_set"]),
        is_exact=st.booleans(),
        starts_on_circuit=st.booleans(),
    )
    def start(self, kpool: int, index_share: str, is_exact: bool, starts_on_circuit: bool) -> None:
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
        self.alloc(budget=None)

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
        Lifecycle.num_calls += 1
        if fault is None:
            return function()
        try:
            with FailingOps(fault):
                return function()
        except InjectedFault:
            Lifecycle.num_faults += 1
            return None

    def refuse(self, match: str, function: Callable[[], object]) -> None:
        """Call the drafter where it has to refuse."""
        Lifecycle.num_calls += 1
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

    @rule(budget=st.sampled_from([None, None, 5, 17, 30, 1000]))
    @precondition(lambda machine: len(machine.live) < MAX_LIVE)
    def alloc(self, budget: int | None) -> None:
        state = self.call(None, lambda: self.proposer.alloc_state_for(budget))
        assert state is not None
        self.live.append(Live(state, min(budget or MAX_ROWS, MAX_ROWS)))
        self.check(self.live[-1])

    @rule(index=sequences)
    @precondition(lambda machine: len(machine.live) > 1)
    def free(self, index: int) -> None:
        live = self.live.pop(index % len(self.live))
        self.call(None, lambda: self.proposer.free_state(live.state))
        self.call(None, lambda: self.proposer.free_state(live.state))
        with pytest.raises(StateError, match="freed"):
            self.proposer.drafter_rows(live.state)
        self.check(*self.live)

    @rule(index=sequences, count=st.sampled_from([1, 2, 3, 5, 8, 13, 21]), fault=faults)
    @has_live
    def prefill(self, index: int, count: int, fault: int | None) -> None:
        live = self.pick(index)
        tokens, hiddens = self.new_pairs(count + 1)

        def run() -> int:
            return self.proposer.prefill_drafter(tokens, hiddens, live.state)

        if len(live.rows) + count > live.max_rows:
            self.refuse("larger budget", run)
        elif (written := self.call(fault, run)) is not None:
            assert written == count
            live.rows.append(tokens[1:], list(hiddens[:-1]), self.depth)
            live.num_drafted = 0
        self.check(live)

    @rule(index=sequences, count=counts, shift=st.sampled_from([0, 0, 0, -1, 1]), fault=faults)
    @has_live
    def catchup(self, index: int, count: int, shift: int, fault: int | None) -> None:
        live = self.pick(index)
        tokens, hiddens = self.new_pairs(count)
        base = max(0, len(live.rows) + shift)
        appended = count if base == len(live.rows) else 0

        def run() -> int:
            return self.proposer.catchup_drafter(tokens, hiddens, base, base, live.state)

        if len(live.rows) + appended > live.max_rows:
            self.refuse("larger budget", run)
        elif (written := self.call(fault, run)) is not None:
            assert written == appended
            if appended:
                live.rows.append(tokens, list(hiddens), self.depth)
                live.num_drafted = 0
        self.check(live)

    def chain(self, live: Live, back: int, count: int, *, allowed: int | None = None, masks: int = 1) -> Chain:
        """A propose at `back` rows before the end; -1 is beyond it. `allowed` seeds a grammar for the first drafts."""
        [token], hiddens = self.new_pairs(1)
        bitmask = None
        if allowed is not None:
            words = torch.randint(-(2**31), 2**31, (masks, 2), generator=torch.Generator().manual_seed(allowed))
            bitmask = (words.int() | 1) if allowed % 4 else words.int() * 0
        return Chain(live, token, hiddens[0], max(0, len(live.rows) - back), count, bitmask)

    def accept(self, chain: Chain, ids: list[int]) -> None:
        """Hold a chain's ids to the eager head on a fresh prefill, and let the model have its rows."""
        live, num_expected = chain.live, chain.num_fitting
        if chain.bitmask is not None and not bool(chain.bitmask.any()):
            num_expected = 0
        assert len(ids) == num_expected
        if not ids:
            return
        kept = live.rows.rewound_to(chain.position, self.kpool)
        assert kept == chain.position
        live.rewind(kept)
        pairs = self.twin.expected_pairs(chain, ids)
        live.rows.append([token for token, _ in pairs], [hidden for _, hidden in pairs], self.depth)
        live.drafted_from, live.num_drafted = chain.position, len(ids)

    @rule(
        index=sequences,
        back=st.one_of(backs, st.just(-1)),
        count=num_drafts,
        is_deferred=st.booleans(),
        allowed=st.one_of(st.none(), st.none(), st.integers(0, 30)),
        masks=st.integers(1, 2),
        fault=faults,
    )
    @has_live
    def propose(
        self, index: int, back: int, count: int, is_deferred: bool, allowed: int | None, masks: int, fault: int | None
    ) -> None:
        chain = self.chain(self.pick(index), back, count, allowed=allowed, masks=masks)
        buffer = torch.empty(count, self.proposer.config.hidden_size) if is_deferred else None
        is_empty = chain.num_fitting == 0 or (chain.bitmask is not None and not bool(chain.bitmask.any()))

        def run() -> list[int]:
            return self.proposer.propose(
                chain.token,
                chain.hidden,
                chain.position,
                count,
                chain.live.state,
                draft_embed_target=buffer,
                grammar_bitmask=chain.bitmask,
            )

        if not is_empty and not chain.is_possible(self.kpool):
            self.refuse("propose: ", run)
        elif (ids := self.call(fault, run)) is not None:
            if buffer is not None:
                assert ids == []
                if not is_empty:
                    ids = self.proposer.read_deferred_draft_tokens()
                    assert torch.equal(buffer[: len(ids)], self.proposer.weights["embed_tokens"][ids])
            self.accept(chain, ids)
        if buffer is None or is_empty:
            with pytest.raises(StateError, match="deferred none"):
                self.proposer.read_deferred_draft_tokens()
        self.check(chain.live)

    @rule(shift=sequences, back=backs, count=num_drafts, fault=faults)
    @has_live
    def propose_batch(self, shift: int, back: int, count: int, fault: int | None) -> None:
        order = [self.pick(index + shift) for index in range(len(self.live))]
        chains = [self.chain(live, back if index == 0 else 0, count) for index, live in enumerate(order)]
        confidences: list[list[float]] = []

        def run() -> list[list[int]]:
            return self.proposer.propose_batch(
                [chain.token for chain in chains],
                [chain.hidden for chain in chains],
                [chain.position for chain in chains],
                count,
                [chain.live.state for chain in chains],
                confidences=confidences,
            )

        if not all(chain.num_fitting == 0 or chain.is_possible(self.kpool) for chain in chains):
            self.refuse("propose: ", run)
        elif (drafts := self.call(fault, run)) is not None:
            assert [len(row) for row in confidences] == [len(row) for row in drafts]
            for chain, ids in zip(chains, drafts, strict=True):
                self.accept(chain, ids)
        self.check(*order)

    @rule(index=sequences, num_accepted=st.integers(0, MAX_DRAFTS + 1))
    @has_live
    def after_verify(self, index: int, num_accepted: int) -> None:
        live = self.pick(index)
        if live.num_drafted:
            live.rows.rewind(live.drafted_from + min(live.num_drafted, num_accepted + 1))
            live.num_drafted = 0
        assert self.call(None, lambda: self.proposer.after_verify(num_accepted, live.state)) == len(live.rows)
        self.check(live)

    @rule(shift=sequences, backs=st.lists(st.integers(-1, 3), min_size=MAX_LIVE, max_size=MAX_LIVE), fault=faults)
    @has_live
    def catchup_batch(self, shift: int, backs: list[int], fault: int | None) -> None:
        order = [self.pick(index + shift) for index in range(len(self.live))]
        firsts = [
            live.drafted_from + 1 if live.num_drafted and back >= 0 else max(0, len(live.rows) - back)
            for live, back in zip(order, backs, strict=False)
        ]
        given = [self.new_pairs(1 + abs(back)) for back in backs[: len(order)]]

        def run() -> list[int]:
            return self.proposer.catchup_batch(
                [tokens for tokens, _ in given], [rows for _, rows in given], firsts, [live.state for live in order]
            )

        plans = []
        is_possible = True
        for live, first, (tokens, _) in zip(order, firsts, given, strict=True):
            start = len(live.rows)
            if first > start:
                plans.append((start, 0))
                continue
            if self.is_exact:
                is_possible &= live.rows.rewound_to(first, self.kpool) == first
                start = first
            num_missing = max(0, first + len(tokens) - start)
            is_possible &= start + num_missing <= live.max_rows
            plans.append((start, num_missing))
        if not is_possible:
            self.refuse("larger budget|cannot be rewritten", run)
        elif (written := self.call(fault, run)) is not None:
            assert written == [num_missing for _, num_missing in plans]
            for live, first, (tokens, hiddens), (start, num_missing) in zip(order, firsts, given, plans, strict=True):
                live.rewind(start)
                if num_missing:
                    live.rows.append(tokens[start - first :], list(hiddens[start - first :]), self.depth)
                    live.num_drafted = 0
        self.check(*order)

    @rule(index=sequences, back=backs, fault=faults)
    @has_live
    def rewind(self, index: int, back: int, fault: int | None) -> None:
        live = self.pick(index)
        asked = max(0, len(live.rows) - back)
        kept = self.call(fault, lambda: self.proposer.rewind(asked, live.state))
        expected = live.rows.rewound_to(asked, self.kpool)
        # a rewind runs no operation in which the fault could be
        assert kept == expected
        assert kept == asked or back > MAX_DRAFTS or live.rows.raw_from > len(live.rows) - self.depth
        live.rewind(expected)
        self.check(live)

    @rule(index=sequences, fault=faults)
    @precondition(lambda machine: machine.live and not machine.carried)
    def take(self, index: int, fault: int | None) -> None:
        live = self.pick(index)
        kv = self.call(fault, lambda: self.proposer.take_drafter_kv(live.state))
        if kv is not None:
            assert kv.num_rows == len(live.rows)
            self.carried.append(Carried(kv, live.rows))
            live.rows, live.num_drafted, live.drafted_from = Rows(), 0, 0
        self.check(live)

    @rule(num_shared=st.integers(0, MAX_ROWS + 2))
    @has_carried
    def trim(self, num_shared: int) -> None:
        carried = self.carried[0]
        kept = self.call(None, lambda: self.proposer.trim_drafter_kv(num_shared, carried.kv))
        expected = carried.rows.rewound_to(max(0, num_shared - 1), self.kpool)
        assert kept == expected
        carried.rows.rewind(expected)

    @rule(index=sequences, is_right=st.sampled_from([True, True, False]), fault=faults)
    @precondition(lambda machine: machine.live and machine.carried)
    def install(self, index: int, is_right: bool, fault: int | None) -> None:
        live, carried = self.pick(index), self.carried[0]
        rows = len(carried.rows)
        pair_key = (rows - 1 if rows else None) if is_right else rows
        fits = is_right and len(live.rows) == 0 and rows <= live.max_rows
        # freeing poisons spare blocks, an operation of these tests alone; a fault there would be none of the drafter's
        fault = None if fits else fault
        done = self.call(fault, lambda: self.proposer.install_drafter_kv(carried.kv, pair_key, live.state))
        assert done in ((fits,) if fault is None else (fits, None))
        if done:
            live.rows, live.num_drafted, live.drafted_from = carried.rows, 0, 0
            self.carried.clear()
        self.check(live)

    @rule()
    @has_carried
    def free_carried(self) -> None:
        kv = self.carried.pop().kv
        self.call(None, lambda: self.proposer.free_drafter_kv(kv))
        self.call(None, lambda: self.proposer.free_drafter_kv(kv))
        self.check(*self.live)

    @rule()
    def swap(self) -> None:
        self.proposer.set_circuit_draft(self.runner if self.proposer.path.name == "eager" else None)
        Lifecycle.num_calls += 1

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

    def teardown(self) -> None:
        if hasattr(self, "live"):
            self.check(*self.live)


PLAN = settings(
    max_examples=300,
    stateful_step_count=12,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
# longer lives, other ones in every run
LONG_PLAN = settings(PLAN, max_examples=50, stateful_step_count=60, derandomize=False)


def test_any_sequence_of_calls_leaves_what_a_twin_that_never_drafts_has(pytestconfig: pytest.Config) -> None:
    wanted = pytestconfig.getoption("--lifecycle-steps")
    Lifecycle.num_calls = Lifecycle.num_faults = 0
    run_state_machine_as_test(Lifecycle, settings=PLAN if wanted == 0 else LONG_PLAN)
    while Lifecycle.num_calls < wanted:
        report()
        run_state_machine_as_test(Lifecycle, settings=LONG_PLAN)
    report()


def report() -> None:
    print(f"{Lifecycle.num_calls} calls, {Lifecycle.num_faults} of them with a fault raised inside", flush=True)
