"""Compare the edges of two executions of one circuit, name by name, and find the first that is out of bound.

Floating point edges are judged by their relative L2 difference; discrete ones (ids, selections) must be equal as sets
per row, since order and padding mean nothing. Each bound carries its reason; a bound of 0 asks for the same bits.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Bound:
    """How far two executions may lie apart, as relative L2 of an edge, and why; 0 asks for the same bits."""

    relative_l2: float
    reason: str

    @property
    def is_bitwise(self) -> bool:
        """Whether the two must agree to the last bit; NaN equals NaN whatever its payload."""
        return self.relative_l2 == 0


# sums of a few thousand float32 products, taken in another order; measured 5e-7 between eager and interpreter
FLOAT32_BOUND = Bound(1e-5, "float32 sums of up to 16384 products in another order")
# one bf16 step is 2**-8 relative; edges deep in the head have passed about ten roundings
BFLOAT16_BOUND = Bound(3e-2, "bf16 keeps 8 bits, and about ten roundings lie between input and logits")

# integers as wide as the floating point types, to count the numbers between two of them
_BITS = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16}
SHOWN_IDS = 8


def bound_for(dtype: torch.dtype) -> Bound:
    """Return the bound for two executions in a model dtype."""
    return BFLOAT16_BOUND if dtype in (torch.bfloat16, torch.float16) else FLOAT32_BOUND


@dataclass(frozen=True, slots=True)
class EdgeDifference:
    """One edge of one step, compared. `worst_index` is where the absolute difference is largest; NaN on one side only
    counts as an infinite difference. For a discrete edge `num_different` rows differ as sets, and max_abs is 0.

    Attributes:
        max_ulps: most numbers of the dtype between two entries, both finite; None where they are not counted.
        num_nan, num_inf: entries that are NaN and infinite, of ours and of theirs.
        bound, reason: relative L2 that was allowed, 0 for the same bits, and why.
        only_ours, only_theirs: of the first row of a discrete edge that differs, what only one side holds, eight ids at
            most.
        margin, is_near_tie: how far apart the oracle ranks the two sets, and whether that is within rounding; such a
            difference is accepted.
        where: which run of several it was seen in.
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
    max_ulps: int | None = None
    num_nan: tuple[int, int] = (0, 0)
    num_inf: tuple[int, int] = (0, 0)
    bound: float = 0.0
    reason: str = ""
    only_ours: tuple[int, ...] = ()
    only_theirs: tuple[int, ...] = ()
    margin: float | None = None
    is_near_tie: bool = False
    where: str = ""


def compare_edges(
    ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor], *, step: int, bound: Bound
) -> list[EdgeDifference]:
    """Compare the edges that both executions have, in the order of `ours`.

    Raises ValueError when they have none in common, for then nothing would have been compared.
    """
    common = [name for name in ours if name in theirs]
    if not common:
        raise ValueError(f"compare_edges: expected common edges, got {sorted(ours)} and {sorted(theirs)}")
    return [compare_edge(name, ours[name], theirs[name], step=step, bound=bound) for name in common]


def worst_edge(differences: list[EdgeDifference]) -> EdgeDifference | None:
    """Return the first edge out of bound, else the one of the largest relative difference; None for no edges."""
    missed = next((difference for difference in differences if not difference.is_within_bound), None)
    return missed or max(differences, key=lambda difference: difference.relative_l2, default=None)


