"""The plan of a drafter on a device, from its config alone: launches, bytes, floor, memory. No weight is read."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Literal

import torch

import compiler.inductor as inductor
from circuit import Circuit, StateType
from circuit.errors import ConfigError
from compiler import (
    Cut,
    Device,
    LaunchCost,
    MemoryNeed,
    Roofline,
    bind_dims,
    certify_products,
    launch_of_call,
    plan_memory,
    plan_program,
    rank_cuts,
    total_cost,
)
from drafts.binding import DraftBinding, bind_head
from drafts.cache import DEFAULT_MAX_NUM_DRAFTS, default_block_size
from drafts.config import DraftConfig
from drafts.decisions import Decisions
from drafts.draft_head import WHOLE_HEAD, DraftHead
from drafts.head_weights import certified_of
from drafts.parallel import ONE_RANK, ParallelPlan, split_specs, weight_splits
from drafts.planned_launches import planned_launches
from drafts.split_plan import PlannedExchange, RankPart, planned_exchanges, rank_parts
from drafts.weights import head_weight_specs
from nodes import RoutedExperts

PlanBackend = Literal["triton", "inductor", "reference"]
# naming it loads Inductor's lowerings, which fill the registry; a plan for a GPU need not wait for that
LOADS_LOWERINGS = "LoweredCircuit"
# every expert of a checkpoint has its own tensors, whose names are listed
MAX_EXPERTS = 1 << 16
MAX_BYTES = 1 << 50  # of one weight: a thousand terabytes
SHARED_WEIGHTS = ("embed_tokens", "lm_head", "target_norm")  # the target's own, which the drafter reads too


def bind_without_weights(
    config: DraftConfig,
    decisions: Decisions,
    *,
    where: str = "config",
    parallel: ParallelPlan = ONE_RANK,
    draft_head: DraftHead = WHOLE_HEAD,
) -> DraftBinding:
    """Bind the head to weights that have a shape and no memory: enough to plan with, nothing to run.

    Of ranks that share it, the first, which has the most. Raises ConfigError, with `where` in front, for sizes that no
    memory could hold.
    """
    if config.n_routed_experts > MAX_EXPERTS:
        raise ConfigError(
            f"{where}: n_routed_experts: expected up to {MAX_EXPERTS:,} to plan with, got {config.n_routed_experts:,}; "
            "correct the config"
        )
    whole = head_weight_specs(config, target_norm=decisions.applies_target_norm)
    specs = split_specs(whole, weight_splits(config, parallel, 0, draft_head=draft_head))
    for spec in specs:
        if math.prod(spec.shape) * spec.dtype.itemsize > MAX_BYTES:
            raise ConfigError(
                f"{where}: weight {spec.name}: expected a size that a memory could hold, got {list(spec.shape)}; "
                "correct the config's sizes"
            )
    return bind_head(
        config,
        {spec.name: torch.empty(spec.shape, dtype=spec.dtype, device="meta") for spec in specs},
        decisions,
        block_size=default_block_size(config.index_kpool),
        max_num_drafts=DEFAULT_MAX_NUM_DRAFTS,
        draft_head=draft_head,
        parallel=parallel,
    )


@dataclass(frozen=True)
class DraftPlan:
    """One batch and context of a drafter on a device.

    first and following are the launches of draft 1 and of each of drafts 2..K; fit is None where the device's memory is
    unknown. Of a drafter that ranks share it is that of the first of them, which has the most; exchanges are those of a
    draft. `launches_per_chain` counts what a host or a graph starts: a program of Inductor is one.
    """

    device: Device
    roofline: Roofline
    backend: PlanBackend
    config: DraftConfig
    batch: int
    context: int
    num_drafts: int
    first: tuple[LaunchCost, ...]
    following: tuple[LaunchCost, ...]
    memory: MemoryNeed
    draft_head: DraftHead = WHOLE_HEAD
    parallel: ParallelPlan = ONE_RANK
    rank_parts: tuple[RankPart, ...] = ()
    exchanges: tuple[PlannedExchange, ...] = ()

    @property
    def launches_per_draft(self) -> int:
        """Launches of the first draft."""
        return 1 if self.backend == "inductor" else len(self.first)

    @property
    def launches_per_chain(self) -> int:
        """Launches of all K drafts."""
        return self._launches_of(self.num_drafts)

    @cached_property
    def bytes_per_draft(self) -> int:
        """Bytes that the first draft reads and writes."""
        return _bytes(self.first)

    @cached_property
    def bytes_per_chain(self) -> int:
        """Bytes that all K drafts read and write."""
        return self.bytes_per_draft + (self.num_drafts - 1) * _bytes(self.following)

    @cached_property
    def floor_us(self) -> float:
        """The first draft's floor, gaps between launches aside, in microseconds."""
        return self._floor(self.first)

    @cached_property
    def chain_floor_us(self) -> float:
        """The floor of all K drafts, gaps aside."""
        return self.floor_us + (self.num_drafts - 1) * self._floor(self.following)

    @property
    def gap_us(self) -> float | None:
        """Gaps between the first draft's launches; None where a device's gap is unknown."""
        return self.roofline.gaps_us(self.launches_per_draft)

    def chain_us(self, num_drafts: int) -> float:
        """Floor and, where they are known, gaps of a chain of so many drafts: the least it takes."""
        floor = self.floor_us + (num_drafts - 1) * self._floor(self.following)
        return floor + (self.roofline.gaps_us(self._launches_of(num_drafts)) or 0.0)

    @property
    def gap_share(self) -> float | None:
        """Share of the gaps in floor and gaps together."""
        return None if self.gap_us is None else self.gap_us / (self.floor_us + self.gap_us)

    @property
    def lm_head_share(self) -> float:
        """Share of lm_head's bytes in the first draft's."""
        num_rows = self.draft_head.num_rows(self.config.vocab_size)
        if self.draft_head.is_whole and self.rank_parts:
            num_rows = self.rank_parts[0].lm_head_rows
        rows = num_rows * self.config.hidden_size
        form = self.draft_head.draft_head
        is_in_bytes = form == "int8" or (form == "int8_certified" and self.backend == "triton")
        itemsize = 1 if is_in_bytes else self.config.dtype.itemsize
        return rows * itemsize / self.bytes_per_draft

    @property
    def distinct_experts(self) -> float:
        """Experts that the batch touches on average under uniform routing."""
        return RoutedExperts.expected_distinct(
            self.config.n_routed_experts, self.config.num_experts_per_tok, self.batch
        )

    @property
    def capacity(self) -> int | None:
        """The device's memory in bytes."""
        return None if self.device.capacity_gb is None else round(self.device.capacity_gb.value * 1e9)

    @property
    def fits(self) -> bool | None:
        """Whether weights, caches and arena fit; None where the device's memory is unknown."""
        return None if self.capacity is None else self.memory.total(self.batch, self.context) <= self.capacity

    @cached_property
    def largest_batch(self) -> int | None:
        """The most sequences of this context that fit."""
        return None if self.capacity is None else self.memory.largest_batch(self.capacity, self.context)

    @cached_property
    def largest_context(self) -> int | None:
        """The longest context that this batch has room for, up to the model's positions."""
        limit = self.config.max_position_embeddings
        return None if self.capacity is None else self.memory.largest_context(self.capacity, self.batch, limit)

    @cached_property
    def cuts(self) -> tuple[Cut, ...]:
        """What could go from the first draft, by what it saves."""
        return rank_cuts(self.first, self.roofline, num_launches=self.launches_per_draft)

    @property
    def chain_gap_share(self) -> float | None:
        """Share of the gaps between all of a chain's launches in its floor and gaps together."""
        gaps = self.roofline.gaps_us(self.launches_per_chain)
        return None if gaps is None else gaps / (self.chain_floor_us + gaps)

    def launch_floor_us(self, launch: LaunchCost) -> float:
        """The floor of one launch."""
        return self.roofline.floor_us(launch.cost)

    def _launches_of(self, num_drafts: int) -> int:
        return 1 if self.backend == "inductor" else len(self.first) + (num_drafts - 1) * len(self.following)

    def _floor(self, launches: tuple[LaunchCost, ...]) -> float:
        return sum(self.roofline.floor_us(launch.cost) for launch in launches)


