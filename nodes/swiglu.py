"""Swiglu: the clamped gated activation of experts and shared expert."""

from torch import Tensor
from torch.nn import functional

from circuit import Cost, Node, TensorType, total_bytes


class Swiglu(Node):
    """Multiply silu(min(gate, limit)) by clamp(up, -limit, limit).

    Ports:    gate T[..., d] - up T[..., d]
    Result:   T[..., d]
    Numerics: silu in float32 rounded to T, the product rounded to T; gate is clamped from above only, up on both sides
    State:    none
    Source:   transformers glm5_next, Glm5NextTextMLP with swiglu_limit
    """

    limit: float

    def infer(self, gate: TensorType, up: TensorType) -> TensorType:
        if not gate.dtype.is_floating_point:
            raise self.reject("gate", gate, "a floating point tensor")
        if up != gate:
            raise self.reject("up", up, f"{gate} like gate")
        return gate

    def reference(self, gate: Tensor, up: Tensor) -> Tensor:
        return functional.silu(gate.clamp(max=self.limit)) * up.clamp(min=-self.limit, max=self.limit)

    def cost(self, gate: TensorType, up: TensorType) -> Cost:
        return Cost(6 * gate.num_elements(), total_bytes(gate, up), gate.num_bytes())
