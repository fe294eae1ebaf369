"""Near-ties: a choice of tokens, experts or pools that two executions make differently, since it hangs on a rounding.

The margin is how far apart the oracle itself ranks what only it chose and what only the other side chose. In a narrow
dtype a margin of at most two of its steps is within what the scores' own roundings move; in float32 nothing is. Where
both sides have the same scores there was no rounding to hang on, and another choice is a fault.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from circuit import Call, Circuit, Value
from compiler.parity import EdgeDifference
from nodes import Argmax, ExtendSelection, SelectTopk, TopkRouter

NEAR_TIE_STEPS = 2
_MANTISSA_BITS = {torch.bfloat16: 7, torch.float16: 10}


def judge_near_tie(
    difference: EdgeDifference,
    circuit: Circuit,
    *,
    ours: Tensor,
    theirs: Tensor,
    oracle: Mapping[str, Tensor],
    dtype: torch.dtype,
    has_same_scores: bool,
    oracle_breaks_ties: bool = False,
) -> EdgeDifference:
    """Return a discrete edge's difference with the oracle's margin, accepted where every row of it is a near-tie.

    `theirs` is the oracle's choice, `oracle` its edges and weights by name; one that lacks the scores gives no margin.
    `dtype` is that in which the scores were made, the model's. `oracle_breaks_ties`: it chose among equals as it liked,
    so that a margin of 0 says nothing. Other edges, and equal ones, come back as they are.
    """
    call = circuit.value(difference.edge).call
    if not difference.num_different or ours.is_floating_point() or call is None or ours.shape[:1] != theirs.shape[:1]:
        return difference
    found = [
        _margin(call, oracle, row, set(left) - set(right) - {-1}, set(right) - set(left) - {-1})
        for row, (left, right) in enumerate(zip(_rows(ours), _rows(theirs), strict=True))
        if set(left) - {-1} != set(right) - {-1}
    ]
    margins = [margin for margin in found if margin is not None]
    if not margins or len(margins) < len(found):
        return difference
    worst, scale = max(margins)
    bound = near_tie_bound(scale, dtype)
    if oracle_breaks_ties and worst == 0:
        is_near, reason = True, "an exact tie, which the recorded oracle broke as it liked"
    elif has_same_scores:
        is_near, reason = False, f"the oracle's margin is {worst:.3g}, and both sides had the same scores"
    elif not bound:
        is_near, reason = False, f"the oracle's margin is {worst:.3g}; in this dtype ids must be equal"
    else:
        is_near = all(margin <= near_tie_bound(scale, dtype) for margin, scale in margins)
        reason = f"the oracle's margin is {worst:.3g}, near-ties are accepted up to {bound:.3g}"
    return replace(
        difference,
        margin=worst,
        is_near_tie=is_near,
        is_within_bound=difference.is_within_bound or is_near,
        reason=reason,
    )


def scores_of(call: Call) -> Value | None:
    """Return what a call chooses by: logits, pool scores or router logits; None for a call that chooses nothing."""
    if isinstance(call.node, ExtendSelection):
        maker = call.args[0].call
        return None if maker is None else scores_of(maker)
    return call.args[0] if isinstance(call.node, Argmax | SelectTopk | TopkRouter) else None


def near_tie_bound(scale: float, dtype: torch.dtype) -> float:
    """Return two steps of a narrow dtype at `scale`, the largest score; 0 for a dtype in which ids must be equal."""
    if dtype not in _MANTISSA_BITS or scale == 0:
        return 0.0
    return NEAR_TIE_STEPS * 2.0 ** (math.floor(math.log2(scale)) - _MANTISSA_BITS[dtype])


def _margin(
    call: Call, oracle: Mapping[str, Tensor], row: int, only_ours: set[int], only_theirs: set[int]
) -> tuple[float, float] | None:
    """The widest gap that the other choice bridges, and the largest score of the row."""
    node, args = call.node, [arg.name for arg in call.args]
    if isinstance(node, ExtendSelection):
        maker = call.args[0].call
        return None if maker is None else _margin(maker, oracle, row, only_ours, only_theirs)
    if not isinstance(node, Argmax | SelectTopk | TopkRouter) or any(name not in oracle for name in args[:1]):
        return None
    scores = oracle[args[0]][row]
    if isinstance(node, TopkRouter):
        if args[1] not in oracle:
            return None
        scores = scores.sigmoid() + oracle[args[1]]
        if node.n_group > 1:
            return _grouped_margin(node, scores, only_ours, only_theirs)
    if isinstance(node, SelectTopk):
        only_ours, only_theirs = ({token // node.pool for token in ids} for ids in (only_ours, only_theirs))
    return _gap(scores, only_ours, only_theirs)


def _grouped_margin(
    node: TopkRouter, scores: Tensor, only_ours: set[int], only_theirs: set[int]
) -> tuple[float, float] | None:
    """Where an expert comes from a group that the oracle left out, the gap is between groups."""
    size = scores.shape[0] // node.n_group
    groups = scores.view(node.n_group, size).topk(2, dim=1).values.sum(1)
    best = groups.sort(descending=True, stable=True).indices[: node.topk_group].tolist()
    outside = {expert // size for expert in only_ours} - set(best)
    if not outside:
        return _gap(scores, only_ours, only_theirs)
    return float(groups[best].min() - groups[list(outside)].min()), float(groups.abs().max())


def _gap(scores: Tensor, only_ours: set[int], only_theirs: set[int]) -> tuple[float, float] | None:
    size = scores.shape[0]
    # another number of choices is no question of rank
    if len(only_ours) != len(only_theirs) or any(not 0 <= place < size for place in only_ours | only_theirs):
        return None
    scores = scores.double()
    gap = float(scores[list(only_theirs)].max() - scores[list(only_ours)].min())
    finite = scores[scores.isfinite()]
    return (gap, float(finite.abs().max())) if math.isfinite(gap) and finite.numel() else None


def _rows(ids: Tensor) -> list[list[int]]:
    return ids.reshape(ids.shape[0] if ids.dim() else 1, -1).tolist()
