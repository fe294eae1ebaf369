"""How a drafter is split over ranks: which part of which weight each has, and which of its files it reads.

Two axes. Along `tp` the attention heads are split (q_b_proj and kv_b_proj by head, o_proj by the columns of these
heads), and the rows of lm_head where the vocabulary divides. Along `ep` the routed experts are split into ranges. All
else is whole on every rank: norms, eh_proj, the indexer, the router, the shared expert, embed_tokens. So are the
caches: every rank writes the same latent rows, pool keys and raw tails, and selects the same rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor

from circuit import Axis, BindingError, Communicator, communicator_over
from compiler import Split
from drafts.checkpoint import Part
from drafts.config import DraftConfig
from drafts.draft_head import WHOLE_HEAD, DraftHead
from drafts.eager_shard import EagerShard
from drafts.weights import WeightSpec

AXES: tuple[Axis, ...] = get_args(Axis)
EXPERTS = ("mlp.experts.gate_up_proj", "mlp.experts.down_proj")
NumRanks = Annotated[int, Field(ge=1, le=4096)]


class ParallelPlan(BaseModel):
    """Ranks along each axis. The larger number is the world's; the smaller one divides it.

    Ranks of the smaller axis are neighbours: with tp 2 and ep 4, ranks 0 and 1 share the heads, and so do 2 and 3.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    tp: NumRanks = 1
    ep: NumRanks = 1

    @model_validator(mode="after")
    def _refuse_uneven(self) -> "ParallelPlan":
        if self.num_ranks % min(self.tp, self.ep):
            raise BindingError(
                f"ParallelPlan: expected that tp divides ep or ep divides tp, got tp {self.tp} and ep {self.ep}; "
                "change one of them"
            )
        return self

    @property
    def num_ranks(self) -> int:
        """Processes that share the drafter."""
        return max(self.tp, self.ep)

    @property
    def is_split(self) -> bool:
        """Whether there is more than one."""
        return self.num_ranks > 1

    def ranks_along(self, axis: Axis) -> int:
        """Return the number of ranks along an axis."""
        return self.tp if axis == "tp" else self.ep

    def place_along(self, axis: Axis, rank: int) -> int:
        """Return the place along an axis of a rank of the world."""
        return rank % self.ranks_along(axis)

    def __str__(self) -> str:
        return f"tp {self.tp}, ep {self.ep}"


ONE_RANK = ParallelPlan()


def default_plan(num_ranks: int, config: DraftConfig) -> ParallelPlan:
    """Return the plan over so many ranks that nobody said more of: experts over all, heads over as many as divide."""
    tp = next(
        count for count in range(num_ranks, 0, -1) if num_ranks % count == 0 and count <= config.num_attention_heads
    )
    return ParallelPlan(tp=tp, ep=num_ranks)


def weight_splits(
    config: DraftConfig, plan: ParallelPlan, rank: int, *, draft_head: DraftHead = WHOLE_HEAD
) -> dict[str, Split]:
    """Return this rank's part of each weight that several ranks share; empty for one rank.

    lm_head stays whole where its rows do not divide, and where the drafter reads it otherwise than it is stored. A
    range of heads or experts that does not divide is uneven by one: the first ranks have more. A rank may have no
    expert; each must have a head. `BindingError` for a rank that the plan lacks, for more tp ranks than heads.
    """
    if not 0 <= rank < plan.num_ranks:
        raise BindingError(f"parallel plan ({plan}): expected a rank from 0 to {plan.num_ranks - 1}, got {rank}")
    heads, vocab = config.num_attention_heads, config.vocab_size
    if plan.tp > heads:
        raise BindingError(f"parallel plan ({plan}): expected tp of at most {heads}, one head a rank; lower --tp")
    splits: dict[str, Split] = {}
    if plan.tp > 1:
        nope, v = config.qk_nope_head_dim, config.v_head_dim
        of_heads = _share("tp", plan, rank, heads)
        splits |= {
            "self_attn.q_b_proj": _scaled(of_heads, 0, config.qk_head_dim),
            "self_attn.kv_b_proj": _scaled(of_heads, 0, nope + v),
            "self_attn.o_proj": _scaled(of_heads, 1, v),
        }
        # a vocabulary that does not divide stays whole: its logits could not be gathered
        if vocab % plan.tp == 0 and draft_head.is_whole:
            splits["lm_head"] = _share("tp", plan, rank, vocab)
    if plan.ep > 1:
        splits |= dict.fromkeys(EXPERTS, _share("ep", plan, rank, config.n_routed_experts))
    return splits


def split_specs(specs: Sequence[WeightSpec], splits: Mapping[str, Split]) -> tuple[WeightSpec, ...]:
    """Return the specs of this rank's parts: of experts fewer sources, of others a slice of the one source."""
    return tuple(_split_spec(spec, splits.get(spec.name)) for spec in specs)


def split_weights(weights: Mapping[str, Tensor], splits: Mapping[str, Split]) -> dict[str, Tensor]:
    """Return this rank's parts of whole weights, as views of their memory."""
    return {
        name: weight if name not in splits else weight.narrow(splits[name].dim, splits[name].start, splits[name].width)
        for name, weight in weights.items()
    }


def eager_shard(
    config: DraftConfig, plan: ParallelPlan, rank: int, *, draft_head: DraftHead = WHOLE_HEAD
) -> EagerShard | None:
    """Return what the eager head does differently on this rank; None for one rank."""
    if not plan.is_split:
        return None
    splits = weight_splits(config, plan, rank, draft_head=draft_head)
    o_proj, experts, lm_head = splits.get("self_attn.o_proj"), splits.get(EXPERTS[0]), splits.get("lm_head")

    def add_up(part: Tensor, split: Split | None) -> Tensor:
        return part if split is None else _over(split).all_reduce(part)

    def gather(part: Tensor) -> Tensor:
        return _over(lm_head).all_gather(part) if lm_head is not None else part.unsqueeze(0)

    return EagerShard(
        num_heads=config.num_attention_heads if o_proj is None else o_proj.width // config.v_head_dim,
        first_expert=0 if experts is None else experts.start,
        first_token=0 if lm_head is None else lm_head.start,
        has_whole_logits=lm_head is None,
        add_up_heads=lambda part: add_up(part, o_proj),
        add_up_experts=lambda part: add_up(part, experts),
        gather=gather,
    )


def _over(split: Split) -> Communicator:
    return communicator_over(split.axis, split.num_ranks, where="the eager head")


def _share(axis: Axis, plan: ParallelPlan, rank: int, size: int) -> Split:
    """The range of `size` entries that a rank has along dim 0, as even as it can be."""
    count, place = plan.ranks_along(axis), plan.place_along(axis, rank)
    each, more = divmod(size, count)
    start = place * each + min(place, more)
    return Split(axis, count, 0, start, start + each + (place < more), size)


def _scaled(split: Split, dim: int, factor: int) -> Split:
    scaled = split.along(dim, entry=factor)
    assert scaled is not None
    return scaled


def _split_spec(spec: WeightSpec, split: Split | None) -> WeightSpec:
    if split is None:
        return spec
    assert spec.shape[split.dim] == split.size, f"{spec.name}: {spec.shape} has no {split.size} entries to split"
    shape = (*spec.shape[: split.dim], split.width, *spec.shape[split.dim + 1 :])
    if spec.recipe == "copy":
        return replace(spec, shape=shape, part=Part(split.dim, split.start, split.stop, split.size))
    each = len(spec.sources) // split.size
    return replace(spec, shape=shape, sources=spec.sources[split.start * each : split.stop * each])
