"""SelectTopk: the best pools and the tail, as token positions."""

import torch
from torch import Tensor
from torch.nn import functional

from circuit import Cost, Count, Node, TensorType, f32, i64, total_bytes


class SelectTopk(Node):
    """Choose the `topk // pool` best complete pools of a row, expand them to tokens, and add the tail.

    The tail is the `v % pool` newest of the v = position + 1 visible tokens, the row's own included: on the row that
    completes a pool it is empty. The lowest pool wins a tie.

    Ports:    scores f32[n, P], -inf for a pool that may not be chosen - position i64[n]
    Result:   i64[n, (topk // pool) * pool + pool - 1]: chosen pools ascending, then -1; the tail, then -1
    Numerics: exact
    State:    none
    Source:   transformers glm5_next, Glm5NextTextIndexer: topk over pools, append_visible_tail
    """

    topk: Count
    pool: Count

    def infer(self, scores: TensorType, position: TensorType) -> TensorType:
        if scores.dtype != f32().dtype or len(scores.shape) != 2:
            raise self.reject("scores", scores, "f32[n, pools]")
        if position != i64(scores.shape[0]):
            raise self.reject("position", position, f"{i64(scores.shape[0])}")
        return i64(scores.shape[0], self.topk // self.pool * self.pool + self.pool - 1)

    def reference(self, scores: Tensor, position: Tensor) -> Tensor:
        num_pools = scores.shape[1]
        budget = self.topk // self.pool
        # a stable sort, since topk promises no order among equals
        best = torch.sort(scores, dim=1, descending=True, stable=True).indices[:, :budget]
        chosen = scores.gather(1, best) != float("-inf")
        pools = torch.where(chosen, best, num_pools).sort(dim=1).values  # the ones not chosen come last
        slots = torch.arange(self.pool, device=scores.device)
        tokens = pools.unsqueeze(2) * self.pool + slots
        tokens = torch.where(pools.unsqueeze(2) < num_pools, tokens, -1).flatten(1)
        tokens = functional.pad(tokens, (0, budget * self.pool - tokens.shape[1]), value=-1)
        visible = (position + 1).unsqueeze(1)
        tail = visible // self.pool * self.pool + slots[: self.pool - 1]
        return torch.cat([tokens, torch.where(tail < visible, tail, -1)], dim=1)

    def cost(self, scores: TensorType, position: TensorType) -> Cost:
        return Cost(scores.num_elements(), total_bytes(scores, position), self.infer(scores, position).num_bytes())
