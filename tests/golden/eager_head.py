"""The eager head as a HeadUnderTest."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from drafts.batch import RowBatch
from drafts.config import DraftConfig
from drafts.decisions import Decisions
from drafts.eager_glm5_next import EagerGlm5NextHead
from tests.golden.replay import CacheTensors, Edges


@dataclass
class EagerHead:
    head: EagerGlm5NextHead

    def step(
        self,
        rows: RowBatch,
        tensors: CacheTensors,
        *,
        recycled: bool,
        selected: Tensor | None,
        selected_at: Tensor | None,
    ) -> tuple[Edges, CacheTensors]:
        step = self.head.step(
            rows.token,
            rows.hidden,
            rows.position,
            rows.sequence,
            rows.block_table,
            *tensors,
            recycled=recycled,
            selected=selected,
            selected_at=selected_at,
            record_edges=True,
        )
        return step.edges, tensors

    def context(self, rows: RowBatch, tensors: CacheTensors) -> tuple[Edges, CacheTensors]:
        edges: dict[str, Tensor] = {}
        latent, _, tail = tensors
        self.head.context(rows, latent, tail, edges=edges).apply(*tensors)
        return edges, tensors


def eager_head(config: DraftConfig, weights: dict[str, Tensor], decisions: Decisions) -> EagerHead:
    return EagerHead(EagerGlm5NextHead(config, weights, decisions))
