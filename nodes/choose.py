"""Choose: per row, one of two values."""

import torch
from torch import Tensor

from circuit import Cost, Node, TensorType, total_bytes


class Choose(Node):
    """Take, per row, the first value where the condition holds and the second where it does not.

    Ports:    condition bool[n] - chosen T[n, ...] - other T[n, ...]
    Result:   T[n, ...]
    Numerics: exact; what is not taken may hold anything, NaN too
    State:    none
    Source:   the first draft of a chain takes what the target made, those after it what the draft before made
    """

    def infer(self, condition: TensorType, chosen: TensorType, other: TensorType) -> TensorType:
        if not chosen.shape:
            raise self.reject("chosen", chosen, "a tensor of rows")
        if condition.dtype != torch.bool or condition.shape != chosen.shape[:1]:
            raise self.reject("condition", condition, f"bool[{chosen.shape[0]}]")
        if other != chosen:
            raise self.reject("other", other, f"{chosen} like chosen")
        return chosen

    def reference(self, condition: Tensor, chosen: Tensor, other: Tensor) -> Tensor:
        return torch.where(condition.view(-1, *[1] * (chosen.dim() - 1)), chosen, other)

    def cost(self, condition: TensorType, chosen: TensorType, other: TensorType) -> Cost:
        return Cost(bytes_read=total_bytes(condition, chosen), bytes_written=chosen.num_bytes())
