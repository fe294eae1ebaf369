"""Slice: some columns of a wider row."""

from torch import Tensor

from circuit import Cost, Count, Node, NonNegative, TensorType


class Slice(Node):
    """Take `width` columns of the last dim, from column `start` on.

    Ports:    x T[..., d]
    Result:   T[..., width]
    Numerics: exact, a view
    State:    none
    Source:   the parts of a product over weights that were laid one under the other
    """

    start: NonNegative
    width: Count

    def infer(self, x: TensorType) -> TensorType:
        end = self.start + self.width
        if not x.shape or (x.shape[-1].is_Integer and int(x.shape[-1]) < end):
            raise self.reject("x", x, f"a last dim of at least {end}")
        return x.with_shape(*x.shape[:-1], self.width)

    def reference(self, x: Tensor) -> Tensor:
        return x.narrow(-1, self.start, self.width)

    def cost(self, x: TensorType) -> Cost:
        return Cost()