def plan_drafter(
    binding: DraftBinding,
    *,
    device: Device,
    roofline: Roofline,
    backend: PlanBackend,
    batch: int,
    context: int,
    num_drafts: int,
    reserved: int = 0,
) -> DraftPlan:
    """Plan a chain of `num_drafts` drafts of `batch` sequences of `context` rows, the drafts' own included."""
    dims = _dims(binding, batch, context)
    # the other backends run a certified head as it is declared
    certified = certified_of(binding.draft_head) if backend == "triton" else ()
    steps = [certify_products(binding.step(is_first=is_first), certified)[0] for is_first in (True, False)]
    first, following = (_launches(bind_dims(step, dims), dims, backend) for step in steps)
    return DraftPlan(
        device=device,
        roofline=roofline,
        backend=backend,
        config=binding.config,
        batch=batch,
        context=context,
        num_drafts=num_drafts,
        first=first,
        following=following,
        memory=memory_need(binding, reserved=reserved),
        draft_head=binding.draft_head,
        parallel=binding.parallel,
        rank_parts=rank_parts(binding.config, binding.decisions, binding.parallel, draft_head=binding.draft_head),
        exchanges=planned_exchanges(bind_dims(steps[0], dims)),
    )


def memory_need(binding: DraftBinding, *, reserved: int = 0) -> MemoryNeed:
    """Return what the drafter needs of a device's memory, `reserved` bytes of others' beside it."""
    held = binding.rank_circuit.weights
    sizes = {name: value.type.num_bytes() for name, value in held.items()}  # type: ignore[union-attr]
    for weight in certify_products(binding.step(is_first=True), certified_of(binding.draft_head))[0].weights.values():
        sizes.setdefault(weight.name, weight.type.num_bytes())  # type: ignore[union-attr]
    # the target keeps it, whatever is derived of it; a tied one is the one table, held once
    sizes["lm_head"] = 0 if binding.config.tie_word_embeddings else binding.weights["lm_head"].nbytes
    shared = sum(size for name, size in sizes.items() if name in SHARED_WEIGHTS)
    one = {**binding.dims, "num_blocks": 1, "num_sequences": 1}
    states = [value.type.bind(one) for value in binding.circuit.states.values() if isinstance(value.type, StateType)]
    by_layout = {
        layout: sum(state.tensor.num_bytes() for state in states if state.layout == layout)
        for layout in {state.layout for state in states}
    }
    step = binding.step(is_first=True)

    @cache
    def arena(batch: int, context: int) -> int:
        if batch == 0:
            return 0
        return plan_memory(bind_dims(step, _dims(binding, batch, context))).arena_bytes

    return MemoryNeed(
        own_weights=sum(sizes.values()) - shared,
        shared_weights=shared,
        block_rows=binding.state_layout.block_size,
        bytes_per_block=by_layout["paged"],
        bytes_per_sequence=by_layout["ring"],
        arena=arena,
        reserved=reserved,
    )


