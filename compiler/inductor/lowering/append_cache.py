"""AppendCache on a CPU: in place, since the memory plan gives both versions of a state one buffer."""

import torch
from torch import Tensor

from compiler.registry import BITWISE, lowers
from nodes import AppendCache


@lowers(AppendCache, backend="inductor", numerics=BITWISE)
def lower_append_cache(node: AppendCache, cache: Tensor, rows: Tensor, slots: Tensor) -> Tensor:
    """Write the rows and return the same tensor."""
    target = torch.where(slots < 0, 0, slots)
    cache.view(-1, cache.shape[2]).index_put_((target,), rows)
    return cache
