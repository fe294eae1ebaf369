"""LocalExperts: this rank's part of the chosen experts' feed-forward."""

import torch
from torch import Tensor
from torch.nn import functional

from circuit import Cost, Count, Node, NonNegative, TensorType, f32, i64, total_bytes


class LocalExperts(Node):
    """Run each row through those of its experts that this rank holds, and sum the results times the router's weights.

    An expert that is not here is skipped and adds exact zeros, so that the sum over ranks is that of RoutedExperts.

    Ports:    x T[n, hidden] - ids i64[n, k], ascending, of all experts - weights f32[n, k] - gate_up
              T[held, 2*inter, hidden], gate rows first, of the experts from `first` on - down T[held, hidden, inter]
    Result:   T[n, hidden]; zeros for a row none of whose experts are here
    Numerics: gate_up, swiglu (see Swiglu) and down each rounded to T; weighted and summed in float32 in the order of
              ids, rounded once to T. Experts that no row chose may hold anything, NaN too
    State:    none
    Source:   expert parallelism by ranges of experts; see RoutedExperts for the whole
    """

    limit: float
    first: NonNegative
    num_experts: Count

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
            raise self.reject("down", down, f"{x.with_shape('held', x.shape[1], 'inter')}")
        if gate_up != x.with_shape(down.shape[0], 2 * down.shape[2], x.shape[1]):
            raise self.reject("gate_up", gate_up, f"{x.with_shape(down.shape[0], 2 * down.shape[2], x.shape[1])}")
        held = down.shape[0]
        if held.is_Integer and self.first + int(held) > self.num_experts:
            raise self.reject("down", down, f"at most {self.num_experts - self.first} experts from {self.first} on")
        return x

    def reference(self, x: Tensor, ids: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
        total = torch.zeros_like(x, dtype=torch.float32)
        num_held = down.shape[0]
        if num_held == 0:
            return total.to(x.dtype)
        local = ids - self.first
        is_here = (local >= 0) & (local < num_held)
        # one that is elsewhere reads some expert, and what that gives is replaced, not multiplied by 0
        place = local.clamp(0, num_held - 1)
        gate, up = torch.matmul(gate_up[place], x[:, None, :, None]).squeeze(-1).chunk(2, dim=-1)  # [n, k, inter]
        active = functional.silu(gate.clamp(max=self.limit)) * up.clamp(min=-self.limit, max=self.limit)
        expert_out = torch.matmul(down[place], active.unsqueeze(-1)).squeeze(-1)  # [n, k, hidden]
        for choice in range(ids.shape[1]):
            weighted = expert_out[:, choice] * weights[:, choice, None]  # float32, as the weights are
            total = total + weighted.masked_fill(~is_here[:, choice, None], 0.0)
        return total.to(x.dtype)

    def cost(self, x: TensorType, ids: TensorType, weights: TensorType, gate_up: TensorType, down: TensorType) -> Cost:
        num_rows, top_k = ids.sizes()
        num_held, hidden, inter = down.sizes()
        # of uniform routing, as in RoutedExperts
        distinct = num_held * (1.0 - (1.0 - top_k / self.num_experts) ** num_rows)
        expert_bytes = total_bytes(gate_up, down) // max(num_held, 1)
        read = round(distinct * expert_bytes) + total_bytes(x, ids, weights)
        flops = round(6 * num_rows * top_k * hidden * inter * num_held / self.num_experts)
        return Cost(flops, read, x.num_bytes())
