"""Products of up to 16 rows with a weight: the weight is read once, and every read of it is 16 bytes wide."""

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
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    """out[m, n] = residual[m, n] + sum over k of x[m, k] * weight[n, k].

    One program: BLOCK_N outputs of all rows. The weight tile is the left operand, so that few rows fill the tensor
    cores. Accumulates in float32, rounds the product and then the sum, as the nodes do.
    """
    n = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    m = tl.arange(0, BLOCK_M)
    in_n = n < N
    in_m = m < ROWS
    k_lanes = tl.arange(0, BLOCK_K)
    acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    for start in tl.range(0, K, BLOCK_K, num_stages=NUM_STAGES):
        k = start + k_lanes
        in_k = k < K
        weight = tl.load(weight_ptr + n[:, None] * K + k[None, :], mask=in_n[:, None] & in_k[None, :], other=0.0)
        x = tl.load(x_ptr + m[None, :] * x_stride + k[:, None], mask=in_m[None, :] & in_k[:, None], other=0.0)
        acc = dot(weight, x, acc)
    is_live = in_n[:, None] & in_m[None, :]
    dtype = out_ptr.dtype.element_ty
    residual = tl.load(residual_ptr + m[None, :] * residual_stride + n[:, None], mask=is_live, other=0.0)
    total = residual.to(tl.float32) + through(acc, dtype)
    tl.store(out_ptr + m[None, :] * out_stride + n[:, None], rounded(total, dtype), mask=is_live)
