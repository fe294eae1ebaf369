"""A split drafter on real gloo ranks: the drafts of one rank, and ranks that are in step or refuse together."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from drafts.ranks import LoggedExchange
from tests.drafts.rank_scenarios import PROMPT_ROWS, Case, Outcome, draft_rounds, make_rank, propose_once
from tests.support.ranks import RankFailure, RankPool

# sums over heads and experts in another order
CLOSE = {"rtol": 1e-5, "atol": 1e-5}
PLANS = [(2, 2), (4, 4), (2, 4), (4, 2), (1, 2), (2, 1)]
each_plan = pytest.mark.parametrize("plan", PLANS, ids=lambda plan: f"tp{plan[0]}-ep{plan[1]}")

_one_rank: dict[Case, Outcome] = {}


def whole(pool: RankPool, case: Case) -> Outcome:
    """What one rank does, once a case."""
    alone = Case(**{**vars(case), "plan": (1, 1)})
    if alone not in _one_rank:
        (_one_rank[alone],) = pool.run(1, draft_rounds, alone)
    return _one_rank[alone]


def split(pool: RankPool, case: Case) -> list[Outcome]:
    """What the ranks of a case do, held to be the same on all of them, bit for bit."""
    outcomes = pool.run(case.num_ranks, draft_rounds, case)
    first = outcomes[0]
    for rank, outcome in enumerate(outcomes):
        assert outcome.log == first.log, f"rank {rank} made other exchanges"
        assert outcome.drafts == first.drafts, f"rank {rank} drafted otherwise"
        for name, held, theirs in zip(("latent", "pool keys", "raw rows"), outcome.cache, first.cache, strict=True):
            assert torch.equal(held, theirs), f"rank {rank}: other {name}"
    return outcomes


def assert_as_one_rank(pool: RankPool, case: Case) -> list[Outcome]:
    expected, outcomes = whole(pool, case), split(pool, case)
    assert not expected.log
    for outcome in outcomes:
        *drafts, confidences = outcome.drafts
        assert drafts == expected.drafts[:-1]
        torch.testing.assert_close(torch.tensor(confidences), torch.tensor(expected.drafts[-1]), **CLOSE)
        for held, one in zip(outcome.cache, expected.cache, strict=True):
            torch.testing.assert_close(held, one, **CLOSE)
        for name, edge in expected.edges.items():
            if name in outcome.edges:
                torch.testing.assert_close(outcome.edges[name], edge, **CLOSE)
    return outcomes


# the drafts, the cache, and the edges that are whole


@each_plan
@pytest.mark.parametrize("path", ["circuit", "eager"])
def test_ranks_draft_and_cache_as_one_rank(plan: tuple[int, int], path: str, rank_pool: RankPool) -> None:
    outcomes = assert_as_one_rank(rank_pool, Case(plan, path=path))
    assert all(outcome.needs_comm for outcome in outcomes)
    if path == "circuit":
        assert {"block_out.0", "experts_out.3"} <= set(outcomes[0].edges)


def test_one_rank_needs_no_communicator(rank_pool: RankPool) -> None:
    assert not whole(rank_pool, Case((1, 1))).needs_comm


@pytest.mark.parametrize(
    "decisions",
    [{"index_share": "pools_and_new_rows"}, {"index_share": "exact_set"}, {"recycle": "block_output"}],
    ids=lambda decisions: "-".join(decisions.values()),
)
def test_decisions_are_those_of_one_rank(decisions: dict[str, str], rank_pool: RankPool) -> None:
    assert_as_one_rank(rank_pool, Case((2, 2), decisions=tuple(decisions.items())))


SCENES: dict[str, dict[str, Any]] = {
    "chosen experts all on the first rank": {"favoured": (0, 1)},
    "chosen experts all on the last rank": {"favoured": (5, 6)},
    "ranks that own no expert": {"sizes": (("n_routed_experts", 3),)},
    "vocabulary that does not divide": {"sizes": (("vocab_size", 61),)},
    "heads that do not divide": {"sizes": (("num_attention_heads", 5),)},
    "ties within and across ranks": {"tied_rows": tuple(range(5, 60, 2))},
    "every token ties": {"tied_rows": tuple(range(60))},
}


@pytest.mark.parametrize("scene", SCENES.values(), ids=list(SCENES))
@pytest.mark.parametrize("path", ["circuit", "eager"])
def test_scene_is_that_of_one_rank(scene: dict[str, Any], path: str, rank_pool: RankPool) -> None:
    outcomes = assert_as_one_rank(rank_pool, Case((4, 4), path=path, **scene))
    if len(scene.get("tied_rows", ())) == 60:
        # but for the row that a grammar restricts
        assert {draft for drafts in outcomes[0].drafts[:4] for draft in drafts} == {0}


def test_trimmed_vocabulary_stays_whole_and_drafts_as_one_rank(rank_pool: RankPool) -> None:
    for path in ("circuit", "eager"):
        (first, *_) = assert_as_one_rank(rank_pool, Case((4, 4), path=path, draft_vocab=tuple(range(1, 60, 3))))
        assert all(draft % 3 == 1 for drafts in first.drafts[:4] for draft in drafts)


def test_vocabulary_that_does_not_divide_exchanges_no_tokens(rank_pool: RankPool) -> None:
    (first, _) = split(rank_pool, Case((2, 2), sizes=(("vocab_size", 61),)))
    assert {entry.exchange for entry in first.log if entry.axis != "world"} == {"all_reduce"}


def test_bfloat16_ranks_are_bitwise_alike(rank_pool: RankPool) -> None:
    split(rank_pool, Case((4, 4), dtype=torch.bfloat16))


# the exchanges


def test_draft_exchanges_two_sums_and_one_pair_a_step(rank_pool: RankPool) -> None:
    hidden = 20
    outcomes = rank_pool.run(2, propose_once, Case((2, 2)), {})
    agree = LoggedExchange("world", "all_gather", (11,))
    verdict = LoggedExchange("world", "all_gather", (2,))
    step = [
        LoggedExchange("tp", "all_reduce", (1, hidden)),
        LoggedExchange("ep", "all_reduce", (1, hidden)),
        LoggedExchange("tp", "all_gather", (1, 2)),
    ]
    for outcome in outcomes:
        assert outcome.log == [agree, *step * 3, verdict, agree, *step * 2, verdict]


def test_lever_off_runs_whole_and_exchanges_nothing(rank_pool: RankPool) -> None:
    for path in ("circuit", "eager"):
        off = Case((2, 2), path=path, has_lever=False)
        expected = whole(rank_pool, Case((1, 1), path=path))
        for outcome in rank_pool.run(2, draft_rounds, off):
            assert outcome.drafts == expected.drafts
            assert not outcome.log
            assert not outcome.needs_comm


# ranks that are out of step

FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "one rank at its limit": ({"budget": PROMPT_ROWS + 1}, "the same num_drafts on all ranks, got 3 on rank 0 and 1"),
    "one rank full": ({"budget": PROMPT_ROWS}, "the same num_drafts on all ranks, got 3 on rank 0 and 0 on rank 1"),
    "K = 0 on one rank": ({"num_drafts": 0}, "the same num_drafts on all ranks, got 3 on rank 0 and 0 on rank 1"),
    "fewer drafts on one rank": ({"num_drafts": 2}, "the same num_drafts on all ranks, got 3 on rank 0 and 2"),
    "another position": ({"position": PROMPT_ROWS - 1}, "the same position on all ranks, got 18 on rank 0 and 17"),
    "another token": ({"token": 3}, "the same tokens on all ranks, got "),
    "another hidden": ({"hidden": 1e-3}, "the same hiddens on all ranks, got another on rank 1"),
    "eager beside circuit": ({"path": "eager"}, "the same path on all ranks, got another on rank 1"),
    "a bad token on one rank": ({"token": 1000}, "rank 1 refused the call before it drafted, see its own error"),
    "too many drafts on one rank": ({"num_drafts": 9}, "rank 1 refused the call before it drafted"),
    "rows missing on one rank": ({"rows": PROMPT_ROWS - 3}, "rank 1 refused the call before it drafted"),
}


@pytest.mark.parametrize("fault, expected", FAULTS.values(), ids=list(FAULTS))
@pytest.mark.parametrize("plan", [(2, 2), (4, 4)], ids=["2 ranks", "4 ranks"])
def test_ranks_out_of_step_all_refuse_before_the_first_exchange(
    fault: dict[str, Any], expected: str, plan: tuple[int, int], rank_pool: RankPool
) -> None:
    outcomes = rank_pool.run(max(plan), propose_once, Case(plan), {1: fault})
    for rank, outcome in enumerate(outcomes):
        assert outcome.log == outcomes[0].log
        kind, message = outcome.drafts[0]
        if rank == 1 and "refused" in expected:
            assert kind in ("ValueError", "StateError"), message
        else:
            assert kind == "RankError"
            assert f"propose: {expected}" in message or f"propose: expected {expected}" in message
        # the next call drafts, on all ranks alike
        assert outcome.drafts[1] == outcomes[0].drafts[1]
        assert len(outcome.drafts[1]) == 2
    # one agreement, no draft's exchange, and then the call that goes well
    assert outcomes[0].log[1].axis == "world"


@pytest.mark.parametrize("path", ["circuit", "eager"])
def test_full_drafter_makes_no_draft_on_any_rank(path: str, rank_pool: RankPool) -> None:
    full = {"budget": PROMPT_ROWS}
    for outcome in rank_pool.run(2, propose_once, Case((2, 2), path=path), {0: full, 1: full}):
        assert outcome.drafts[0] == []
        assert [entry.axis for entry in outcome.log[:2]] == ["world", "world"]


# before, between and after the exchanges of a step, in the first and in a later draft
PLACES = [("eh_out", 0), ("attn_out.part", 0), ("x1", 0), ("experts_out", 1), ("logits", 1), ("draft", 2)]


@pytest.mark.parametrize("place", PLACES, ids=lambda place: f"{place[0]}-of-draft-{place[1] + 1}")
@pytest.mark.parametrize("plan", [(2, 2), (4, 4)], ids=["2 ranks", "4 ranks"])
def test_fault_in_the_middle_of_one_rank_ends_the_call_on_all(
    place: tuple[str, int], plan: tuple[int, int], rank_pool: RankPool
) -> None:
    well = rank_pool.run(max(plan), propose_once, Case(plan), {})
    outcomes = rank_pool.run(max(plan), propose_once, Case(plan), {1: {"raise_at": place}})
    for rank, outcome in enumerate(outcomes):
        # the rank that failed took part in what was left
        assert outcome.log == well[0].log
        kind, message = outcome.drafts[0]
        assert kind == ("ArithmeticError" if rank == 1 else "RankError")
        assert rank == 1 or "rank 1 failed while it drafted" in message
        assert outcome.drafts[1] == well[0].drafts[1]


def test_faults_of_two_ranks_end_the_call_on_all(rank_pool: RankPool) -> None:
    faults = {0: {"raise_at": ("x1", 1)}, 2: {"raise_at": ("eh_out", 0)}}
    outcomes = rank_pool.run(4, propose_once, Case((4, 4)), faults)
    assert [outcome.drafts[0][0] for outcome in outcomes] == [
        "ArithmeticError",
        "RankError",
        "ArithmeticError",
        "RankError",
    ]
    assert all(outcome.log == outcomes[0].log for outcome in outcomes)


def test_drafters_of_two_checkpoints_refuse_one_another(rank_pool: RankPool) -> None:
    outcomes = rank_pool.run(2, draft_other_sizes)
    assert all("the same drafter on all ranks, got another on rank 1" in message for message in outcomes)


def draft_other_sizes(rank: int) -> str:
    case = Case((2, 2), max_seq_len=96 + 16 * rank)
    try:
        draft_rounds(rank, case)
    except Exception as error:
        return str(error)
    return "drafted"


# the pool itself, and what a rank that is gone does to the others


def wait_for_a_rank_that_ends(rank: int) -> None:
    proposer, _, _ = make_rank(Case((2, 2)))
    if rank == 1:
        return
    text = torch.zeros(proposer.config.hidden_size)
    proposer.propose(1, text, 0, 1, proposer.alloc_state())


def sleep_on_one_rank(rank: int) -> int:
    time.sleep(0 if rank == 0 else 30)
    return rank


def test_rank_that_is_gone_is_named_and_nothing_hangs(rank_pool: RankPool) -> None:
    with pytest.raises(RankFailure, match=r"RankError: rank 0, world: expected 2 ranks to take part.*is gone or too"):
        rank_pool.run(2, wait_for_a_rank_that_ends, exchange_timeout_s=2.0)


def test_pool_names_the_rank_that_does_not_come_back(rank_pool: RankPool) -> None:
    began = time.monotonic()
    with pytest.raises(RankFailure, match=r"ranks \[1\] of 2 did not come back within 2 s"):
        rank_pool.run(2, sleep_on_one_rank, timeout_s=2.0)
    assert time.monotonic() - began < 10
