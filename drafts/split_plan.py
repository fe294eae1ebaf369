"""What a split over ranks comes to: each rank's part of the weights, and the exchanges of a draft with their sizes."""

import math
from dataclasses import dataclass

from circuit import Circuit
from compiler import collectives
from drafts.config import DraftConfig
from drafts.decisions import Decisions
from drafts.draft_head import WHOLE_HEAD, DraftHead
from drafts.parallel import EXPERTS, ParallelPlan, split_specs, weight_splits
from drafts.weights import head_weight_specs


@dataclass(frozen=True, slots=True)
class RankPart:
    """What the ranks from `first` to `last` have alike: heads, experts, rows of lm_head, and bytes of weights."""

    first: int
    last: int
    num_heads: int
    num_experts: int
    lm_head_rows: int
    weight_bytes: int

    @property
    def ranks(self) -> str:
        """`0`, or `0-7`."""
        return f"{self.first}" if self.first == self.last else f"{self.first}-{self.last}"


@dataclass(frozen=True, slots=True)
class PlannedExchange:
    """One exchange of a draft: the value it makes whole, its axis and kind, and bytes a rank hands in and sends."""

    value: str
    axis: str
    exchange: str
    payload: str
    payload_bytes: int
    bytes_sent: int


def rank_parts(
    config: DraftConfig, decisions: Decisions, plan: ParallelPlan, *, draft_head: DraftHead = WHOLE_HEAD
) -> tuple[RankPart, ...]:
    """Return what each rank has, neighbours that have as much taken together."""
    parts: list[RankPart] = []
    whole = head_weight_specs(config, target_norm=decisions.applies_target_norm)
    for rank in range(plan.num_ranks):
        splits = weight_splits(config, plan, rank, draft_head=draft_head)
        specs = split_specs(whole, splits)
        held = {(spec.sources, spec.shape, spec.part): math.prod(spec.shape) * spec.dtype.itemsize for spec in specs}
        o_proj, experts, lm_head = splits.get("self_attn.o_proj"), splits.get(EXPERTS[0]), splits.get("lm_head")
        part = RankPart(
            rank,
            rank,
            config.num_attention_heads if o_proj is None else o_proj.width // config.v_head_dim,
            config.n_routed_experts if experts is None else experts.width,
            config.vocab_size if lm_head is None else lm_head.width,
            sum(held.values()),
        )
        if parts and _sizes(parts[-1]) == _sizes(part):
            part = RankPart(parts.pop().first, rank, *_sizes(part))
        parts.append(part)
    return tuple(parts)


def planned_exchanges(bound: Circuit) -> tuple[PlannedExchange, ...]:
    """Return the exchanges of one draft whose dims are bound, in order."""
    planned = []
    for call in collectives(bound):
        types = [arg.type for arg in call.args]
        payload = call.node.payload(*types)
        planned.append(
            PlannedExchange(
                value=call.results[0].name,
                axis=str(call.node.attributes()["axis"]),
                exchange=str(call.node.exchange),
                payload=str(payload),
                payload_bytes=payload.num_bytes(),
                bytes_sent=call.node.cost(*types).bytes_sent,
            )
        )
    return tuple(planned)


def _sizes(part: RankPart) -> tuple[int, int, int, int]:
    return part.num_heads, part.num_experts, part.lm_head_rows, part.weight_bytes
