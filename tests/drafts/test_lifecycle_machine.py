"""A drafter under any sequence of calls, against a twin that never drafts.

The machine drives several sequences at once over both paths and keeps, for every row, the pair that the row must hold:
a committed token with the target's hidden, or a draft with the hidden that drafted it. After each call the sequences it
touched are compared with a fresh prefill of their pairs, and every chain with one that the eager head drafts on such a
prefill. All that must not matter is NaN: freed memory, rows and pool keys beyond each end, lost raw rows, the null
places. `--lifecycle-steps N` runs N calls in place of 300 examples.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule, run_state_machine_as_test

from circuit import StateError
from tests.drafts.lifecycle_desk import MAX_DRAFTS, MAX_LIVE, MAX_ROWS, LifecycleDesk
from tests.drafts.lifecycle_model import Carried, Chain, Live, Rows

sequences = st.integers(0, MAX_LIVE - 1)
counts = st.integers(0, 9)
backs = st.sampled_from([0, 0, 0, 1, 1, 2, 3, 4, 7, 12, 40])
num_drafts = st.integers(0, MAX_DRAFTS)
# the calls that do not come through fail among the checks of their arguments, in the middle or among the writes; a
# draft has about 400 operations, so in a batch the late ones lie in its second or third sequence
faults = st.sampled_from([*[None] * 400, *list(range(80)) * 2, *range(80, 240), *range(240, 1200, 20)])
batch_faults = st.sampled_from([*[None] * 40, *range(0, 3200, 40)])
has_live = precondition(lambda machine: bool(machine.live))
has_carried = precondition(lambda machine: bool(machine.carried))


class Lifecycle(LifecycleDesk):
    """Rules are the calls of the contract."""

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

    @rule(shift=sequences, back=backs, count=num_drafts, fault=batch_faults)
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

    @rule(index=sequences, count=st.integers(1, MAX_DRAFTS), num_accepted=st.integers(0, MAX_DRAFTS))
    @has_live
    def round(self, index: int, count: int, num_accepted: int) -> None:
        """What a loop does most: a chain, its verdict, and the true rows of what was accepted."""
        self.propose(index, back=0, count=count, is_deferred=False, allowed=None, masks=1, fault=None)
        self.after_verify(index, num_accepted)
        self.catchup(index, num_accepted, shift=0, fault=None)

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
        LifecycleDesk.num_calls += 1


PLAN = settings(
    max_examples=300,
    stateful_step_count=20,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
# longer lives, other ones in every run
LONG_PLAN = settings(PLAN, max_examples=50, stateful_step_count=60, derandomize=False)


def test_any_sequence_of_calls_leaves_what_a_twin_that_never_drafts_has(pytestconfig: pytest.Config) -> None:
    wanted = pytestconfig.getoption("--lifecycle-steps")
    LifecycleDesk.num_calls = LifecycleDesk.num_faults = 0
    run_state_machine_as_test(Lifecycle, settings=PLAN if wanted == 0 else LONG_PLAN)
    while LifecycleDesk.num_calls < wanted:
        report()
        run_state_machine_as_test(Lifecycle, settings=LONG_PLAN)
    report()


def report() -> None:
    print(f"{LifecycleDesk.num_calls} calls, {LifecycleDesk.num_faults} of them with a fault raised inside", flush=True)
