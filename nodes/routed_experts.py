"""RoutedExperts: the chosen experts' feed-forward, summed by weight."""

import torch
from torch import Tensor
from torch.nn import functional

from circuit import Cost, Node, TensorType, f32, i64, total_bytes


class RoutedExperts(Node):
    """Run each row through its experts, down(swiglu(gate_up(x))), and sum the results times the router's weights.

    Ports:    x T[n, hidden] - ids i64[n, k], ascending - weights f32[n, k] - gate_up T[experts, 2*inter, hidden], gate
              rows first - down T[experts, hidden, inter]
    Result:   T[n, hidden]
    Numerics: gate_up, swiglu (see Swiglu) and down each rounded to T; weighted and summed in float32 in the order of
              ids, rounded once to T. Experts that no row chose may hold anything, NaN too
    State:    none
    Source:   transformers glm5_next, Glm5NextTextExperts; it rounds to T after each expert, here once
    """

    limit: float

    def infer(
        self, x: TensorType, ids: TensorType, weights: TensorType, gate_up: TensorType, down: TensorType
    ) -> TensorType:
        if not x.dtype.is_floating_point or len(x.shape) != 2:
            raise self.reject("x", x, "a floating point [n, hidden]")
        if ids.dtype != i64().dtype or len(ids.shape) != 2 or ids.shape[0] != x.shape[0]:
            raise self.reject("ids", ids, f"{i64(x.shape[0], 'k')}")
        if weights != f32(*ids.shape):
            raise self.reject("weights", weights, f"{f32(*ids.shape)} like ids")
        if down.dtype != x.dtype or len(down.shape) != 3 or down.shape[1] != x.shape[1]:
            raise self.reject("down", down, f"{x.with_shape('experts', x.shape[1], 'inter')}")
        if gate_up != x.with_shape(down.shape[0], 2 * down.shape[2], x.shape[1]):
            raise self.reject("gate_up", gate_up, f"{x.with_shape(down.shape[0], 2 * down.shape[2], x.shape[1])}")
        return x

    def reference(self, x: Tensor, ids: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
        gate, up = torch.matmul(gate_up[ids], x[:, None, :, None]).squeeze(-1).chunk(2, dim=-1)  # [n, k, inter]
        active = functional.silu(gate.clamp(max=self.limit)) * up.clamp(min=-self.limit, max=self.limit)
        expert_out = torch.matmul(down[ids], active.unsqueeze(-1)).squeeze(-1)  # [n, k, hidden]
        total = torch.zeros_like(x, dtype=torch.float32)
        for choice in range(ids.shape[1]):
            total = total + expert_out[:, choice].float() * weights[:, choice, None]
        return total.to(x.dtype)

    @staticmethod
    def expected_distinct(num_experts: int, top_k: int, num_rows: int) -> float:
        """Return how many experts `num_rows` rows touch on average when each draws its top_k uniformly.

        Real routers favour some experts, and rows of one text favour the same: they touch fewer.
        """
        return num_experts * (1.0 - (1.0 - top_k / num_experts) ** num_rows)

    def cost(self, x: TensorType, ids: TensorType, weights: TensorType, gate_up: TensorType, down: TensorType) -> Cost:
        num_rows, top_k = ids.sizes()
        num_experts, hidden, inter = down.sizes()
        distinct = self.expected_distinct(num_experts, top_k, num_rows)
        expert_bytes = total_bytes(gate_up, down) // num_experts
        read = round(distinct * expert_bytes) + total_bytes(x, ids, weights)
        return Cost(6 * num_rows * top_k * hidden * inter, read, x.num_bytes())
