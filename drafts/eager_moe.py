"""The eager head's mixture of experts: sigmoid router with a selection bias, routed experts, one shared expert.

Shape letters: n rows, E experts, K chosen experts, I inner width.
Source: transformers 5.24, Glm5NextTextMoE, with the routed sum kept wide and rounded once.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from drafts.config import DraftConfig
from drafts.eager_attention import Edges, widen
from drafts.eager_shard import EagerShard


class EagerMoe(nn.Module):
    """Routed experts plus the shared one, [n, hidden] to [n, hidden]; weights of experts never chosen are not read."""

    router: Tensor  # float32 [E, hidden]
    e_score_correction_bias: Tensor  # float32 [E]
    gate_up_proj: Tensor  # [E, 2I, hidden], the gate's rows first
    down_proj: Tensor  # [E, hidden, I]
    shared_gate_proj: Tensor
    shared_up_proj: Tensor
    shared_down_proj: Tensor

    def __init__(self, config: DraftConfig, weights: Mapping[str, Tensor], shard: EagerShard | None = None) -> None:
        super().__init__()
        self.config = config
        self.shard = shard
        self.register_buffer("router", weights["mlp.gate.weight"])
        self.register_buffer("e_score_correction_bias", weights["mlp.gate.e_score_correction_bias"])
        self.register_buffer("gate_up_proj", weights["mlp.experts.gate_up_proj"])
        self.register_buffer("down_proj", weights["mlp.experts.down_proj"])
        for name in ("gate_proj", "up_proj", "down_proj"):
            self.register_buffer(f"shared_{name}", weights[f"mlp.shared_experts.{name}"])

    def forward(self, x: Tensor, edges: Edges) -> Tensor:
        """Return routed + shared; router_logits, router_ids and router_weights are left in `edges`."""
        ids, weights = self.route(x, edges)
        routed = self.run_experts(x, ids, weights)
        if self.shard is not None:
            # once, before the shared expert: every rank has that one
            routed = self.shard.add_up_experts(routed)
        shared = self._swiglu(
            functional.linear(x, self.shared_gate_proj),
            functional.linear(x, self.shared_up_proj),
            self.shared_down_proj,
        )
        edges["experts_out"], edges["shared_out"] = routed, shared
        return routed + shared

    def route(self, x: Tensor, edges: Edges) -> tuple[Tensor, Tensor]:
        """Chosen experts int64 [n, K], ascending, and their wide weights [n, K] in that order.

        Experts are chosen by sigmoid + bias, lowest id first in a tie, from the best topk_group groups where there are
        groups (a group counts the sum of its two best); they are weighted by the sigmoid alone.
        """
        config = self.config
        logits = functional.linear(widen(x), self.router.to(widen(x).dtype))
        scores = logits.sigmoid()
        biased = scores + self.e_score_correction_bias
        if config.n_group > 1:
            biased = biased.masked_fill(~self._in_best_groups(biased), float("-inf"))
        ids = _largest(biased, config.num_experts_per_tok)
        weights = scores.gather(1, ids)
        if config.norm_topk_prob:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        weights = weights * config.routed_scaling_factor
        edges["router_logits"], edges["router_ids"], edges["router_weights"] = logits, ids, weights
        return ids, weights

    def run_experts(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        """Weighted sum over the chosen experts that are here, wide and in ascending order of ids, rounded once."""
        total = weights.new_zeros(x.shape)
        first = 0 if self.shard is None else self.shard.first_expert
        # a loop over the hit experts reads each weight once and in place; gathering them would copy the lot
        for expert in ids.unique().tolist():
            held = expert - first
            if not 0 <= held < self.down_proj.shape[0]:
                continue
            rows, place = (ids == expert).nonzero(as_tuple=True)
            gate, up = functional.linear(x[rows], self.gate_up_proj[held]).chunk(2, dim=-1)
            out = self._swiglu(gate, up, self.down_proj[held])
            total[rows] += widen(out) * weights[rows, place, None]
        return total.to(x.dtype)

    def _in_best_groups(self, biased: Tensor) -> Tensor:
        """Whether each expert [n, E] lies in one of its row's best groups."""
        grouped = biased.view(biased.shape[0], self.config.n_group, -1)
        best = _largest(grouped.topk(2, dim=-1).values.sum(-1), self.config.topk_group)
        is_best = torch.zeros_like(grouped[..., 0], dtype=torch.bool).scatter(1, best, True)
        return is_best[..., None].expand_as(grouped).reshape(biased.shape)

    def _swiglu(self, gate: Tensor, up: Tensor, down_proj: Tensor) -> Tensor:
        """down(silu(gate) * up): the gate is clamped from above only, up on both sides."""
        limit = self.config.swiglu_limit
        return functional.linear(functional.silu(gate.clamp(max=limit)) * up.clamp(-limit, limit), down_proj)


def _largest(scores: Tensor, count: int) -> Tensor:
    """Indices of the `count` largest of each row, ascending; the lowest index wins a tie."""
    return scores.sort(dim=-1, descending=True, stable=True).indices[:, :count].sort(dim=-1).values
