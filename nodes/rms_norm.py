"""RmsNorm: the only place that says what RMS normalisation is."""

import torch
from torch import Tensor

from circuit import Cost, Node, TensorType, total_bytes


class RmsNorm(Node):
    """Divide by the root of the mean square over the last dim, then multiply by the gain.

    Ports:    x T[..., d] - weight T[d]
    Result:   T[..., d]
    Numerics: statistics in float32; the normalised value is rounded to T before the gain, the product to T
    State:    none
    Source:   transformers glm5_next, Glm5NextTextRMSNorm
    """

    eps: float

    def infer(self, x: TensorType, weight: TensorType) -> TensorType:
        if not x.dtype.is_floating_point or not x.shape:
            raise self.reject("x", x, "a floating point tensor of at least one dim")
        if weight != x.with_shape(*x.shape[-1:]):
            raise self.reject("weight", weight, f"{x.with_shape(*x.shape[-1:])}, like x's last dim")
        return x

    def reference(self, x: Tensor, weight: Tensor) -> Tensor:
        wide = x.float()
        inverse_rms = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return weight * (wide * inverse_rms).to(x.dtype)

    def cost(self, x: TensorType, weight: TensorType) -> Cost:
        return Cost(4 * x.num_elements(), total_bytes(x, weight), x.num_bytes())
