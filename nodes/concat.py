"""Concat: two tensors side by side."""

import torch
from torch import Tensor

from circuit import Cost, Node, TensorType, total_bytes


class Concat(Node):
    """Join two tensors along the last dim, `left` first.

    Ports:    left T[..., a] - right T[..., b]
    Result:   T[..., a + b]
    Numerics: exact copy
    State:    none
    Source:   the input of eh_proj: the embedding half stands first
    """

    def infer(self, left: TensorType, right: TensorType) -> TensorType:
        if not left.shape:
            raise self.reject("left", left, "a tensor of at least one dim")
        if right.dtype != left.dtype or right.shape[:-1] != left.shape[:-1] or len(right.shape) != len(left.shape):
            raise self.reject("right", right, f"{left} up to the last dim, like left")
        return left.with_shape(*left.shape[:-1], left.shape[-1] + right.shape[-1])

    def reference(self, left: Tensor, right: Tensor) -> Tensor:
        return torch.cat([left, right], dim=-1)

    def cost(self, left: TensorType, right: TensorType) -> Cost:
        return Cost(bytes_read=total_bytes(left, right), bytes_written=total_bytes(left, right))
