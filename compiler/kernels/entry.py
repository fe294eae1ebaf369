"""The entry of a draft for up to 16 rows: a token's embedding and a hidden, each normalised, joined and projected."""

import triton
import triton.language as tl

from compiler.kernels.numerics import dot, rounded


@triton.jit
def entry_gemv(
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
    PARTS: tl.constexpr,
    PART_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    """out[m] = weight @ concat(norm(table[token[m]]), norm(hidden[m])), each half K wide, weight [N, 2 K].

    One program: BLOCK_N outputs of all rows; its warps share out PARTS runs of PART_SIZE summands of each half, added
    in order at the end. Scales of rows follow the sums. With HAS_TARGET_NORM the hidden passes the target's norm
    first: both gains go into the product, and the second scale comes of the sum of squares between them. In float32;
    x * gain is rounded for the product, where the nodes round after each scale and each gain.
    """
    n = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    m = tl.arange(0, BLOCK_M)
    in_n = n < N
    in_m = m < ROWS
    token = tl.load(token_ptr + m, mask=in_m, other=0).to(tl.int64)
    embedding_rows = table_ptr + token[None, None, :] * K
    hidden_rows = hidden_ptr + m[None, None, :] * hidden_stride
    weight_rows = weight_ptr + n[None, :, None] * (2 * K)
    part_lanes = tl.arange(0, PARTS)[:, None] * PART_SIZE + tl.arange(0, BLOCK_K)[None, :]
    embedding_acc = tl.zeros([PARTS, BLOCK_N, BLOCK_M], tl.float32)
    hidden_acc = tl.zeros([PARTS, BLOCK_N, BLOCK_M], tl.float32)
    embedding_squares = tl.zeros([PARTS, BLOCK_M], tl.float32)
    hidden_squares = tl.zeros([PARTS, BLOCK_M], tl.float32)
    target_squares = tl.zeros([PARTS, BLOCK_M], tl.float32)
    # both halves in one loop: between two loops nothing would be on its way
    for start in tl.range(0, PART_SIZE, BLOCK_K, num_stages=NUM_STAGES):
        k = start + part_lanes
        in_k = k < K
        in_weight = in_n[None, :, None] & in_k[:, None, :]
        in_x = in_m[None, None, :] & in_k[:, :, None]
        weight = tl.load(weight_rows + k[:, None, :], mask=in_weight, other=0.0)
        x = tl.load(embedding_rows + k[:, :, None], mask=in_x, other=0.0).to(tl.float32)
        gain = tl.load(embedding_gain_ptr + k, mask=in_k, other=0.0).to(tl.float32)
        embedding_squares += tl.sum(x * x, axis=1)
        embedding_acc = dot(weight, rounded(x * gain[:, :, None], weight.dtype), embedding_acc)
        weight = tl.load(weight_rows + K + k[:, None, :], mask=in_weight, other=0.0)
        x = tl.load(hidden_rows + k[:, :, None], mask=in_x, other=0.0).to(tl.float32)
        gain = tl.load(hidden_gain_ptr + k, mask=in_k, other=0.0).to(tl.float32)
        if HAS_TARGET_NORM:
            target_squares += tl.sum(x * x, axis=1)
            x = x * tl.load(target_gain_ptr + k, mask=in_k, other=0.0).to(tl.float32)[:, :, None]
        hidden_squares += tl.sum(x * x, axis=1)
        hidden_acc = dot(weight, rounded(x * gain[:, :, None], weight.dtype), hidden_acc)
    embedding_scale = tl.rsqrt(tl.sum(embedding_squares, axis=0) / K + EMBEDDING_EPS)
    hidden_mean = tl.sum(hidden_squares, axis=0) / K
    if HAS_TARGET_NORM:
        target_scale = tl.rsqrt(tl.sum(target_squares, axis=0) / K + TARGET_EPS)
        hidden_scale = target_scale * tl.rsqrt(hidden_mean * target_scale * target_scale + HIDDEN_EPS)
    else:
        hidden_scale = tl.rsqrt(hidden_mean + HIDDEN_EPS)
    out = tl.sum(embedding_acc, axis=0) * embedding_scale[None, :] + tl.sum(hidden_acc, axis=0) * hidden_scale[None, :]
    is_live = in_n[:, None] & in_m[None, :]
    out_ptrs = out_ptr + m[None, :] * out_stride + n[:, None]
    tl.store(out_ptrs, rounded(out, out_ptr.dtype.element_ty), mask=is_live)
