"""The MTP layer's training forward: K drafting steps unrolled over a whole sequence, equal to cached decoding.

Row r pairs token r + 1 with the target's hidden of token r. While drafting, the cache holds true rows (step 1) and
behind them one recycled row per later step. So in step s the query at row p sees
    step-1 rows up to p - s + 1, then for each later step t (2..s) the single row p - s + t as step t wrote it.
A complete pool may mix both kinds only when it is the newest one, so its key is computed per query.

Shape letters: B sequences, T rows, C hidden, N attention heads, H index heads, D index channels, P pools.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from fast_forward import Parameters, attention_projections, matmul, rms_norm, routed_mlp
from selection import (
    choose_pools,
    group,
    index_keys,
    index_loss,
    index_queries,
    index_scores,
    pool_keys,
    visible_pools,
)
from torch import Tensor
from transformers import Glm5NextTextConfig


class StepRows(NamedTuple):
    """What one step leaves in the cache: k [B, N, T, nope], v [B, N, T, v], index key and gate [B, T, D]."""

    k: Tensor
    v: Tensor
    index_key: Tensor
    index_gate: Tensor


class StepOutput(NamedTuple):
    """head_normed y and the block output x [B, T, C], the rows written, expert load [E], index loss."""

    head_normed: Tensor
    block_output: Tensor
    rows: StepRows
    load: Tensor
    index_loss: Tensor


class StepInputs(NamedTuple):
    """Everything a step's attention needs: x [B, T, C], q, its own rows, index queries and head weights."""

    x: Tensor
    q: Tensor
    rows: StepRows
    index_q: Tensor
    index_weights: Tensor


