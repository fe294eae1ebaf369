"""CertifiedLinear: a matrix product, with what says in eight bits which of its outputs cannot be the largest."""

import torch
from torch import Tensor
from torch.nn import functional

from circuit import Cost, Node, TensorType, f32, total_bytes


class CertifiedLinear(Node):
    """Multiply the last dim by the transposed weight, as Linear does; the other ports change no value.

    Whoever needs the largest output alone may read the rows in eight bits, leave out those that cannot win by `error`,
    and read of `weight` only the rest; docs/numerics.md proves that the choice is the same.

    Ports:    x T[..., in] - weight T[out, in] - rows i8[out, in] - scale f32[out] - error f32[out]
    Result:   T[..., out]
    Numerics: those of Linear
    State:    none
    Source:   compiler/passes/certify_products.py; the lever draft_head=int8_certified
    """

    def infer(
        self, x: TensorType, weight: TensorType, rows: TensorType, scale: TensorType, error: TensorType
    ) -> TensorType:
        if not x.dtype.is_floating_point or not x.shape:
            raise self.reject("x", x, "a floating point tensor of at least one dim")
        if len(weight.shape) != 2 or weight.shape[1] != x.shape[-1] or weight.dtype != x.dtype:
            raise self.reject("weight", weight, f"{x.with_shape('out', x.shape[-1])} to match x {x}")
        if rows != TensorType.of(torch.int8, *weight.shape):
            raise self.reject("rows", rows, f"{TensorType.of(torch.int8, *weight.shape)} like the weight")
        for port, given in (("scale", scale), ("error", error)):
            if given != f32(weight.shape[0]):
                raise self.reject(port, given, f"{f32(weight.shape[0])}, one per row of the weight")
        return x.with_shape(*x.shape[:-1], weight.shape[0])

    def reference(self, x: Tensor, weight: Tensor, rows: Tensor, scale: Tensor, error: Tensor) -> Tensor:
        return functional.linear(x, weight)

    def cost(self, x: TensorType, weight: TensorType, rows: TensorType, scale: TensorType, error: TensorType) -> Cost:
        out = self.infer(x, weight, rows, scale, error)
        # rows of the weight that could win are few and known on the device alone: none is counted
        flops = 2 * out.num_elements() * int(x.sizes()[-1])
        return Cost(flops, total_bytes(x, rows, scale, error), out.num_bytes())
