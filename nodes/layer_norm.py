"""LayerNorm: mean and variance over the last dim, with gain and bias."""

from torch import Tensor
from torch.nn import functional

from circuit import Cost, Node, TensorType, total_bytes


class LayerNorm(Node):
    """Subtract the mean, divide by the standard deviation over the last dim, multiply by the gain, add the bias.

    Ports:    x T[..., d] - weight T[d] - bias T[d]
    Result:   T[..., d]
    Numerics: as torch's layer_norm: statistics and affine step in float32, rounded once to T
    State:    none
    Source:   transformers glm5_next, the indexer's k_norm (an nn.LayerNorm of eps 1e-6, unlike the RMS norms around it)
    """

    eps: float

    def infer(self, x: TensorType, weight: TensorType, bias: TensorType) -> TensorType:
        if not x.dtype.is_floating_point or not x.shape:
            raise self.reject("x", x, "a floating point tensor of at least one dim")
        for port, given in (("weight", weight), ("bias", bias)):
            if given != x.with_shape(*x.shape[-1:]):
                raise self.reject(port, given, f"{x.with_shape(*x.shape[-1:])}, like x's last dim")
        return x

    def reference(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return functional.layer_norm(x, x.shape[-1:], weight, bias, self.eps)

    def cost(self, x: TensorType, weight: TensorType, bias: TensorType) -> Cost:
        return Cost(8 * x.num_elements(), total_bytes(x, weight, bias), x.num_bytes())
