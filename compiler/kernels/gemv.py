"""Products of a few rows with a weight that is read once per 16 of them, 16 bytes at a time."""

import triton
import triton.language as tl

from compiler.kernels.numerics import dot, rounded, through


@triton.jit
def gemv_residual(
    # outputs
    out_ptr,
    # inputs
    x_ptr,
    weight_ptr,
    residual_ptr,
    # sizes and strides
    ROWS: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    x_stride,
    out_stride,
    residual_stride,
    # tiles
    PARTS: tl.constexpr,
    PART_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    """out[m, n] = residual[m, n] + sum over k of x[m, k] * weight[n, k].

    One program: BLOCK_N outputs of BLOCK_M rows; its warps share out PARTS runs of PART_SIZE summands, added in order
    at the end. The weight tile is the left operand, so that few rows fill the tensor cores. Accumulates in float32,
    rounds the product and then the sum, as the nodes do.
    """
    n = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    m = tl.arange(0, BLOCK_M)
    first_row = tl.program_id(1).to(tl.int64) * BLOCK_M
    x_ptr += first_row * x_stride
    out_ptr += first_row * out_stride
    residual_ptr += first_row * residual_stride
    in_n = n < N
    in_m = m < ROWS - tl.program_id(1) * BLOCK_M
    part_lanes = tl.arange(0, PARTS)[:, None] * PART_SIZE + tl.arange(0, BLOCK_K)[None, :]
    acc = tl.zeros([PARTS, BLOCK_N, BLOCK_M], tl.float32)
    for start in tl.range(0, PART_SIZE, BLOCK_K, num_stages=NUM_STAGES):
        k = start + part_lanes
        in_k = k < K
        weight_ptrs = weight_ptr + n[None, :, None] * K + k[:, None, :]
        weight = tl.load(weight_ptrs, mask=in_n[None, :, None] & in_k[:, None, :], other=0.0)
        x_ptrs = x_ptr + m[None, None, :] * x_stride + k[:, :, None]
        x = tl.load(x_ptrs, mask=in_m[None, None, :] & in_k[:, :, None], other=0.0)
        acc = dot(weight, x, acc)
    is_live = in_n[:, None] & in_m[None, :]
    dtype = out_ptr.dtype.element_ty
    residual = tl.load(residual_ptr + m[None, :] * residual_stride + n[:, None], mask=is_live, other=0.0)
    total = residual.to(tl.float32) + through(tl.sum(acc, axis=0), dtype)
    tl.store(out_ptr + m[None, :] * out_stride + n[:, None], rounded(total, dtype), mask=is_live)
