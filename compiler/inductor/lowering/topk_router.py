"""TopkRouter on a CPU."""

import torch
from torch import Tensor

from compiler.inductor.ranking import best_ascending
from compiler.registry import lowers, tolerance
from nodes import TopkRouter


@lowers(TopkRouter, backend="inductor", numerics=tolerance(1e-6, "sigmoid and the sum of weights are vectorised"))
def lower_topk_router(node: TopkRouter, logits: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """As the reference, by exact ranking in place of stable sorts."""
    scores = logits.sigmoid()
    choice = scores + bias
    if node.n_group > 1:
        choice = choice.masked_fill(~_in_best_groups(node, choice), float("-inf"))
    ids = best_ascending(choice, node.top_k)
    weights = scores.gather(1, ids)
    if node.norm_topk_prob:
        weights = weights / (weights.sum(dim=1, keepdim=True) + 1e-20)
    return ids, weights * node.scale


def _in_best_groups(node: TopkRouter, choice: Tensor) -> Tensor:
    num_rows, num_experts = choice.shape
    groups = choice.view(num_rows, node.n_group, num_experts // node.n_group)
    group_scores = groups.topk(2, dim=2).values.sum(dim=2)
    best = best_ascending(group_scores, node.topk_group)
    is_best = (best.unsqueeze(2) == torch.arange(node.n_group, device=choice.device)).any(dim=1)
    return is_best.unsqueeze(2).expand_as(groups).reshape(num_rows, num_experts)
