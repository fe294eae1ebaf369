"""The target's training forward: the same function as transformers' glm5_next, arranged for a CPU's matrix units.

It reads the parameters of a `Glm5NextForConditionalGeneration` by name. Matrix products run in `dtype` (bfloat16 in
training), residual streams, norms, softmax and the KDA state in float32. What differs from transformers is only the
order of work: all experts as one wide MLP whose unchosen experts are weighted 0, the recurrence in C++, and the two
hyper-connection streams written out as scalars. `check.py` holds the two equal.

Shape letters: B sequences, T tokens, C hidden, N attention heads, H linear heads, D channels, E experts, P pools.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from native import kda, sinkhorn
from selection import (
    allowed_tokens,
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

Parameters = dict[str, Tensor]


class LayerOutput(NamedTuple):
    """What a layer returns: both streams [B, T, C], expert load [E] (mean 1), index loss (nats per row)."""

    stream0: Tensor
    stream1: Tensor
    load: Tensor
    index_loss: Tensor


def matmul(x: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Return x @ weight^T with both rounded to `dtype`, result in `dtype`."""
    return F.linear(x.to(dtype), weight.to(dtype))


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm in float32."""
    wide = x.float()
    return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight


def mix_in(x0: Tensor, x1: Tensor, p: Parameters, name: str, config: Glm5NextTextConfig) -> tuple[Tensor, list[Tensor]]:
    """Collapse two streams into one block input; also return [post0, post1, c00, c01, c10, c11], each [B, T, 1].

    Stream i after the block is post_i * output + c_0i * x0 + c_1i * x1, with c made doubly stochastic by Sinkhorn.
    """
    width, eps = x0.shape[-1], config.hc_eps
    fn, base, scale = p[f"{name}.fn"], p[f"{name}.base"], p[f"{name}.scale"]
    square = x0.square().sum(-1, keepdim=True) + x1.square().sum(-1, keepdim=True)
    inverse = torch.rsqrt(square / (2 * width) + config.rms_norm_eps)
    raw = (F.linear(x0, fn[:, :width]) + F.linear(x1, fn[:, width:])) * inverse
    w = [raw[..., i : i + 1] for i in range(8)]
    pre0, pre1 = (torch.sigmoid(w[i] * scale[0] + base[i]) + eps for i in (0, 1))
    post0, post1 = (2 * torch.sigmoid(w[i] * scale[1] + base[i]) for i in (2, 3))
    c = [w[i] * scale[2] + base[i] for i in range(4, 8)]
    # a softmax over two is a sigmoid of the difference
    rows = [torch.sigmoid(c[i] - c[i ^ 1]) + eps for i in range(4)]
    comb = sinkhorn(torch.cat(rows, dim=-1), eps, config.hc_sinkhorn_iters)
    return pre0 * x0 + pre1 * x1, [post0, post1, *comb.split(1, dim=-1)]


def mix_out(x0: Tensor, x1: Tensor, output: Tensor, mix: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Put a block's output back into the two streams."""
    post0, post1, c00, c01, c10, c11 = mix
    output = output.float()
    return post0 * output + c00 * x0 + c10 * x1, post1 * output + c01 * x0 + c11 * x1


def dense_mlp(x: Tensor, p: Parameters, config: Glm5NextTextConfig, dtype: torch.dtype) -> Tensor:
    """SwiGLU with clamped gate and up."""
    gate = matmul(x, p["mlp.gate_proj.weight"], dtype).float().clamp(max=config.swiglu_limit)
    up = matmul(x, p["mlp.up_proj.weight"], dtype).float().clamp(-config.swiglu_limit, config.swiglu_limit)
    return matmul(F.silu(gate) * up, p["mlp.down_proj.weight"], dtype)


