"""AllGather: the columns that several ranks hold, side by side on all of them."""

from typing import Literal

from torch import Tensor

from circuit import Cost, Count, Node, TensorType, communicator_over


class AllGather(Node):
    """Join the last dims of all ranks along an axis, in the order of ranks; with one rank, return the tensor as it is.

    Ports:    x T[..., d], this rank's columns; every rank has as many
    Result:   T[..., num_ranks*d], the same bytes on every rank
    Numerics: exact
    State:    none
    Source:   column-parallel products whose reader needs all of them, as a softmax over the vocabulary does
    """

    exchange = "all_gather"
    axis: Literal["tp", "ep"]
    num_ranks: Count

    def infer(self, x: TensorType) -> TensorType:
        if not x.dtype.is_floating_point or not x.shape:
            raise self.reject("x", x, "a floating point tensor of at least one dim")
        return x.with_shape(*x.shape[:-1], self.num_ranks * x.shape[-1])

    def reference(self, x: Tensor) -> Tensor:
        if self.num_ranks == 1:
            return x
        parts = communicator_over(self.axis, self.num_ranks, where=str(self)).all_gather(x)  # [ranks, ..., d]
        return parts.movedim(0, -2).reshape(*x.shape[:-1], self.num_ranks * x.shape[-1])

    def payload(self, x: TensorType) -> TensorType:
        return x

    def cost(self, x: TensorType) -> Cost:
        sent = (self.num_ranks - 1) * x.num_bytes()
        return Cost(0, x.num_bytes(), self.infer(x).num_bytes(), sent)
