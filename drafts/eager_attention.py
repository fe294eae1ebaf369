"""The eager head's attention: absorbed MLA over the tokens that a k-pooled lightning indexer selects.

Shape letters: n rows, H heads, N nope width, V value width, R latent rank, G indexer heads, D indexer width, P pools,
S selected places. "wide" is float32, or float64 where the model dtype is float64.
Source: transformers 5.24, Glm5NextTextAttention and Glm5NextTextIndexer, with the cache kept pooled instead of raw.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from drafts.config import DraftConfig
from drafts.eager_shard import EagerShard

K_NORM_EPS = 1e-6  # the indexer's LayerNorm has its own, not rms_norm_eps

Edges = dict[str, Tensor]


def widen(x: Tensor) -> Tensor:
    """Return x in the dtype of statistics and sums: float32, or float64 for a float64 model (the oracle of tests)."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root mean square norm; the normalised value is rounded to x's dtype before the gain."""
    wide = widen(x)
    inverse = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * inverse).to(x.dtype) * weight


@dataclass(frozen=True, slots=True)
class RowPlaces:
    """Where the rows of a run stand: their positions, their sequences' tail slots and block tables, all int64."""

    position: Tensor  # [n]
    sequence: Tensor  # [n]
    block_table: Tensor  # [n, max_blocks]

    def block_and_offset(self, rows: Tensor, block_size: int) -> tuple[Tensor, Tensor]:
        """Block and place in it of `rows` [n, m], cache rows of each row's own sequence."""
        return self.block_table.gather(1, rows // block_size), rows % block_size


@dataclass(frozen=True, slots=True)
class CacheWrite:
    """Everything a run writes to the cache, computed before any of it is written."""

    latent: Tensor  # [n, R]
    latent_block: Tensor  # [n]
    latent_offset: Tensor  # [n]
    pool_keys: Tensor  # [completed, D]
    pool_block: Tensor  # [completed]
    pool_entry: Tensor  # [completed]
    raw: Tensor  # [kept, 2, D]
    raw_slot: Tensor  # [kept]
    raw_place: Tensor  # [kept]

    def apply(self, latent: Tensor, index_keys: Tensor, tail: Tensor) -> None:
        """Write latent rows, keys of completed pools and raw rows into the cache tensors, in place."""
        latent[self.latent_block, self.latent_offset] = self.latent
        index_keys[self.pool_block, self.pool_entry] = self.pool_keys
        tail[self.raw_slot, self.raw_place] = self.raw


class EagerAttention(nn.Module):
    """Self attention of the MTP layer; `cache_rows` is what context needs, `attend` the rest."""

    q_a_proj: Tensor  # [q_lora_rank, hidden]
    q_a_layernorm: Tensor
    q_b_proj: Tensor  # [H*N, q_lora_rank]
    kv_a_proj_with_mqa: Tensor  # [R, hidden]
    kv_a_layernorm: Tensor
    kv_b_proj: Tensor  # [H*(N+V), R], per head N rows of keys, then V of values
    o_proj: Tensor  # [hidden, H*V]

    def __init__(self, config: DraftConfig, weights: Mapping[str, Tensor], shard: EagerShard | None = None) -> None:
        super().__init__()
        self.config = config
        self.shard = shard
        names = "q_a_proj q_a_layernorm q_b_proj kv_a_proj_with_mqa kv_a_layernorm kv_b_proj o_proj"
        for name in names.split():
            self.register_buffer(name, weights[f"self_attn.{name}"])
        self.indexer = EagerIndexer(config, weights)

    def cache_rows(self, x: Tensor, places: RowPlaces, latent: Tensor, tail: Tensor, edges: Edges) -> CacheWrite:
        """Compute what the rows of x [n, hidden] add to the cache; reads the tail, writes nothing."""
        block_size = latent.shape[1]
        latent_nR = rms_norm(
            functional.linear(x, self.kv_a_proj_with_mqa), self.kv_a_layernorm, self.config.rms_norm_eps
        )
        edges["latent"] = latent_nR
        key_nD, gate_nD = self.indexer.raw_rows(x)
        edges["idx_k"], edges["idx_gate"] = key_nD, gate_nD
        completed = ((places.position + 1) % self.config.index_kpool == 0).nonzero()[:, 0]
        pool_keys = self.indexer.complete_pools(key_nD, gate_nD, completed, places, tail)
        latent_block, latent_offset = places.block_and_offset(places.position[:, None], block_size)
        kept = _newest_rows(places.sequence, tail.shape[1])
        return CacheWrite(
            latent=latent_nR,
            latent_block=latent_block[:, 0],
            latent_offset=latent_offset[:, 0],
            pool_keys=pool_keys,
            pool_block=latent_block[completed, 0],
            pool_entry=latent_offset[completed, 0] // self.config.index_kpool,
            raw=torch.stack((key_nD, gate_nD), dim=1)[kept],
            raw_slot=places.sequence[kept],
            raw_place=places.position[kept] % tail.shape[1],
        )

    def query_residual(self, x: Tensor) -> Tensor:
        """The normed query residual [n, q_lora_rank], which feeds both the heads and the indexer."""
        return rms_norm(functional.linear(x, self.q_a_proj), self.q_a_layernorm, self.config.rms_norm_eps)

    def attend(
        self, query_residual: Tensor, selected: Tensor, places: RowPlaces, latent: Tensor, edges: Edges
    ) -> Tensor:
        """Attend the `selected` rows [n, S] (-1 = none) in the latent space; returns [n, hidden].

        A row with nothing selected gives zeros. Scores, softmax and the weighted sum are wide; the absorbed query, the
        probabilities, the latent result and the values are rounded to the model dtype.
        """
        config = self.config
        query = functional.linear(query_residual, self.q_b_proj)
        edges["q"] = query
        heads = config.num_attention_heads if self.shard is None else self.shard.num_heads
        nope = config.qk_nope_head_dim
        per_head = self.kv_b_proj.view(heads, nope + config.v_head_dim, config.kv_lora_rank)
        query_HnN = query.view(-1, heads, nope).transpose(0, 1)
        query_nHR = torch.bmm(query_HnN, per_head[:, :nope]).transpose(0, 1)

        # places that are empty in every row cost a gather and win nothing
        selected = selected[:, (selected >= 0).any(0)]
        is_selected = selected >= 0
        block, offset = places.block_and_offset(selected.clamp(min=0), latent.shape[1])
        # an unselected place may hold NaN, which a probability of zero would not silence
        rows_nSR = latent[block, offset].masked_fill(~is_selected[..., None], 0)
        scores = torch.matmul(widen(query_nHR), widen(rows_nSR).transpose(1, 2)) * config.qk_head_dim**-0.5
        probabilities = scores.masked_fill(~is_selected[:, None], float("-inf")).softmax(-1)
        probabilities = probabilities.masked_fill(~is_selected[:, None], 0).to(latent.dtype)
        out_nHR = torch.matmul(widen(probabilities), widen(rows_nSR)).to(latent.dtype)
        out_HnV = torch.bmm(out_nHR.transpose(0, 1), per_head[:, nope:].transpose(1, 2))
        attn_heads = out_HnV.transpose(0, 1).reshape(-1, heads * config.v_head_dim)
        edges["attn_heads"] = attn_heads
        attn_out = functional.linear(attn_heads, self.o_proj)
        return attn_out if self.shard is None else self.shard.add_up_heads(attn_out)


class EagerIndexer(nn.Module):
    """The lightning indexer over k-pools: raw rows, pool keys, scores and the selection."""

    wq_b: Tensor  # [G*D, q_lora_rank]
    wk: Tensor  # [D, hidden]
    weights_proj: Tensor  # [G, hidden]
    index_kpool_compress_ape: Tensor  # [kpool, D], by slot in the pool
    index_kpool_compress_gate: Tensor  # [D, hidden]
    k_norm_weight: Tensor
    k_norm_bias: Tensor

    def __init__(self, config: DraftConfig, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.config = config
        for name in ("wq_b", "wk", "weights_proj", "index_kpool_compress_ape", "index_kpool_compress_gate"):
            self.register_buffer(name, weights[f"self_attn.indexer.{name}"])
        self.register_buffer("k_norm_weight", weights["self_attn.indexer.k_norm.weight"])
        self.register_buffer("k_norm_bias", weights["self_attn.indexer.k_norm.bias"])

    def raw_rows(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Key after its LayerNorm and gate of each row, both [n, D]."""
        key = functional.linear(x, self.wk)
        key = functional.layer_norm(key, key.shape[-1:], self.k_norm_weight, self.k_norm_bias, K_NORM_EPS)
        return key, functional.linear(x, self.index_kpool_compress_gate)

    def complete_pools(
        self, key_nD: Tensor, gate_nD: Tensor, completed: Tensor, places: RowPlaces, tail: Tensor
    ) -> Tensor:
        """Keys [completed, D] of the pools that the rows `completed` fill.

        A pool's raw rows come from this run where they are in it, else from the tail as it was before the run. The
        softmax over the pool's slots is wide and rounded to the model dtype; product and sum are in the model dtype.
        """
        kpool = self.config.index_kpool
        back = torch.arange(kpool - 1, -1, -1, device=key_nD.device)
        source = completed[:, None] - back  # [completed, kpool], rows of this run
        inside = source.clamp(min=0)
        position = places.position[completed, None] - back
        sequence = places.sequence[completed, None]
        in_run = (source >= 0) & (places.sequence[inside] == sequence) & (places.position[inside] == position)
        from_run = torch.stack((key_nD, gate_nD), dim=1)[inside]  # [completed, kpool, 2, D]
        from_tail = tail[sequence, position % tail.shape[1]]
        raw = torch.where(in_run[..., None, None], from_run, from_tail)
        share = (widen(raw[:, :, 1]) + widen(self.index_kpool_compress_ape)).softmax(1).to(key_nD.dtype)
        return (share * raw[:, :, 0]).sum(1)

    def score_pools(
        self, x: Tensor, query_residual: Tensor, places: RowPlaces, index_keys: Tensor, num_pools: int, edges: Edges
    ) -> Tensor:
        """Wide scores [n, num_pools] of the first pools; -inf where the pool is not complete for the row.

        score = sum over heads of w * relu(q . key * D**-0.5), w = weights_proj(x) * G**-0.5.
        """
        config = self.config
        query = functional.linear(query_residual, self.wq_b)
        weight = functional.linear(x, self.weights_proj)
        edges["idx_q"], edges["idx_w"] = query, weight
        pools_a_block = index_keys.shape[1]
        pools = torch.arange(num_pools, device=x.device).expand(x.shape[0], num_pools)
        block, entry = places.block_and_offset(pools, pools_a_block)
        is_complete = pools < ((places.position + 1) // config.index_kpool)[:, None]
        keys = index_keys[block, entry].masked_fill(~is_complete[..., None], 0)
        edges["pool_keys"] = keys
        keys_nPD = widen(keys)
        query_nGD = widen(query).view(-1, config.index_n_heads, config.index_head_dim)
        per_head = functional.relu(torch.matmul(query_nGD, keys_nPD.transpose(1, 2)) * config.index_head_dim**-0.5)
        head_weight = widen(weight) * config.index_n_heads**-0.5
        scores = torch.matmul(head_weight[:, None], per_head)[:, 0]
        return scores.masked_fill(~is_complete, float("-inf"))

    def select(self, scores: Tensor | None, position: Tensor) -> Tensor:
        """Selected cache rows, int64 [n, index_topk + kpool - 1], -1 where there are fewer.

        The best pools in ascending order, then the tail's rows. Ties go to the lowest pool. `scores` None: every row
        may keep all its complete pools, so they need no scores.
        """
        kpool, budget = self.config.index_kpool, self.config.index_topk_pools
        device, visible = position.device, position + 1
        if scores is None:
            pools = torch.arange(budget, device=device).expand(position.shape[0], budget)
            pools = pools.masked_fill(pools >= (visible // kpool)[:, None], -1)
        else:
            pools = best_pools(scores, budget)
        slots = torch.arange(kpool, device=device)
        rows = (pools[..., None] * kpool + slots).masked_fill(pools[..., None] < 0, -1).flatten(1)
        tail_rows = (visible - visible % kpool)[:, None] + slots[:-1]
        return torch.cat((rows, tail_rows.masked_fill(tail_rows >= visible[:, None], -1)), dim=1)


def best_pools(scores: Tensor, budget: int) -> Tensor:
    """The `budget` best pools of scores [n, P], ascending, int64 [n, budget]; then -1 where fewer are selectable."""
    best, order = scores.sort(dim=-1, descending=True, stable=True)
    after_all = scores.shape[-1]
    chosen = order[:, :budget].masked_fill(best[:, :budget] == float("-inf"), after_all).sort(dim=-1).values
    chosen = chosen.masked_fill(chosen == after_all, -1)
    return functional.pad(chosen, (0, budget - chosen.shape[-1]), value=-1)


def _newest_rows(sequence: Tensor, tail_depth: int) -> Tensor:
    """Rows of the run that the ring keeps: those with fewer than `tail_depth` newer ones of their sequence."""
    rows = torch.arange(sequence.shape[0], device=sequence.device)
    later = rows + tail_depth
    has_later = later < sequence.shape[0]
    overtaken = has_later & (sequence[later.clamp(max=max(sequence.shape[0] - 1, 0))] == sequence)
    return (~overtaken).nonzero()[:, 0]
