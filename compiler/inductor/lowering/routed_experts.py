"""RoutedExperts on a CPU."""

import torch
from torch import Tensor
from torch.nn import functional

from compiler.inductor.bf16_products import bf16_expert_product
from compiler.inductor.products import CACHED_WEIGHT_BYTES, product_form
from compiler.inductor.realize import pin, realize
from compiler.registry import lowers, tolerance
from nodes import RoutedExperts


@lowers(RoutedExperts, backend="inductor", numerics=tolerance(1e-5, "sums over hidden and inter in another order"))
def lower_routed_experts(
    node: RoutedExperts, x: Tensor, ids: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor
) -> Tensor:
    """Index the experts inside the sums: Inductor fuses the gather with the reduction, so no expert is copied.

    Several rows go through large experts in the order of the experts, so that one that two rows chose is read once.
    """
    num_rows, top_k = ids.shape
    if product_form(num_rows=num_rows, dtype=gate_up.dtype, weight_bytes=gate_up.nbytes) == "native":
        made = _native_experts(node, x, ids.flatten(), gate_up, down)
    elif num_rows > 1 and gate_up.nbytes > CACHED_WEIGHT_BYTES:
        order = torch.argsort(ids.flatten(), stable=True)
        place = pin(torch.empty_like(order).scatter(0, order, torch.arange(num_rows * top_k, device=ids.device)))
        expert, row = pin(ids.flatten()[order]), pin(order // top_k)
        made = _experts(node, x, expert, row, gate_up, down)[place]
    else:
        row = torch.arange(num_rows, device=ids.device).repeat_interleave(top_k)
        made = _experts(node, x, pin(ids.flatten()), row, gate_up, down)
    expert_out = made.view(num_rows, top_k, -1).float()
    total = expert_out[:, 0] * weights[:, 0, None]
    for choice in range(1, top_k):
        total = total + expert_out[:, choice] * weights[:, choice, None]
    return total.to(x.dtype)


def _native_experts(node: RoutedExperts, x: Tensor, expert: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """Return [p, hidden] as `_experts`, of rows that each have as many pairs, one after the other."""
    gate, up = bf16_expert_product(x, expert, gate_up).chunk(2, dim=-1)
    return bf16_expert_product(_activated(node, gate, up), expert, down)


def _experts(node: RoutedExperts, x: Tensor, expert: Tensor, row: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """Return [p, hidden]: row `row[i]` of x through expert `expert[i]`, for each of the p pairs."""
    wide = realize(x)
    gate, up = (gate_up[expert].float() * wide[row].unsqueeze(1)).sum(-1).to(x.dtype).chunk(2, dim=-1)
    held = realize(_activated(node, gate, up))
    return (down[expert].float() * held.unsqueeze(1)).sum(-1).to(x.dtype)


def _activated(node: RoutedExperts, gate: Tensor, up: Tensor) -> Tensor:
    return functional.silu(gate.clamp(max=node.limit)) * up.clamp(min=-node.limit, max=node.limit)