def routed_mlp(x: Tensor, p: Parameters, config: Glm5NextTextConfig, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Routed and shared experts as one wide MLP; returns its output and each expert's load (mean 1)."""
    experts, limit = config.n_routed_experts, config.swiglu_limit
    scores = torch.sigmoid(F.linear(x.float(), p["mlp.gate.weight"]))
    choice = (scores.detach() + p["mlp.gate.e_score_correction_bias"]).topk(config.num_experts_per_tok, dim=-1)[1]
    chosen = torch.zeros_like(scores).scatter(-1, choice, 1.0)
    weights = scores * chosen
    weights = weights / (weights.sum(-1, keepdim=True) + 1e-20) * config.routed_scaling_factor
    weights = F.pad(weights, (0, 1), value=1.0)  # [B, T, E + 1], the shared expert last
    gate_up = torch.cat(
        [
            p["mlp.experts.gate_up_proj"].flatten(0, 1),
            p["mlp.shared_experts.gate_proj.weight"],
            p["mlp.shared_experts.up_proj.weight"],
        ]
    )
    down = torch.cat(
        [
            p["mlp.experts.down_proj"].transpose(1, 2).flatten(0, 1),
            p["mlp.shared_experts.down_proj.weight"].t(),
        ]
    )
    hidden = matmul(x, gate_up, dtype).unflatten(-1, (experts + 1, 2, -1))
    gate = hidden[..., 0, :].float().clamp(max=limit)
    up = hidden[..., 1, :].float().clamp(-limit, limit)
    wide = (F.silu(gate) * up * weights.unsqueeze(-1)).to(dtype).flatten(-2)
    load = chosen.flatten(0, -2).mean(0) * (experts / config.num_experts_per_tok)
    return wide @ down.to(dtype), load


def linear_attention_inputs(
    x: Tensor, mixed: Tensor, p: Parameters, config: Glm5NextTextConfig, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return q, k, v, decay [B, T, H, D] and beta [B, T, H] from the convolved projections `mixed` [B, T, 3HD]."""
    shape = (config.linear_num_heads, config.linear_head_dim)
    q, k, v = (part.unflatten(-1, shape) for part in F.silu(mixed).chunk(3, dim=-1))
    q = q / torch.sqrt(q.square().sum(-1, keepdim=True) + 1e-6) * config.linear_head_dim**-0.5
    k = k / torch.sqrt(k.square().sum(-1, keepdim=True) + 1e-6)
    low = matmul(x, p["self_attn.forget_gate.f_a_proj.weight"], dtype)
    forget = matmul(low, p["self_attn.forget_gate.f_b_proj.weight"], dtype).float() + p["self_attn.forget_gate.dt_bias"]
    rate = p["self_attn.forget_gate.A_log"].exp().unsqueeze(-1)
    decay = torch.exp(config.linear_lower_bound * torch.sigmoid(rate * forget.unflatten(-1, shape)))
    beta = torch.sigmoid(matmul(x, p["self_attn.b_proj.weight"], dtype).float())
    return q, k, v, decay, beta


def linear_attention_output(
    x: Tensor, core: Tensor, p: Parameters, config: Glm5NextTextConfig, dtype: torch.dtype
) -> Tensor:
    """Norm, gate and project the recurrence's outputs `core` [B, T, H, D]."""
    gate = matmul(matmul(x, p["self_attn.g_a_proj.weight"], dtype), p["self_attn.g_b_proj.weight"], dtype).float()
    normed = rms_norm(core, p["self_attn.o_norm.weight"], config.rms_norm_eps)
    gated = normed * torch.sigmoid(gate.unflatten(-1, core.shape[-2:]))
    return matmul(gated.flatten(-2), p["self_attn.o_proj.weight"], dtype)


def linear_projections(x: Tensor, p: Parameters, dtype: torch.dtype) -> Tensor:
    """Return q, k and v before the convolution, [B, T, 3HD]."""
    weight = torch.cat([p[f"self_attn.{name}_proj.weight"] for name in "qkv"])
    return matmul(x, weight, dtype).float()


def convolve(padded: Tensor, weight: Tensor) -> Tensor:
    """Causal depthwise convolution: padded [B, T + 3, 3HD], weight [3HD, 1, 4] -> [B, T, 3HD]."""
    taps = weight.shape[-1]
    tokens = padded.shape[1] - taps + 1
    return sum(padded[:, tap : tap + tokens] * weight[:, 0, tap] for tap in range(taps))


def linear_attention(x: Tensor, p: Parameters, config: Glm5NextTextConfig, dtype: torch.dtype) -> Tensor:
    """KDA over whole sequences from an empty state."""
    weight = p["self_attn.conv1d.weight"]
    mixed = convolve(F.pad(linear_projections(x, p, dtype), (0, 0, weight.shape[-1] - 1, 0)), weight)
    core, _ = kda(*linear_attention_inputs(x, mixed, p, config, dtype))
    return linear_attention_output(x, core, p, config, dtype)


def attention_projections(
    x: Tensor, p: Parameters, config: Glm5NextTextConfig, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return q, k [B, N, T, nope], v [B, N, T, v_head_dim] and the normed query residual [B, T, q_lora_rank]."""
    residual = rms_norm(
        matmul(x, p["self_attn.q_a_proj.weight"], dtype), p["self_attn.q_a_layernorm.weight"], config.rms_norm_eps
    )
    latent = rms_norm(
        matmul(x, p["self_attn.kv_a_proj_with_mqa.weight"], dtype),
        p["self_attn.kv_a_layernorm.weight"],
        config.rms_norm_eps,
    )
    heads = (config.num_attention_heads, -1)
    q = matmul(residual, p["self_attn.q_b_proj.weight"], dtype).unflatten(-1, heads).transpose(1, 2)
    kv = matmul(latent, p["self_attn.kv_b_proj.weight"], dtype).unflatten(-1, heads).transpose(1, 2)
    k, v = kv.split([config.qk_nope_head_dim, config.v_head_dim], dim=-1)
    return q, k, v, residual


def attend(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor) -> tuple[Tensor, Tensor]:
    """Softmax attention over the allowed keys; allowed bool [B, T, S]. Returns [B, N, T, v] and probabilities."""
    scores = (q @ k.transpose(-1, -2)).float() * q.shape[-1] ** -0.5
    probabilities = scores.masked_fill(~allowed.unsqueeze(1), float("-inf")).softmax(-1).to(v.dtype)
    return probabilities @ v, probabilities


def dense_attention(x: Tensor, p: Parameters, config: Glm5NextTextConfig, dtype: torch.dtype) -> Tensor:
    """Latent attention over every earlier token, no indexer."""
    q, k, v, _ = attention_projections(x, p, config, dtype)
    output = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return matmul(output.transpose(1, 2).flatten(-2), p["self_attn.o_proj.weight"], dtype)


def indexed_attention(
    x: Tensor, p: Parameters, config: Glm5NextTextConfig, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Sparse latent attention over whole sequences; returns its output and the indexer's loss (nats a row).

    The indexer sees detached inputs: it learns where attention looks, attention does not learn from it.
    """
    tokens, kpool = x.shape[1], config.index_kpool
    q, k, v, residual = attention_projections(x, p, config, dtype)
    seen, seen_residual = x.detach(), residual.detach()
    pools = pool_keys(*(group(rows, kpool) for rows in index_keys(seen, p)), p)
    scores = index_scores(*index_queries(seen, seen_residual, p, config), pools, dtype)
    rows = torch.arange(tokens)
    visible = visible_pools(rows, pools.shape[1], kpool).expand_as(scores)
    chosen = choose_pools(scores, visible, config)
    output, probabilities = attend(q, k, v, allowed_tokens(chosen, rows, tokens, kpool))
    loss = index_loss(scores, probabilities, chosen, kpool)
    return matmul(output.transpose(1, 2).flatten(-2), p["self_attn.o_proj.weight"], dtype), loss


def run_layer(
    stream0: Tensor,
    stream1: Tensor,
    p: Parameters,
    config: Glm5NextTextConfig,
    is_linear: bool,
    is_routed: bool,
    is_sparse: bool,
    dtype: torch.dtype,
) -> LayerOutput:
    """Run one decoder layer; without `is_sparse` attention is dense and the indexer rests."""
    x, mix = mix_in(stream0, stream1, p, "attn_hc", config)
    x = rms_norm(x, p["input_layernorm.weight"], config.rms_norm_eps)
    if is_linear:
        output, index_loss = linear_attention(x, p, config, dtype), stream0.new_zeros(())
    elif is_sparse:
        output, index_loss = indexed_attention(x, p, config, dtype)
    else:
        output, index_loss = dense_attention(x, p, config, dtype), stream0.new_zeros(())
    stream0, stream1 = mix_out(stream0, stream1, output, mix)
    x, mix = mix_in(stream0, stream1, p, "ffn_hc", config)
    x = rms_norm(x, p["post_attention_layernorm.weight"], config.rms_norm_eps)
    if is_routed:
        output, load = routed_mlp(x, p, config, dtype)
    else:
        output, load = dense_mlp(x, p, config, dtype), stream0.new_ones(config.n_routed_experts)
    stream0, stream1 = mix_out(stream0, stream1, output, mix)
    return LayerOutput(stream0, stream1, load, index_loss)
