"""Products of many normalised rows, a context's: a tile of rows meets each tile of the weight once."""

import triton
import triton.language as tl

from compiler.kernels.numerics import dot, rounded


@triton.jit
def normed_gemm(
    # outputs
    out_ptr,
    # inputs
    x_ptr,
    gain_ptr,
    weight_ptr,
    # sizes and strides
    ROWS: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    x_stride,
    out_stride,
    # scalars
    EPS: tl.constexpr,
    # tiles
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    """out[m, n] = rsqrt(mean(x[m]^2) + EPS) * sum over k of x[m, k] * gain[k] * weight[n, k].

    One program: BLOCK_M rows, BLOCK_N outputs. The scale of a row follows the sum, so its squares are summed in the
    same loop. In float32; x * gain is rounded for the product, where the nodes round x * scale and then the gain.
    """
    # programs that share a tile of the weight are neighbours, so that all but one find it in the cache
    m = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    n = (tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    in_m = m < ROWS
    in_n = n < N
    k_lanes = tl.arange(0, BLOCK_K)
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    squares = tl.zeros([BLOCK_M], tl.float32)
    for start in tl.range(0, K, BLOCK_K, num_stages=NUM_STAGES):
        k = start + k_lanes
        in_k = k < K
        x_ptrs = x_ptr + m[:, None] * x_stride + k[None, :]
        x = tl.load(x_ptrs, mask=in_m[:, None] & in_k[None, :], other=0.0).to(tl.float32)
        weight = tl.load(weight_ptr + n[None, :] * K + k[:, None], mask=in_n[None, :] & in_k[:, None], other=0.0)
        gain = tl.load(gain_ptr + k, mask=in_k, other=0.0).to(tl.float32)
        squares += tl.sum(x * x, axis=1)
        acc = dot(rounded(x * gain[None, :], weight.dtype), weight, acc)
    out = acc * tl.rsqrt(squares / K + EPS)[:, None]
    is_live = in_m[:, None] & in_n[None, :]
    tl.store(out_ptr + m[:, None] * out_stride + n[None, :], rounded(out, out_ptr.dtype.element_ty), mask=is_live)


@triton.jit
def entry_gemm(
    # outputs
    out_ptr,
    # inputs
    token_ptr,
    table_ptr,
    hidden_ptr,
    target_gain_ptr,
    embedding_gain_ptr,
    hidden_gain_ptr,
    weight_ptr,
    # sizes and strides
    ROWS: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    hidden_stride,
    out_stride,
    # scalars
    TARGET_EPS: tl.constexpr,
    EMBEDDING_EPS: tl.constexpr,
    HIDDEN_EPS: tl.constexpr,
    # flags
    HAS_TARGET_NORM: tl.constexpr,
    # tiles
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    """out[m] = weight @ concat(norm(table[token[m]]), norm(hidden[m])), each half K wide, weight [N, 2 K].

    One program: BLOCK_M rows, BLOCK_N outputs; the embedding's half first, and its sum is scaled before the hidden's is
    added. Norms and rounding are those of entry.entry_gemv.
    """
    # programs that share a tile of the weight are neighbours, so that all but one find it in the cache
    m = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    n = (tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    in_m = m < ROWS
    in_n = n < N
    k_lanes = tl.arange(0, BLOCK_K)
    token = tl.load(token_ptr + m, mask=in_m, other=0).to(tl.int64)
    weight_rows = weight_ptr + n[None, :] * (2 * K)
    embedded = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    squares = tl.zeros([BLOCK_M], tl.float32)
    for start in tl.range(0, K, BLOCK_K, num_stages=NUM_STAGES):
        k = start + k_lanes
        in_k = k < K
        x_ptrs = table_ptr + token[:, None] * K + k[None, :]
        x = tl.load(x_ptrs, mask=in_m[:, None] & in_k[None, :], other=0.0).to(tl.float32)
        weight = tl.load(weight_rows + k[:, None], mask=in_n[None, :] & in_k[:, None], other=0.0)
        gain = tl.load(embedding_gain_ptr + k, mask=in_k, other=0.0).to(tl.float32)
        squares += tl.sum(x * x, axis=1)
        embedded = dot(rounded(x * gain[None, :], weight.dtype), weight, embedded)
    embedded = embedded * tl.rsqrt(squares / K + EMBEDDING_EPS)[:, None]
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    squares = tl.zeros([BLOCK_M], tl.float32)
    raw_squares = tl.zeros([BLOCK_M], tl.float32)
    for start in tl.range(0, K, BLOCK_K, num_stages=NUM_STAGES):
        k = start + k_lanes
        in_k = k < K
        x_ptrs = hidden_ptr + m[:, None] * hidden_stride + k[None, :]
        x = tl.load(x_ptrs, mask=in_m[:, None] & in_k[None, :], other=0.0).to(tl.float32)
        weight = tl.load(weight_rows + K + k[:, None], mask=in_n[None, :] & in_k[:, None], other=0.0)
        gain = tl.load(hidden_gain_ptr + k, mask=in_k, other=0.0).to(tl.float32)
        if HAS_TARGET_NORM:
            raw_squares += tl.sum(x * x, axis=1)
            x = x * tl.load(target_gain_ptr + k, mask=in_k, other=0.0).to(tl.float32)[None, :]
        squares += tl.sum(x * x, axis=1)
        acc = dot(rounded(x * gain[None, :], weight.dtype), weight, acc)
    if HAS_TARGET_NORM:
        target_scale = tl.rsqrt(raw_squares / K + TARGET_EPS)
        scale = target_scale * tl.rsqrt(squares / K * target_scale * target_scale + HIDDEN_EPS)
    else:
        scale = tl.rsqrt(squares / K + HIDDEN_EPS)
    out = embedded + acc * scale[:, None]
    is_live = in_m[:, None] & in_n[None, :]
    tl.store(out_ptr + m[:, None] * out_stride + n[None, :], rounded(out, out_ptr.dtype.element_ty), mask=is_live)
