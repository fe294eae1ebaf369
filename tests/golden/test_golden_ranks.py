"""The head's circuit split over two ranks against the oracle, by the same checks and bounds as the whole one."""

from __future__ import annotations

from tests.golden.rank_head import check_case
from tests.golden.replay import GoldenCase
from tests.support.ranks import RankPool


def test_two_ranks_give_the_drafts_every_edge_and_the_cache(golden_case: GoldenCase, rank_pool: RankPool) -> None:
    counts = rank_pool.run(2, check_case, golden_case)
    assert counts[0] == counts[1] > 0
