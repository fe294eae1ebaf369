"""Add: the residual sum."""

from torch import Tensor

from circuit import Cost, Node, TensorType, total_bytes


class Add(Node):
    """Add two tensors of one type.

    Ports:    left T[...] - right T[...]
    Result:   T[...]
    Numerics: one rounding to T
    State:    none
    Source:   the head's residuals are plain sums (no hyper-connections)
    """

    def infer(self, left: TensorType, right: TensorType) -> TensorType:
        if right != left:
            raise self.reject("right", right, f"{left} like left")
        return left

    def reference(self, left: Tensor, right: Tensor) -> Tensor:
        return left + right

    def cost(self, left: TensorType, right: TensorType) -> Cost:
        return Cost(left.num_elements(), total_bytes(left, right), left.num_bytes())
