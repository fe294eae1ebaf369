"""Pool selection for training: index scores, the chosen pools as a mask, and the loss that teaches the indexer.

Shape letters: B sequences, T tokens, N attention heads, H index heads, D index channels, P complete pools.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import Glm5NextTextConfig

Parameters = dict[str, Tensor]
INDEXER = "self_attn.indexer."
# stands for minus infinity where a softmax follows: exp gives exactly 0 and no row turns into NaN
HIDDEN_SCORE = -1e30


def index_keys(x: Tensor, p: Parameters) -> tuple[Tensor, Tensor]:
    """Return the index key k (LayerNorm with bias, eps 1e-6) and its gate logits, each [B, T, D]; float32."""
    k = F.linear(x, p[INDEXER + "wk.weight"])
    k = F.layer_norm(k, k.shape[-1:], p[INDEXER + "k_norm.weight"], p[INDEXER + "k_norm.bias"], 1e-6)
    return k, F.linear(x, p[INDEXER + "index_kpool_compress_gate"])


def pool_keys(k: Tensor, gate: Tensor, p: Parameters) -> Tensor:
    """Average rows grouped by pool, [..., P, kpool, D] -> [..., P, D], weighted per channel by softmax(gate + ape)."""
    weights = (gate + p[INDEXER + "index_kpool_compress_ape"]).softmax(dim=-2)
    return (weights * k).sum(-2)


def group(rows: Tensor, kpool: int) -> Tensor:
    """Group rows [B, T, D] into complete pools [B, T // kpool, kpool, D]."""
    pools = rows.shape[1] // kpool
    return rows[:, : pools * kpool].unflatten(1, (pools, kpool))


def index_queries(x: Tensor, residual: Tensor, p: Parameters, config: Glm5NextTextConfig) -> tuple[Tensor, Tensor]:
    """Return index queries [B, T, H, D] and head weights [B, T, H], with every scale applied."""
    heads = config.index_n_heads
    q = F.linear(residual, p[INDEXER + "wq_b.weight"]).unflatten(-1, (heads, -1)) * config.index_head_dim**-0.5
    return q, F.linear(x, p[INDEXER + "weights_proj.weight"]) * heads**-0.5


def index_scores(q: Tensor, weights: Tensor, pools: Tensor, dtype: torch.dtype) -> Tensor:
    """Score every pool for every query: [B, T, H, D], [B, T, H], [B, P, D] -> [B, T, P].

    The weight goes in after the relu, head by head in one product, because it may be negative.
    """
    per_head = F.relu(torch.matmul(q.flatten(1, 2).to(dtype), pools.to(dtype).transpose(1, 2)).float())
    per_head = per_head.unflatten(1, q.shape[1:3])  # [B, T, H, P]
    return (per_head * weights.unsqueeze(-1)).sum(2)


def choose_pools(scores: Tensor, visible: Tensor, config: Glm5NextTextConfig) -> Tensor:
    """Return the chosen pools as bool [B, T, P]: the best index_topk // kpool of the visible ones."""
    budget = min(config.index_topk // config.index_kpool, scores.shape[-1])
    best = scores.detach().masked_fill(~visible, HIDDEN_SCORE).topk(budget, dim=-1)[1]
    return torch.zeros_like(scores, dtype=torch.bool).scatter(-1, best, True) & visible


def visible_pools(rows: Tensor, pools: int, kpool: int) -> Tensor:
    """Return bool [T, P]: pool p is complete and visible to row `rows[t]` when its last token is not after it."""
    return (torch.arange(pools) + 1) * kpool <= rows.unsqueeze(-1) + 1


def allowed_tokens(chosen: Tensor, rows: Tensor, tokens: int, kpool: int) -> Tensor:
    """Expand chosen pools [B, T, P] to tokens [B, T, tokens] and add each row's tail (its newest, incomplete pool)."""
    row, column = rows.unsqueeze(-1), torch.arange(tokens)
    tail = (column // kpool == (row + 1) // kpool) & (column <= row)
    expanded = F.pad(chosen.repeat_interleave(kpool, dim=-1), (0, tokens - chosen.shape[-1] * kpool))
    return expanded | tail


def index_loss(scores: Tensor, probabilities: Tensor, candidates: Tensor, kpool: int) -> Tensor:
    """Cross-entropy (nats a row) between the attention mass per pool and softmax(scores) over `candidates`.

    scores [B, T, P]; probabilities [B, N, T, S >= P * kpool]; candidates bool [B, T, P]. No gradient into attention.
    """
    pools = scores.shape[-1]
    mass = probabilities.detach().float().mean(1)[..., : pools * kpool].unflatten(-1, (pools, kpool)).sum(-1)
    mass = mass * candidates
    mass = mass / (mass.sum(-1, keepdim=True) + 1e-6)
    log_share = scores.masked_fill(~candidates, HIDDEN_SCORE).log_softmax(-1)
    return -(mass * log_share.masked_fill(~candidates, 0.0)).sum(-1).mean()
