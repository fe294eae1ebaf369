"""Batched greedy generation by the target with a cache, for text to train the MTP layer on.

All sequences of a batch have the same length, so the cache needs no padding. The arithmetic is that of the fast
forward (bfloat16 products); the text is training data, so it need not equal float32 decoding token for token.

Shape letters as in `fast_forward.py`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from fast_forward import (
    Parameters,
    attend,
    attention_projections,
    convolve,
    dense_mlp,
    linear_attention_inputs,
    linear_attention_output,
    linear_projections,
    matmul,
    mix_in,
    mix_out,
    rms_norm,
    routed_mlp,
)
from native import kda_step
from selection import (
    allowed_tokens,
    choose_pools,
    group,
    index_keys,
    index_queries,
    index_scores,
    pool_keys,
    visible_pools,
)
from target import FastTarget
from torch import Tensor


@dataclass(slots=True)
class LayerCache:
    """One layer's state: KDA state and convolution rows, or k [B, N, S, nope], v, index keys and gates [B, S, D]."""

    kept: dict[str, Tensor] = field(default_factory=dict)

    def append(self, name: str, rows: Tensor, dim: int) -> Tensor:
        """Append rows along `dim` and return everything kept under `name`."""
        self.kept[name] = torch.cat([self.kept[name], rows], dim=dim) if name in self.kept else rows
        return self.kept[name]


def cached_linear_attention(x: Tensor, p: Parameters, cache: LayerCache, target: FastTarget) -> Tensor:
    """KDA over the new tokens; updates the convolution rows and the state."""
    config, dtype = target.config, target.dtype
    raw = linear_projections(x, p, dtype)
    taps, heads, width = config.linear_conv_kernel_dim, config.linear_num_heads, config.linear_head_dim
    if not cache.kept:
        cache.kept["convolution"] = raw.new_zeros(len(x), taps - 1, raw.shape[-1])
        cache.kept["state"] = raw.new_zeros(len(x), heads, width, width)
    padded = torch.cat([cache.kept["convolution"], raw], dim=1)
    cache.kept["convolution"] = padded[:, 1 - taps :].clone()
    inputs = linear_attention_inputs(x, convolve(padded, p["self_attn.conv1d.weight"]), p, config, dtype)
    return linear_attention_output(x, kda_step(*inputs, cache.kept["state"]), p, config, dtype)


def cached_indexed_attention(x: Tensor, p: Parameters, cache: LayerCache, target: FastTarget) -> Tensor:
    """Sparse attention of the new tokens over everything cached; appends their rows."""
    config, dtype, kpool = target.config, target.dtype, target.config.index_kpool
    q, k, v, residual = attention_projections(x, p, config, dtype)
    index_k, gate = index_keys(x, p)
    k, v = cache.append("k", k, 2), cache.append("v", v, 2)
    index_k, gate = cache.append("index_key", index_k, 1), cache.append("index_gate", gate, 1)
    total = k.shape[2]
    rows = torch.arange(total - x.shape[1], total)
    pools = pool_keys(group(index_k, kpool), group(gate, kpool), p)
    scores = index_scores(*index_queries(x, residual, p, config), pools, torch.float32)
    chosen = choose_pools(scores, visible_pools(rows, pools.shape[1], kpool).expand_as(scores), config)
    output, _ = attend(q, k, v, allowed_tokens(chosen, rows, total, kpool))
    return matmul(output.transpose(1, 2).flatten(-2), p["self_attn.o_proj.weight"], dtype)


def extend(target: FastTarget, tokens: Tensor, caches: list[LayerCache]) -> Tensor:
    """Run new tokens [B, T] behind the cached ones; returns final-normed hidden [B, T, C]."""
    config, eps = target.config, target.config.rms_norm_eps
    stream0 = stream1 = F.embedding(tokens, target.text.embed_tokens.weight)
    for index, (p, cache) in enumerate(zip(target.layers, caches, strict=True)):
        x, mix = mix_in(stream0, stream1, p, "attn_hc", config)
        x = rms_norm(x, p["input_layernorm.weight"], eps)
        is_linear = config.layer_types[index] == "linear_attention"
        output = (cached_linear_attention if is_linear else cached_indexed_attention)(x, p, cache, target)
        stream0, stream1 = mix_out(stream0, stream1, output, mix)
        x, mix = mix_in(stream0, stream1, p, "ffn_hc", config)
        x = rms_norm(x, p["post_attention_layernorm.weight"], eps)
        is_routed = config.mlp_layer_types[index] == "sparse"
        output = routed_mlp(x, p, config, target.dtype)[0] if is_routed else dense_mlp(x, p, config, target.dtype)
        stream0, stream1 = mix_out(stream0, stream1, output, mix)
    return rms_norm((stream0 + stream1) / 2, target.text.norm.weight, eps)


@torch.no_grad()
def greedy(target: FastTarget, prompts: Tensor, num_new: int) -> Tensor:
    """Continue prompts [B, T] greedily by `num_new` tokens; returns [B, T + num_new]."""
    caches = [LayerCache() for _ in target.layers]
    tokens, rows = prompts, prompts
    for _ in range(num_new):
        rows = target.logits(extend(target, rows, caches)[:, -1:]).argmax(-1)
        tokens = torch.cat([tokens, rows], dim=1)
    return tokens


def generate_text(target: FastTarget, prompts: Tensor, window: int, rows: int, seconds: float) -> Tensor:
    """Continue training prompts [num_prompts, T] to `window` tokens each until the time is spent.

    Returns [num_done, window]: whole batches of `rows`.
    """
    start, done = time.monotonic(), []
    for batch in prompts.split(rows):
        done.append(greedy(target, batch, window - prompts.shape[1]))
        elapsed = time.monotonic() - start
        print(f"generate: {sum(map(len, done))} sequences in {elapsed:.0f} s", flush=True)
        if elapsed * (len(done) + 1) / len(done) > seconds:
            break
    return torch.cat(done)
