"""Exact selection of the best, the lowest index first among equals, in forms that Inductor compiles well.

torch's topk promises no order among equals, and on a CPU topk and sort are calls out of the compiled loops that cost
more than they compute. For a few hundred scores counting is cheaper: an entry's rank is the number of entries that
beat it, and both counts below are reductions that fuse. For more, score and index are packed into one int64 that
orders as (score descending, index ascending), and any correct topk gives the one right answer.

Legend: n rows, m scores, k chosen. NaN counts as the largest score, as in torch.sort.
"""

import torch
from torch import Tensor
from torch.nn import functional

from compiler.inductor.realize import pin

MAX_COUNTED = 512  # scores; the counts grow with their square
_BLOCK = 16
_INDEX_BITS = 24
_INDEX_MASK = (1 << _INDEX_BITS) - 1


def best_ascending(scores: Tensor, count: int) -> Tensor:
    """Return int64 [n, count]: the indices of the `count` best float32 scores [n, m], in ascending order."""
    if scores.shape[1] > MAX_COUNTED:
        return best_indices(scores, count).sort(dim=1).values
    # buffers of their own: else each of the m*m comparisons would make its operands again
    ordered, index = pin(_ordered_bits(scores)), _index(scores.shape[1], scores)
    # an earlier entry beats an equal one: it is held against one less. As arithmetic this is one comparison a pair,
    # where masks of two widths would be converted
    beats = ordered.unsqueeze(1) > ordered.unsqueeze(2) + (index - index.unsqueeze(1)).clamp(min=-1, max=0)
    is_chosen = _count(beats) < count
    return pin(_compacted(is_chosen, count))


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
    # counted in blocks, then within them: m*16 additions in place of m*m
    padded = functional.pad(is_chosen.float(), (0, -is_chosen.shape[1] % _BLOCK))
    blocks = pin(padded.unflatten(1, (-1, _BLOCK)))  # [n, b, 16]
    held = pin(blocks.sum(dim=2))  # [n, b]
    earlier = pin((held.unsqueeze(1) * _is_before(held.shape[1], held)).sum(dim=2))
    within = (blocks.unsqueeze(2) * _is_before(_BLOCK, held)).sum(dim=3)  # [n, b, 16]
    place = pin(torch.where(blocks == 1, earlier.unsqueeze(2) + within, -1).flatten(1))  # those not chosen: nowhere
    index = pin(torch.arange(place.shape[1], device=place.device, dtype=torch.float32))
    wanted = torch.arange(count, device=place.device, dtype=torch.float32).unsqueeze(1)
    return torch.where(place.unsqueeze(1) == wanted, index, 0.0).sum(dim=2).to(torch.int64)


def _count(holds: Tensor) -> Tensor:
    """Return float32: how often it holds along the last dim. An integer's sum across vector lanes is slow."""
    return torch.where(holds, 1.0, 0.0).sum(dim=-1)


def _index(size: int, like: Tensor) -> Tensor:
    """Return int32 [size], counting up, in memory: computed in a loop it is int64, twice as wide as what it meets."""
    return pin(torch.arange(size, device=like.device, dtype=torch.int32))


def _is_before(size: int, like: Tensor) -> Tensor:
    """Return float32 [size, size], at [i, j] 1 where j stands before i, else 0."""
    return pin(torch.ones(size, size, device=like.device).tril(-1))