def newest_pool_keys(steps: list[StepRows], p: Parameters, kpool: int) -> Tensor:
    """Return the key of each query's newest complete pool, [B, T, D], mixing true and recycled rows as decoding does.

    For the query at row r in step s, row j was last written by step max(1, j - r + s). Rows before the first complete
    pool give a meaningless key, which no mask lets through.
    """
    tokens, depth = steps[0].index_key.shape[1], len(steps)
    row = torch.arange(tokens).unsqueeze(-1)
    slot = (((row + 1) // kpool - 1) * kpool + torch.arange(kpool)).clamp(min=0)  # [T, kpool]
    step = (slot - row + depth - 1).clamp(0, depth - 1)
    flat = step * tokens + slot
    keys = torch.cat([rows.index_key for rows in steps], dim=1)[:, flat]
    gates = torch.cat([rows.index_gate for rows in steps], dim=1)[:, flat]
    return pool_keys(keys, gates, p)


def recycled_logits(q: Tensor, steps: list[StepRows]) -> tuple[list[Tensor], list[Tensor]]:
    """Return for each recycled step its one key's logits [B, N, T, 1] and value [B, N, T, v], shifted to the query."""
    depth, logits, values = len(steps), [], []
    for written, rows in enumerate(steps[1:], start=2):
        shift = depth - written  # the query at row r sees row r - shift of this step
        k = F.pad(rows.k, (0, 0, shift, 0))[:, :, : q.shape[2]]
        values.append(F.pad(rows.v, (0, 0, shift, 0))[:, :, : q.shape[2]])
        logits.append((q.float() * k.float()).sum(-1, keepdim=True) * q.shape[-1] ** -0.5)
    return logits, values


def before_attention(
    embedded: Tensor, hidden: Tensor, p: Parameters, config: Glm5NextTextConfig, dtype: torch.dtype
) -> StepInputs:
    """Join token and hidden, and project for attention and indexer; the indexer sees detached inputs."""
    eps = config.rms_norm_eps
    both = torch.cat([rms_norm(embedded, p["enorm.weight"], eps), rms_norm(hidden, p["hnorm.weight"], eps)], dim=-1)
    x = matmul(both, p["eh_proj.weight"], dtype).float()
    normed = rms_norm(x, p["input_layernorm.weight"], eps)
    q, k, v, residual = attention_projections(normed, p, config, dtype)
    rows = StepRows(k, v, *index_keys(normed.detach(), p))
    return StepInputs(x, q, rows, *index_queries(normed.detach(), residual.detach(), p, config))


def after_attention(
    x: Tensor, attended: Tensor, p: Parameters, config: Glm5NextTextConfig, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Return y, the block output [B, T, C] and the expert load, from attention heads [B, N, T, v]."""
    eps = config.rms_norm_eps
    x = x + matmul(attended.transpose(1, 2).flatten(-2), p["self_attn.o_proj.weight"], dtype).float()
    routed, load = routed_mlp(rms_norm(x, p["post_attention_layernorm.weight"], eps), p, config, dtype)
    x = x + routed.float()
    return rms_norm(x, p["shared_head.norm.weight"], eps), x, load


def mtp_attention(
    inputs: StepInputs, earlier: list[StepRows], p: Parameters, config: Glm5NextTextConfig, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Sparse attention of step len(earlier) + 1; returns heads [B, N, T, v] and the index loss (step 1 only)."""
    q, index_q, weights = inputs.q, inputs.index_q, inputs.index_weights
    tokens, kpool = q.shape[2], config.index_kpool
    steps = [*earlier, inputs.rows]
    depth, first = len(steps), steps[0]

    pools = pool_keys(group(first.index_key, kpool), group(first.index_gate, kpool), p)
    scores = index_scores(index_q, weights, pools, dtype)
    row = torch.arange(tokens)
    newest = (row + 1) // kpool - 1
    if depth > 1:
        mixed = (F.relu((index_q * newest_pool_keys(steps, p, kpool).unsqueeze(2)).sum(-1)) * weights).sum(-1)
        is_newest = torch.arange(pools.shape[1]) == newest.unsqueeze(-1)
        scores = torch.where(is_newest, mixed.unsqueeze(-1), scores)
    visible = visible_pools(row, pools.shape[1], kpool).expand_as(scores)
    chosen = choose_pools(scores, visible, config)

    # a token is allowed by its pool; a row's newest, incomplete pool (its tail) always is
    column = torch.arange(tokens)
    by_token = F.pad(chosen.repeat_interleave(kpool, dim=-1), (0, tokens - pools.shape[1] * kpool))
    by_token = by_token | (column // kpool == newest.unsqueeze(-1) + 1)
    true_rows = column <= row.unsqueeze(-1) - depth + 1
    logits = (q @ first.k.transpose(-1, -2)).float() * q.shape[-1] ** -0.5
    logits = logits.masked_fill(~(by_token & true_rows).unsqueeze(1), float("-inf"))
    extra_logits, extra_values = recycled_logits(q, steps)
    for index, one in enumerate(extra_logits):
        recycled = row - (depth - 2 - index)  # the row of this step that the query sees; < 0 before the text starts
        allowed = by_token.gather(-1, recycled.clamp(min=0).view(1, -1, 1).expand(len(q), -1, 1))
        allowed = (allowed & (recycled >= 0).unsqueeze(-1)).unsqueeze(1)
        extra_logits[index] = one.masked_fill(~allowed, float("-inf"))
    # the first depth - 1 rows have no true row to see and may be empty: keep their softmax finite
    probabilities = torch.cat([logits, *extra_logits], dim=-1).clamp(min=-1e30).softmax(-1)
    true_share = probabilities[..., :tokens].to(first.v.dtype)
    output = (true_share @ first.v).float()
    for index, value in enumerate(extra_values):
        output = output + probabilities[..., tokens + index : tokens + index + 1] * value.float()
    loss = index_loss(scores, true_share, chosen, kpool) if depth == 1 else scores.new_zeros(())
    return output, loss


@dataclass(frozen=True, slots=True)
class StepFunctions:
    """The two parts of a step that are the same for every depth, as they are or compiled."""

    before: Callable[..., StepInputs] = before_attention
    after: Callable[..., tuple[Tensor, Tensor, Tensor]] = after_attention


PLAIN = StepFunctions()


def unroll(
    embedded: Tensor,
    hidden: Tensor,
    p: Parameters,
    num_drafts: int,
    *,
    config: Glm5NextTextConfig,
    dtype: torch.dtype,
    functions: StepFunctions = PLAIN,
) -> list[StepOutput]:
    """Run `num_drafts` steps: step s at row r takes the true token r + 1 and step s - 1's y of row r - 1.

    embedded: token r + 1 at row r, [B, T, C]; hidden: the target's row r, [B, T, C].
    """
    outputs: list[StepOutput] = []
    for _ in range(num_drafts):
        inputs = functions.before(embedded, hidden, p, config, dtype)
        attended, loss = mtp_attention(inputs, [out.rows for out in outputs], p, config, dtype)
        head_normed, block_output, load = functions.after(inputs.x, attended, p, config, dtype)
        outputs.append(StepOutput(head_normed, block_output, inputs.rows, load, loss))
        hidden = F.pad(head_normed, (0, 0, 1, 0))[:, :-1]
    return outputs
