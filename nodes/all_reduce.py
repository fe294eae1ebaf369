"""AllReduce: the parts of a sum that several ranks hold, added up on all of them."""

from typing import Literal

from torch import Tensor

from circuit import Cost, Count, Node, TensorType, communicator_over


class AllReduce(Node):
    """Add up the tensors of all ranks along an axis; with one rank, return the tensor as it is.

    Ports:    x T[...], this rank's part of the sum
    Result:   T[...], the same bytes on every rank
    Numerics: summed in T, in the order of the communicator's library, one rounding or more
    State:    none
    Source:   row-parallel products and expert parallelism: Megatron-LM (Shoeybi et al., 2019), section 3
    """

    exchange = "all_reduce"
    axis: Literal["tp", "ep"]
    num_ranks: Count

    def infer(self, x: TensorType) -> TensorType:
        if not x.dtype.is_floating_point or not x.shape:
            raise self.reject("x", x, "a floating point tensor of at least one dim")
        return x

    def reference(self, x: Tensor) -> Tensor:
        if self.num_ranks == 1:
            return x
        return communicator_over(self.axis, self.num_ranks, where=str(self)).all_reduce(x)

    def payload(self, x: TensorType) -> TensorType:
        return x

    def cost(self, x: TensorType) -> Cost:
        # a ring sends every part twice, but for one rank's share of it
        sent = 2 * (self.num_ranks - 1) * x.num_bytes() // self.num_ranks
        return Cost((self.num_ranks - 1) * x.num_elements(), x.num_bytes(), x.num_bytes(), sent)
