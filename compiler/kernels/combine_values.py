"""What the splits of attention left, combined per head and moved into its value space by W_UV."""

import triton
import triton.language as tl

from compiler.kernels.numerics import dot, rounded


@triton.jit
def combine_values(
    # outputs
    out_ptr,
    # inputs
    partial_ptr,
    maximum_ptr,
    sum_ptr,
    weight_ptr,
    # sizes and strides
    ROWS: tl.constexpr,
    HEADS: tl.constexpr,
    LATENT: tl.constexpr,
    VALUE: tl.constexpr,
    KEY_ROWS: tl.constexpr,
    out_stride,
    # tiles
    SPLITS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_L: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    """out[m, h, v] = sum over l of attended[m, h, l] * weight[h, v, l], attended = the splits by their shares.

    One program: BLOCK_V values of one head, all rows, so that each weight is read once. Of each head's weight KEY_ROWS
    rows come first and are skipped. `attended` is rounded as the node between the two does; a row whose splits are all
    empty gives zeros.
    """
    head = tl.program_id(0).to(tl.int64)
    v = tl.program_id(1) * BLOCK_V + tl.arange(0, BLOCK_V)
    weight_rows = head * (KEY_ROWS + VALUE) + KEY_ROWS + v
    m = tl.arange(0, BLOCK_M)
    in_m = m < ROWS
    in_v = v < VALUE
    parts = (m * HEADS + head) * SPLITS + tl.arange(0, SPLITS)[:, None]
    maxima = tl.load(maximum_ptr + parts, mask=in_m[None, :], other=float("-inf"))
    sums = tl.load(sum_ptr + parts, mask=in_m[None, :], other=0.0)
    highest = tl.max(maxima, axis=0)
    # -inf minus itself is NaN, so a row without tokens counts from 0
    shares = tl.exp2(maxima - tl.where(highest == float("-inf"), 0.0, highest)[None, :])
    total = tl.sum(shares * sums, axis=0)
    # without tokens every share is exp2(-inf) = 0 already
    shares = shares / tl.where(total == 0.0, 1.0, total)[None, :]
    dtype = out_ptr.dtype.element_ty
    acc = tl.zeros([BLOCK_V, BLOCK_M], tl.float32)
    for start in tl.range(0, LATENT, BLOCK_L, num_stages=NUM_STAGES):
        lanes = start + tl.arange(0, BLOCK_L)
        in_latent = lanes < LATENT
        weight_ptrs = weight_ptr + weight_rows[:, None] * LATENT + lanes[None, :]
        weight = tl.load(weight_ptrs, mask=in_v[:, None] & in_latent[None, :], other=0.0)
        partial_ptrs = partial_ptr + parts[:, None, :] * LATENT + lanes[None, :, None]
        partial = tl.load(partial_ptrs, mask=in_m[None, None, :] & in_latent[None, :, None], other=0.0)
        attended = tl.sum(partial * shares[:, None, :], axis=0)
        acc = dot(weight, rounded(attended, dtype), acc)
    out_ptrs = out_ptr + m[None, :] * out_stride + (head * VALUE + v)[:, None]
    tl.store(out_ptrs, rounded(acc, dtype), mask=in_v[:, None] & in_m[None, :])
