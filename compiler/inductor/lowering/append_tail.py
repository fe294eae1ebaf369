"""AppendTail on a CPU: in place, since the memory plan gives both versions of a state one buffer."""

import torch
from torch import Tensor
from torch.nn import functional

from compiler.registry import BITWISE, lowers
from nodes import AppendTail


@lowers(AppendTail, backend="inductor", numerics=BITWISE)
def lower_append_tail(
    node: AppendTail, tail: Tensor, keys: Tensor, gates: Tensor, position: Tensor, sequence: Tensor
) -> Tensor:
    """Write the rows and return the same tensor; a run no longer than the ring cannot overwrite its own rows."""
    depth, num_rows = tail.shape[1], sequence.shape[0]
    target = sequence
    if num_rows > depth:
        successor = functional.pad(sequence[depth:], (0, depth), value=-1)
        target = torch.where(successor == sequence, 0, sequence)
    tail.index_put_((target, position % depth), torch.stack([keys, gates], dim=1))
    return tail
