"""RoutedExperts on a CPU."""

import torch
from torch import Tensor
from torch.nn import functional

from compiler.inductor.realize import realize
from compiler.registry import lowers, tolerance
from nodes import RoutedExperts


@lowers(RoutedExperts, backend="inductor", numerics=tolerance(1e-5, "sums over hidden and inter in another order"))
def lower_routed_experts(
    node: RoutedExperts, x: Tensor, ids: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor
) -> Tensor:
    """Index the experts inside the sums: Inductor fuses the gather with the reduction, so no expert is copied."""
    wide = realize(x)
    num_rows = x.shape[0]
    gate_ups = [(gate_up[ids[row]].float() * wide[row]).sum(-1) for row in range(num_rows)]  # [k, 2*inter] each
    gate, up = torch.stack(gate_ups).to(x.dtype).chunk(2, dim=-1)
    active = functional.silu(gate.clamp(max=node.limit)) * up.clamp(min=-node.limit, max=node.limit)
    held = realize(active)
    downs = [(down[ids[row]].float() * held[row].unsqueeze(1)).sum(-1) for row in range(num_rows)]  # [k, hidden] each
    expert_out = torch.stack(downs).to(x.dtype).float()
    total = expert_out[:, 0] * weights[:, 0, None]
    for choice in range(1, ids.shape[1]):
        total = total + expert_out[:, choice] * weights[:, choice, None]
    return total.to(x.dtype)
