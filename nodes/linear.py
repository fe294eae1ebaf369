"""Linear: a matrix product without bias."""

from torch import Tensor
from torch.nn import functional

from circuit import Cost, Node, TensorType, total_bytes


class Linear(Node):
    """Multiply the last dim by the transposed weight.

    Ports:    x T[..., in] - weight T[out, in]
    Result:   T[..., out]
    Numerics: products accumulated in float32 or wider, rounded once to T
    State:    none
    Source:   torch.nn.functional.linear; the checkpoint's projections have no bias
    """

    def infer(self, x: TensorType, weight: TensorType) -> TensorType:
        if not x.dtype.is_floating_point or not x.shape:
            raise self.reject("x", x, "a floating point tensor of at least one dim")
        if len(weight.shape) != 2 or weight.shape[1] != x.shape[-1] or weight.dtype != x.dtype:
            raise self.reject("weight", weight, f"{x.with_shape('out', x.shape[-1])} to match x {x}")
        return x.with_shape(*x.shape[:-1], weight.shape[0])

    def reference(self, x: Tensor, weight: Tensor) -> Tensor:
        return functional.linear(x, weight)

    def cost(self, x: TensorType, weight: TensorType) -> Cost:
        out = self.infer(x, weight)
        flops = 2 * out.num_elements() * int(x.sizes()[-1])
        return Cost(flops, total_bytes(x, weight), out.num_bytes())
