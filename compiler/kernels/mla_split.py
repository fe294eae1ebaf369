"""Sparse attention in latent space, split over the selection: each split leaves a partial output, maximum and sum."""

import triton
import triton.language as tl

from compiler.kernels.numerics import dot, rounded


@triton.jit
def mla_split(
    # outputs
    partial_ptr,
    maximum_ptr,
    sum_ptr,
    # inputs
    latent_ptr,
    query_ptr,
    selected_ptr,
    block_table_ptr,
    # sizes and strides
    HEADS: tl.constexpr,
    LATENT: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    query_stride,
    query_head_stride,
    selected_stride,
    block_table_stride,
    # scalars
    SCALE: tl.constexpr,
    # tiles
    SPLITS: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_L: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    """partial[row, h, split] = sum over its t of exp2(score - maximum) * latent[t]; score = SCALE * query . latent[t].

    One program: BLOCK_H heads of one row over every SPLITS-th tile of its selection, so that a short selection, whose
    tokens come first, still meets all splits. SCALE holds log2(e). A split without tokens leaves a sum of 0.
    """
    row = tl.program_id(2).to(tl.int64)
    split = tl.program_id(1)
    heads = tl.program_id(0) * BLOCK_H + tl.arange(0, BLOCK_H)
    lanes = tl.arange(0, BLOCK_L)
    in_heads = heads < HEADS
    in_latent = lanes < LATENT
    is_live = in_heads[:, None] & in_latent[None, :]
    query_ptrs = query_ptr + row * query_stride + heads[:, None] * query_head_stride + lanes[None, :]
    query = tl.load(query_ptrs, mask=is_live, other=0.0)
    maximum = tl.full([BLOCK_H], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_H], tl.float32)
    attended = tl.zeros([BLOCK_H, BLOCK_L], tl.float32)
    for tile in tl.range(split, (WIDTH + BLOCK_T - 1) // BLOCK_T, SPLITS, num_stages=NUM_STAGES):
        slot = tile * BLOCK_T + tl.arange(0, BLOCK_T)
        in_width = slot < WIDTH
        token = tl.load(selected_ptr + row * selected_stride + slot, mask=in_width, other=-1).to(tl.int32)
        is_token = token >= 0
        entry = token // BLOCK_SIZE
        block = tl.load(block_table_ptr + row * block_table_stride + entry, mask=is_token, other=0)
        starts = (block * BLOCK_SIZE + token % BLOCK_SIZE) * LATENT
        # what was not selected is not read: it may hold NaN, and 0 * NaN is NaN
        is_read = is_token[:, None] & in_latent[None, :]
        latent = tl.load(latent_ptr + starts[:, None] + lanes[None, :], mask=is_read, other=0.0)
        scores = dot(query, tl.trans(latent), tl.zeros([BLOCK_H, BLOCK_T], tl.float32)) * SCALE
        scores = tl.where(is_token[None, :], scores, float("-inf"))
        higher = tl.maximum(maximum, tl.max(scores, axis=1))
        # -inf minus itself is NaN, so nothing seen yet counts from 0
        base = tl.where(higher == float("-inf"), 0.0, higher)
        shrink = tl.exp2(maximum - base)
        weights = tl.exp2(scores - base[:, None])
        total = total * shrink + tl.sum(weights, axis=1)
        attended = dot(rounded(weights, latent.dtype), latent, attended * shrink[:, None])
        maximum = higher
    parts = (row * HEADS + heads) * SPLITS + split
    tl.store(partial_ptr + parts[:, None] * LATENT + lanes[None, :], attended, mask=is_live)
    tl.store(maximum_ptr + parts, maximum, mask=in_heads)
    tl.store(sum_ptr + parts, total, mask=in_heads)
