"""Exact selection of the best, the lowest index first among equals, in forms that Inductor compiles well.

torch's topk promises no order among equals, and on a CPU topk and sort are calls out of the compiled loops that cost
more than they compute. For a few hundred scores counting is cheaper: an entry's rank is the number of entries that
beat it, and both counts below are reductions that fuse. For more, score and index are packed into one int64 that
orders as (score descending, index ascending), and any correct topk gives the one right answer.

Legend: n rows, m scores, k chosen. NaN counts as the largest score, as in torch.sort.
"""

import torch
from torch import Tensor

MAX_COUNTED = 512  # scores; the counts grow with their square
_INDEX_BITS = 24
_INDEX_MASK = (1 << _INDEX_BITS) - 1


def best_ascending(scores: Tensor, count: int) -> Tensor:
    """Return int64 [n, count]: the indices of the `count` best float32 scores [n, m], in ascending order."""
    if scores.shape[1] > MAX_COUNTED:
        return best_indices(scores, count).sort(dim=1).values
    index = torch.arange(scores.shape[1], device=scores.device)
    ordered = _ordered_bits(scores)
    beats = ordered.unsqueeze(1) > ordered.unsqueeze(2)  # [n, m, m]: does the last one beat the one before it
    ties_before = (ordered.unsqueeze(1) == ordered.unsqueeze(2)) & (index < index.unsqueeze(1))
    is_chosen = (beats | ties_before).sum(dim=2, dtype=torch.int32) < count
    return _compacted(is_chosen, count)


def best_indices(scores: Tensor, count: int) -> Tensor:
    """Return int64 [n, count]: the indices of the `count` best float32 scores [n, m], best first."""
    if scores.shape[1] > _INDEX_MASK:
        raise ValueError(f"best_indices: expected at most {_INDEX_MASK} scores, got {scores.shape[1]}")
    index = torch.arange(scores.shape[1], device=scores.device)
    packed = (_ordered_bits(scores).to(torch.int64) << _INDEX_BITS) | (_INDEX_MASK - index)
    return _INDEX_MASK - (torch.topk(packed, count, dim=1).values & _INDEX_MASK)


def _ordered_bits(scores: Tensor) -> Tensor:
    """Return int32 that orders as the float32 scores do: equal for equal scores, every NaN the largest."""
    # -0.0 and 0.0 are equal scores with two bit patterns
    canonical = torch.where(scores == 0, 0.0, torch.where(scores.isnan(), float("nan"), scores))
    bits = canonical.view(torch.int32)
    return torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


def _compacted(is_chosen: Tensor, count: int) -> Tensor:
    """Return int64 [n, count]: the indices where bool [n, m] holds, in order; there are exactly `count` of them."""
    index = torch.arange(is_chosen.shape[1], device=is_chosen.device, dtype=torch.int32)
    before = (is_chosen.unsqueeze(1) & (index < index.unsqueeze(1))).sum(dim=2, dtype=torch.int32)  # [n, m]
    place = torch.arange(count, device=is_chosen.device, dtype=torch.int32).unsqueeze(1)
    is_here = is_chosen.unsqueeze(1) & (before.unsqueeze(1) == place)  # [n, count, m]
    return torch.where(is_here, index, 0).sum(dim=2, dtype=torch.int32).to(torch.int64)
