"""TopkRouter: which experts a row goes to, and with what weights."""

import torch
from torch import Tensor

from circuit import Cost, Count, Node, TensorType, f32, i64, total_bytes


class TopkRouter(Node):
    """Choose `top_k` experts by sigmoid score plus bias, weigh them by the score without the bias.

    With `n_group` > 1 only the `topk_group` best groups take part; a group scores the sum of its two best biased
    scores. The lowest index wins every tie, among groups and among experts.

    Ports:    logits f32[n, experts] - bias f32[experts], the checkpoint's e_score_correction_bias
    Result:   ids i64[n, top_k], ascending - weights f32[n, top_k], in the same order
    Numerics: all in float32; weights / (their sum + 1e-20) when `norm_topk_prob`, then times `scale`
    State:    none
    Source:   transformers glm5_next, Glm5NextTextTopkRouter
    """

    results = ("ids", "weights")
    top_k: Count
    n_group: Count
    topk_group: Count
    norm_topk_prob: bool
    scale: float

    def infer(self, logits: TensorType, bias: TensorType) -> tuple[TensorType, TensorType]:
        if logits.dtype != f32().dtype or len(logits.shape) != 2:
            raise self.reject("logits", logits, "f32[n, experts]")
        if bias != f32(logits.shape[1]):
            raise self.reject("bias", bias, f"{f32(logits.shape[1])}")
        if self.topk_group > self.n_group:
            raise self.reject("topk_group", self.topk_group, f"at most n_group {self.n_group}")
        num_experts = logits.shape[1]
        # a group scores by its two best experts, and the best groups must hold enough to choose from
        group_size = max(-(-self.top_k // self.topk_group), 2 if self.n_group > 1 else 1)
        if num_experts.is_Integer and (num_experts % self.n_group != 0 or num_experts < group_size * self.n_group):
            raise self.reject("logits", logits, f"{self.n_group} equal groups of at least {group_size} experts")
        return i64(logits.shape[0], self.top_k), f32(logits.shape[0], self.top_k)

    def reference(self, logits: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        scores = logits.sigmoid()
        choice = scores + bias
        if self.n_group > 1:
            choice = choice.masked_fill(~self._in_best_groups(choice), float("-inf"))
        ids = _best(choice, self.top_k).sort(dim=1).values
        weights = scores.gather(1, ids)
        if self.norm_topk_prob:
            weights = weights / (weights.sum(dim=1, keepdim=True) + 1e-20)
        return ids, weights * self.scale

    def _in_best_groups(self, choice: Tensor) -> Tensor:
        num_rows, num_experts = choice.shape
        groups = choice.view(num_rows, self.n_group, num_experts // self.n_group)
        group_scores = groups.topk(2, dim=2).values.sum(dim=2)
        best = _best(group_scores, self.topk_group)
        is_best = torch.zeros_like(group_scores, dtype=torch.bool).scatter(1, best, True)
        return is_best.unsqueeze(2).expand_as(groups).reshape(num_rows, num_experts)

    def cost(self, logits: TensorType, bias: TensorType) -> Cost:
        ids, weights = self.infer(logits, bias)
        return Cost(4 * logits.num_elements(), total_bytes(logits, bias), total_bytes(ids, weights))


def _best(scores: Tensor, count: int) -> Tensor:
    # a stable sort, since topk promises no order among equals
    return torch.sort(scores, dim=1, descending=True, stable=True).indices[:, :count]