def _dims(binding: DraftBinding, batch: int, context: int) -> dict[str, int]:
    blocks = max(1, -(-context // binding.state_layout.block_size))
    return {
        **binding.dims,
        "n": batch,
        "max_blocks": blocks,
        "num_blocks": batch * blocks + 1,
        "num_sequences": batch + 1,
    }


def _launches(bound: Circuit, dims: Mapping[str, int], backend: PlanBackend) -> tuple[LaunchCost, ...]:
    if backend == "triton":
        return planned_launches(bound, dims)
    if backend == "reference":
        how = {call.results[0].name: ("reference", "reference") for call in bound.calls}
    else:
        getattr(inductor, LOADS_LOWERINGS)
        planned = plan_program(bound, name=bound.name, backend=backend, dims=dims)
        how = {call.results[0]: (call.numerics, call.lowering) for call in planned.calls}
    launches = (
        launch_of_call(bound, call, numerics=how[name][0], kernel=how[name][1])
        for call in bound.calls
        if (name := call.results[0].name) in how
    )
    # a call without bytes is a view and starts nothing
    return tuple(launch for launch in launches if launch.bytes)


def _bytes(launches: tuple[LaunchCost, ...]) -> int:
    cost = total_cost(launches)
    return cost.bytes_read + cost.bytes_written
