"""One rank's half of the head's circuit as a HeadUnderTest, with what it holds in part gathered to be compared."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from circuit import communicating
from drafts.batch import RowBatch
from drafts.binding import bind_head
from drafts.cache import default_block_size
from drafts.config import DraftConfig
from drafts.decisions import Decisions
from drafts.parallel import ParallelPlan, split_weights, weight_splits
from drafts.ranks import Ranks, join_ranks
from tests.golden.checks import check_drafts_and_edges, check_final_cache
from tests.golden.circuit_head import CircuitHead
from tests.golden.replay import CacheTensors, Edges, GoldenCase

SPLIT_EDGES = ("q", "attn_heads", "logits")


@dataclass
class RankHead(CircuitHead):
    ranks: Ranks | None = None

    def step(
        self,
        rows: RowBatch,
        tensors: CacheTensors,
        *,
        recycled: bool,
        selected: Tensor | None,
        selected_at: Tensor | None,
    ) -> tuple[Edges, CacheTensors]:
        assert self.ranks is not None
        with communicating(self.ranks.axes):
            edges, tensors = super().step(rows, tensors, recycled=recycled, selected=selected, selected_at=selected_at)
        whole = {name: torch.cat(tuple(self.ranks.axes["tp"].all_gather(edges[name])), -1) for name in SPLIT_EDGES}
        assert torch.equal(edges["draft"], whole["logits"].argmax(-1))
        return {**edges, **whole}, tensors


def check_case(rank: int, case: GoldenCase) -> int:
    """Hold one golden case on this rank of two; returns how many exchanges it took."""
    log: list[object] = []
    ranks = join_ranks(ParallelPlan(tp=2, ep=2), log=log)  # type: ignore[arg-type]
    assert ranks is not None

    def half(config: DraftConfig, weights: dict[str, Tensor], decisions: Decisions) -> RankHead:
        size = default_block_size(config.index_kpool)
        held = split_weights(weights, weight_splits(config, ranks.plan, rank))
        binding = bind_head(config, held, decisions, block_size=size, max_num_drafts=16, parallel=ranks.plan, rank=rank)
        return RankHead(binding, ranks)

    check_drafts_and_edges(case, half)
    check_final_cache(case, half)
    return len(log)
