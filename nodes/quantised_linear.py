"""QuantisedLinear: a matrix product with a weight in eight bits and a scale per row."""

import torch
from torch import Tensor
from torch.nn import functional

from circuit import Cost, Node, TensorType, f32, total_bytes


class QuantisedLinear(Node):
    """Multiply the last dim by the transposed eight-bit weight, each output by its row's scale.

    Ports:    x T[..., in] - weight i8[out, in] - scale f32[out]
    Result:   T[..., out]
    Numerics: products with the eight-bit integers accumulated in float32, scaled in float32, rounded once to T
    State:    none
    Source:   symmetric quantisation per output row, compiler/quantised_rows.py; the lever draft_head=int8
    """

    def infer(self, x: TensorType, weight: TensorType, scale: TensorType) -> TensorType:
        if not x.dtype.is_floating_point or not x.shape:
            raise self.reject("x", x, "a floating point tensor of at least one dim")
        if weight.dtype != torch.int8 or len(weight.shape) != 2 or weight.shape[1] != x.shape[-1]:
            raise self.reject("weight", weight, f"{TensorType.of(torch.int8, 'out', x.shape[-1])} to match x {x}")
        if scale != f32(weight.shape[0]):
            raise self.reject("scale", scale, f"{f32(weight.shape[0])}, one per row of the weight")
        return x.with_shape(*x.shape[:-1], weight.shape[0])

    def reference(self, x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
        return (functional.linear(x.float(), weight.float()) * scale).to(x.dtype)

    def cost(self, x: TensorType, weight: TensorType, scale: TensorType) -> Cost:
        out = self.infer(x, weight, scale)
        flops = (2 * int(x.sizes()[-1]) + 1) * out.num_elements()
        return Cost(flops, total_bytes(x, weight, scale), out.num_bytes())
