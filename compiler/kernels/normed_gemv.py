"""Products of few normalised rows with a weight that is read 16 bytes at a time; the norm costs no pass of its own."""

import triton
import triton.language as tl

from compiler.kernels.numerics import dot, rounded


@triton.jit
def normed_gemv(
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
    PARTS: tl.constexpr,
    PART_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    """out[m, n] = rsqrt(mean(x[m]^2) + EPS) * sum over k of x[m, k] * gain[k] * weight[n, k].

    One program: BLOCK_N outputs of BLOCK_M rows; its warps share out PARTS runs of PART_SIZE summands, added in order
    at the end. The scale of a row follows the sum, so its squares are summed in the same loop. In float32; x * gain is
    rounded for the product, where the nodes round x * scale and then the gain.
    """
    n = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    m = tl.arange(0, BLOCK_M)
    first_row = tl.program_id(1).to(tl.int64) * BLOCK_M
    x_ptr += first_row * x_stride
    out_ptr += first_row * out_stride
    in_n = n < N
    in_m = m < ROWS - tl.program_id(1) * BLOCK_M
    part_lanes = tl.arange(0, PARTS)[:, None] * PART_SIZE + tl.arange(0, BLOCK_K)[None, :]
    acc = tl.zeros([PARTS, BLOCK_N, BLOCK_M], tl.float32)
    squares = tl.zeros([PARTS, BLOCK_M], tl.float32)
    for start in tl.range(0, PART_SIZE, BLOCK_K, num_stages=NUM_STAGES):
        k = start + part_lanes
        in_k = k < K
        weight_ptrs = weight_ptr + n[None, :, None] * K + k[:, None, :]
        weight = tl.load(weight_ptrs, mask=in_n[None, :, None] & in_k[:, None, :], other=0.0)
        x_ptrs = x_ptr + m[None, None, :] * x_stride + k[:, :, None]
        x = tl.load(x_ptrs, mask=in_m[None, None, :] & in_k[:, :, None], other=0.0).to(tl.float32)
        gain = tl.load(gain_ptr + k, mask=in_k, other=0.0).to(tl.float32)
        squares += tl.sum(x * x, axis=1)
        acc = dot(weight, rounded(x * gain[:, :, None], weight.dtype), acc)
    scale = tl.rsqrt(tl.sum(squares, axis=0) / K + EPS)
    out = tl.sum(acc, axis=0) * scale[None, :]
    is_live = in_n[:, None] & in_m[None, :]
    tl.store(out_ptr + m[None, :] * out_stride + n[:, None], rounded(out, out_ptr.dtype.element_ty), mask=is_live)
