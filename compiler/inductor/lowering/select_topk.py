"""SelectTopk on a CPU."""

import torch
from torch import Tensor
from torch.nn import functional

from compiler.inductor.ranking import best_ascending
from compiler.registry import BITWISE, lowers
from nodes import SelectTopk


@lowers(SelectTopk, backend="inductor", numerics=BITWISE)
def lower_select_topk(node: SelectTopk, scores: Tensor, position: Tensor) -> Tensor:
    """As the reference, by exact ranking; where the budget covers every pool, scores are not read at all."""
    num_rows, num_pools = scores.shape
    budget = node.topk // node.pool
    slots = torch.arange(node.pool, device=scores.device)
    visible = (position + 1).unsqueeze(1)
    if num_pools <= budget:
        pools = torch.arange(num_pools, device=scores.device).expand(num_rows, num_pools)
        is_chosen = (pools + 1) * node.pool <= visible
    else:
        # a pool is chosen where it is complete; those that are not score -inf, and stand behind all that are
        pools = best_ascending(scores, budget)
        is_chosen = (pools + 1) * node.pool <= visible
    tokens = pools.unsqueeze(2) * node.pool + slots
    tokens = torch.where(is_chosen.unsqueeze(2), tokens, -1).flatten(1)
    tokens = functional.pad(tokens, (0, budget * node.pool - tokens.shape[1]), value=-1)
    tail = visible // node.pool * node.pool + slots[: node.pool - 1]
    return torch.cat([tokens, torch.where(tail < visible, tail, -1)], dim=1)
