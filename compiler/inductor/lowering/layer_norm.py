"""LayerNorm on a CPU."""

import torch
from torch import Tensor

from compiler.registry import lowers, tolerance
from nodes import LayerNorm


@lowers(LayerNorm, backend="inductor", numerics=tolerance(1e-5, "mean and variance are summed in another order"))
def lower_layer_norm(node: LayerNorm, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Two plain passes: Inductor's own variance takes another algorithm for other numbers of rows, with other bits."""
    wide = x.float()
    centred = wide - wide.mean(dim=-1, keepdim=True)
    variance = (centred * centred).mean(dim=-1, keepdim=True)
    normed = centred * torch.rsqrt(variance + node.eps)
    return (normed * weight.float() + bias.float()).to(x.dtype)
