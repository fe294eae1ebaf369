"""Increment: the next position of a chain."""

from torch import Tensor

from circuit import Cost, Node, TensorType, i64


class Increment(Node):
    """Add a constant to integers.

    Ports:    x i64[n]
    Result:   i64[n]
    Numerics: exact
    State:    none
    Source:   draft i+1 of a chain stands one row after draft i
    """

    by: int = 1

    def infer(self, x: TensorType) -> TensorType:
        if x.dtype != i64().dtype:
            raise self.reject("x", x, "an i64 tensor")
        return x

    def reference(self, x: Tensor) -> Tensor:
        return x + self.by

    def cost(self, x: TensorType) -> Cost:
        return Cost(bytes_read=x.num_bytes(), bytes_written=x.num_bytes())
