"""Compare the edges of two executions of one circuit, name by name, and find the first that is out of bound.

Floating point edges are judged by their relative L2 difference; discrete ones (ids, selections) must be equal as sets
per row, since order and padding mean nothing. Each bound carries its reason.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Bound:
    """How far two executions may lie apart, as relative L2 of an edge, and why."""

    relative_l2: float
    reason: str


# sums of a few thousand float32 products, taken in another order; measured 5e-7 between eager and interpreter
FLOAT32_BOUND = Bound(1e-5, "float32 sums of up to 16384 products in another order")
# one bf16 step is 2**-8 relative; edges deep in the head have passed about ten roundings
BFLOAT16_BOUND = Bound(3e-2, "bf16 keeps 8 bits, and about ten roundings lie between input and logits")


def bound_for(dtype: torch.dtype) -> Bound:
    """Return the bound for two executions in a model dtype."""
    return BFLOAT16_BOUND if dtype in (torch.bfloat16, torch.float16) else FLOAT32_BOUND


@dataclass(frozen=True, slots=True)
class EdgeDifference:
    """One edge of one step, compared. `worst_index` is where the absolute difference is largest; NaN on one side only
    counts as an infinite difference. For a discrete edge `num_different` rows differ as sets, and max_abs is 0.
    """

    edge: str
    step: int
    dtype: str
    shape: tuple[int, ...]
    max_abs: float
    relative_l2: float
    worst_index: tuple[int, ...]
    num_different: int
    is_bitwise_equal: bool
    is_within_bound: bool


def compare_edges(
    ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor], *, step: int, bound: Bound
) -> list[EdgeDifference]:
    """Compare the edges that both executions have, in the order of `ours`.

    Raises ValueError when they have none in common, for then nothing would have been compared.
    """
    common = [name for name in ours if name in theirs]
    if not common:
        raise ValueError(f"compare_edges: expected common edges, got {sorted(ours)} and {sorted(theirs)}")
    return [_compare(name, ours[name], theirs[name], step=step, bound=bound) for name in common]


def worst_edge(differences: list[EdgeDifference]) -> EdgeDifference | None:
    """Return the first edge out of bound, else the one of the largest relative difference; None for no edges."""
    missed = next((difference for difference in differences if not difference.is_within_bound), None)
    return missed or max(differences, key=lambda difference: difference.relative_l2, default=None)


def _compare(edge: str, ours: Tensor, theirs: Tensor, *, step: int, bound: Bound) -> EdgeDifference:
    is_float = ours.is_floating_point()
    if is_float != theirs.is_floating_point() or (is_float and ours.shape != theirs.shape):
        return _mismatch(edge, ours, step=step)
    if not ours.is_floating_point():
        return _compare_discrete(edge, ours, theirs, step=step)
    wide, other = ours.double(), theirs.double()
    # equal infinities and NaN on both sides are no difference
    same = (wide == other) | (wide.isnan() & other.isnan())
    apart = torch.where(same, 0.0, (wide - other).abs()).nan_to_num(nan=math.inf)
    finite = torch.where(other.isfinite(), other, 0.0)
    norm = float(finite.norm())
    distance = float(apart.norm())
    relative = 0.0 if distance == 0 else (distance / norm if norm else math.inf)
    flat = int(apart.argmax()) if apart.numel() else 0
    index = tuple(int(part) for part in torch.unravel_index(torch.tensor(flat), apart.shape)) if apart.numel() else ()
    return EdgeDifference(
        edge=edge,
        step=step,
        dtype=str(ours.dtype).removeprefix("torch."),
        shape=tuple(ours.shape),
        max_abs=float(apart.max()) if apart.numel() else 0.0,
        relative_l2=relative,
        worst_index=index,
        num_different=int((~same).sum()),
        is_bitwise_equal=ours.dtype == theirs.dtype and not bool((~same).any()),
        is_within_bound=ours.dtype == theirs.dtype and relative <= bound.relative_l2,
    )


def _compare_discrete(edge: str, ours: Tensor, theirs: Tensor, *, step: int) -> EdgeDifference:
    if ours.shape[:1] != theirs.shape[:1]:
        return _mismatch(edge, ours, step=step)
    pairs = zip(_rows(ours), _rows(theirs), strict=True)
    differing = [row for row, (left, right) in enumerate(pairs) if _as_set(left) != _as_set(right)]
    return EdgeDifference(
        edge=edge,
        step=step,
        dtype=str(ours.dtype).removeprefix("torch."),
        shape=tuple(ours.shape),
        max_abs=0.0,
        relative_l2=math.inf if differing else 0.0,
        worst_index=(differing[0],) if differing else (),
        num_different=len(differing),
        is_bitwise_equal=not differing,
        is_within_bound=not differing,
    )


def _rows(ids: Tensor) -> list[list[int]]:
    return ids.reshape(ids.shape[0] if ids.dim() else 1, math.prod(ids.shape[1:])).tolist()


def _as_set(ids: list[int]) -> set[int]:
    return {item for item in ids if item >= 0}  # -1 pads


def _mismatch(edge: str, ours: Tensor, *, step: int) -> EdgeDifference:
    """A shape or kind that differs is a difference without bound."""
    return EdgeDifference(
        edge=edge,
        step=step,
        dtype=str(ours.dtype).removeprefix("torch."),
        shape=tuple(ours.shape),
        max_abs=math.inf,
        relative_l2=math.inf,
        worst_index=(),
        num_different=ours.numel(),
        is_bitwise_equal=False,
        is_within_bound=False,
    )