def compare_edge(edge: str, ours: Tensor, theirs: Tensor, *, step: int, bound: Bound) -> EdgeDifference:
    """Compare one edge; another shape or kind is a difference without bound."""
    is_float = ours.is_floating_point()
    if is_float != theirs.is_floating_point() or (is_float and ours.shape != theirs.shape):
        return _mismatch(edge, ours, step=step, bound=bound)
    if not is_float:
        return _compare_discrete(edge, ours, theirs, step=step, bound=bound)
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
    is_alike = ours.dtype == theirs.dtype
    # 0 and -0 are equal numbers and other bits
    is_bitwise = is_alike and bool((same & ((wide.signbit() == other.signbit()) | wide.isnan())).all())
    return EdgeDifference(
        edge=edge,
        step=step,
        dtype=_dtype_of(ours),
        shape=tuple(ours.shape),
        max_abs=float(apart.max()) if apart.numel() else 0.0,
        relative_l2=relative,
        worst_index=index,
        num_different=int((~same).sum()),
        is_bitwise_equal=is_bitwise,
        is_within_bound=is_bitwise if bound.is_bitwise else is_alike and relative <= bound.relative_l2,
        max_ulps=_max_ulps(ours, theirs) if is_alike else None,
        num_nan=(int(wide.isnan().sum()), int(other.isnan().sum())),
        num_inf=(int(wide.isinf().sum()), int(other.isinf().sum())),
        bound=bound.relative_l2,
        reason=bound.reason,
    )


def ulps_from_zero(tensor: Tensor) -> Tensor | None:
    """Return int64, how many numbers of its dtype each entry lies from 0, signed; None for a dtype not counted."""
    if tensor.dtype not in _BITS:
        return None
    bits = tensor.contiguous().view(_BITS[tensor.dtype]).long()
    lowest = torch.iinfo(_BITS[tensor.dtype]).min
    # the sign is a bit of its own: -0 is the lowest integer, and counts as 0
    return torch.where(bits < 0, lowest - bits, bits)


def _max_ulps(ours: Tensor, theirs: Tensor) -> int | None:
    left, right = ulps_from_zero(ours), ulps_from_zero(theirs)
    if left is None or right is None:
        return None
    between = (left - right).abs()[ours.isfinite() & theirs.isfinite()]
    return int(between.max()) if between.numel() else None


def _compare_discrete(edge: str, ours: Tensor, theirs: Tensor, *, step: int, bound: Bound) -> EdgeDifference:
    if ours.shape[:1] != theirs.shape[:1]:
        return _mismatch(edge, ours, step=step, bound=bound)
    pairs = [(_as_set(left), _as_set(right)) for left, right in zip(_rows(ours), _rows(theirs), strict=True)]
    differing = [row for row, (left, right) in enumerate(pairs) if left != right]
    left, right = pairs[differing[0]] if differing else (set[int](), set[int]())
    is_bitwise = ours.dtype == theirs.dtype and torch.equal(ours, theirs)
    return EdgeDifference(
        edge=edge,
        step=step,
        dtype=_dtype_of(ours),
        shape=tuple(ours.shape),
        max_abs=0.0,
        relative_l2=math.inf if differing else 0.0,
        worst_index=(differing[0],) if differing else (),
        num_different=len(differing),
        is_bitwise_equal=not differing,
        is_within_bound=is_bitwise if bound.is_bitwise else not differing,
        bound=bound.relative_l2,
        reason=bound.reason if bound.is_bitwise else "ids are exact: the same set in every row",
        only_ours=tuple(sorted(left - right))[:SHOWN_IDS],
        only_theirs=tuple(sorted(right - left))[:SHOWN_IDS],
    )


def _rows(ids: Tensor) -> list[list[int]]:
    return ids.reshape(ids.shape[0] if ids.dim() else 1, math.prod(ids.shape[1:])).tolist()


def _as_set(ids: list[int]) -> set[int]:
    return {item for item in ids if item >= 0}  # -1 pads


def _mismatch(edge: str, ours: Tensor, *, step: int, bound: Bound) -> EdgeDifference:
    """A shape or kind that differs is a difference without bound."""
    return EdgeDifference(
        edge=edge,
        step=step,
        dtype=_dtype_of(ours),
        shape=tuple(ours.shape),
        max_abs=math.inf,
        relative_l2=math.inf,
        worst_index=(),
        num_different=ours.numel(),
        is_bitwise_equal=False,
        is_within_bound=False,
        bound=bound.relative_l2,
        reason=f"{bound.reason}; another shape or kind is never within it",
    )


def _dtype_of(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
