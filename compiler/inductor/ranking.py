"""Exact top-k with the lowest index first among equals, out of a topk that promises no order.

Score and index are packed into one int64 that orders as (score descending, index ascending): unequal numbers, so any
correct topk gives the one right answer.
"""

import torch
from torch import Tensor

_INDEX_BITS = 24
_INDEX_MASK = (1 << _INDEX_BITS) - 1


def best_indices(scores: Tensor, count: int) -> Tensor:
    """Return int64 [n, count], the best of float32 scores [n, m]; NaN counts as the largest, as in torch.sort."""
    if scores.shape[1] > _INDEX_MASK:
        raise ValueError(f"best_indices: expected at most {_INDEX_MASK} scores, got {scores.shape[1]}")
    # -0.0 and 0.0 are equal scores with two bit patterns; every NaN is one value
    canonical = torch.where(scores == 0, 0.0, torch.where(scores.isnan(), float("nan"), scores))
    bits = canonical.view(torch.int32).to(torch.int64)
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    index = torch.arange(scores.shape[1], device=scores.device)
    packed = (ordered << _INDEX_BITS) | (_INDEX_MASK - index)
    return _INDEX_MASK - (torch.topk(packed, count, dim=1).values & _INDEX_MASK)
