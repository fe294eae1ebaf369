"""The drafted token of up to 16 rows, by eight bits a weight first: what cannot win is not read in the model dtype.

Two kernels: bounds of every logit from rows in eight bits, then the logits of what is left. docs/numerics.md proves
that the token is the one that the whole head drafts, ties and roundings included.
"""

import triton
import triton.language as tl

from compiler.kernels.head_parts import allowed_of, inverse_rms_of, leave_best, normed_of, store_normed
from compiler.kernels.numerics import dot, packed, rounded, through, widened


@triton.jit
def lm_head_bounds(
    # outputs
    normed_ptr,
    upper_ptr,
    floor_ptr,
    # inputs
    x_ptr,
    gain_ptr,
    weight_ptr,
    scale_ptr,
    error_ptr,
    bitmask_ptr,
    token_ids_ptr,
    # sizes and strides
    ROWS: tl.constexpr,
    VOCAB: tl.constexpr,
    HIDDEN: tl.constexpr,
    MASK_WORDS: tl.constexpr,
    x_stride,
    normed_stride,
    bitmask_stride,
    # scalars
    EPS: tl.constexpr,
    # flags
    HAS_GRAMMAR: tl.constexpr,
    IS_TRIMMED: tl.constexpr,
    # tiles
    NUM_PROGRAMS: tl.constexpr,
    SHARE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_D: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    """upper[v, m] = round(a + e), floor[program, m] = max over v of round(a - e): a of eight bits, off by e at most.

    One program: SHARE tokens in tiles of BLOCK_V for all rows. What is not finite, or so large that a sum could
    overflow, has no bounds: upper is infinite and lower minus that.
    """
    program = tl.program_id(0)
    m = tl.arange(0, BLOCK_M)
    in_m = m < ROWS
    k_lanes = tl.arange(0, BLOCK_K)
    inverse_rms = inverse_rms_of(x_ptr, x_stride, m, in_m, HIDDEN, EPS, BLOCK_D, NUM_STAGES)
    store_normed(
        normed_ptr, x_ptr, gain_ptr, inverse_rms, m, in_m, HIDDEN, x_stride, normed_stride, NUM_PROGRAMS, BLOCK_D
    )
    norm = _norm(x_ptr, x_stride, gain_ptr, inverse_rms, m, in_m, HIDDEN, BLOCK_D, NUM_STAGES)
    best = tl.full([BLOCK_V, BLOCK_M], float("-inf"), tl.float32)
    stop = tl.minimum(program * SHARE + SHARE, VOCAB)
    for first in range(program * SHARE, stop, BLOCK_V):
        v = first + tl.arange(0, BLOCK_V)
        in_v = v < stop
        rows = v.to(tl.int64) * HIDDEN
        acc = tl.zeros([BLOCK_V, BLOCK_M], tl.float32)
        for start in tl.range(0, HIDDEN, BLOCK_K, num_stages=NUM_STAGES):
            k = start + k_lanes
            in_k = k < HIDDEN
            weight_mask = in_v[:, None] & in_k[None, :]
            weight = tl.load(weight_ptr + rows[:, None] + k[None, :], mask=weight_mask, other=0)
            x_mask = in_m[None, :] & in_k[:, None]
            x = tl.load(x_ptr + m[None, :] * x_stride + k[:, None], mask=x_mask, other=0.0)
            gain = tl.load(gain_ptr + k, mask=in_k, other=0.0)
            acc = dot(widened(weight, x.dtype), normed_of(x, inverse_rms[None, :], gain[:, None]), acc)
        about = acc * tl.load(scale_ptr + v, mask=in_v, other=0.0)[:, None]
        error = tl.load(error_ptr + v, mask=in_v, other=0.0)
        # beside it what underflows; 2^100 leaves room for every sum, and NaN is not below it
        error = error[:, None] * norm[None, :] + 7.888609052210118e-31
        is_bounded = (error < 1.2676506002282294e30) & (tl.abs(about) < float("inf"))
        upper = tl.where(is_bounded, about + error, float("inf"))
        lower = tl.where(is_bounded, about - error, float("-inf"))
        if HAS_GRAMMAR:
            token = v
            if IS_TRIMMED:
                token = tl.load(token_ids_ptr + v, mask=in_v, other=0).to(tl.int32)
            upper = allowed_of(upper, bitmask_ptr, bitmask_stride, token, m, in_m, MASK_WORDS)
            lower = allowed_of(lower, bitmask_ptr, bitmask_stride, token, m, in_m, MASK_WORDS)
        is_live = in_v[:, None] & in_m[None, :]
        upper_ptrs = upper_ptr + v.to(tl.int64)[:, None] * ROWS + m[None, :]
        tl.store(upper_ptrs, rounded(upper, upper_ptr.dtype.element_ty), mask=is_live)
        best = tl.where(is_live & (lower > best), lower, best)
    floor = through(tl.max(best, axis=0), upper_ptr.dtype.element_ty)
    tl.store(floor_ptr + program * ROWS + m, floor, mask=in_m)


@triton.jit
def lm_head_rescore(
    # outputs
    token_ptr,
    # work memory
    best_ptr,
    arrived_ptr,
    # inputs
    normed_ptr,
    weight_ptr,
    upper_ptr,
    floor_ptr,
    bitmask_ptr,
    token_ids_ptr,
    # sizes and strides
    ROWS: tl.constexpr,
    VOCAB: tl.constexpr,
    HIDDEN: tl.constexpr,
    MASK_WORDS: tl.constexpr,
    NUM_FLOORS: tl.constexpr,
    normed_stride,
    bitmask_stride,
    # flags
    HAS_GRAMMAR: tl.constexpr,
    IS_TRIMMED: tl.constexpr,
    # tiles
    NUM_PROGRAMS: tl.constexpr,
    SHARE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_P: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    """token[m] = argmax over the rows that could win of round(normed[m] . weight[v]); the lowest v wins a tie.

    One program: SHARE tokens in tiles of BLOCK_V for all rows. A row is read where upper reaches the best floor for any
    m; sums run in the order of lm_head's, whose tiles these are. Were all rows to reach it, this is the whole head.
    """
    program = tl.program_id(0)
    m = tl.arange(0, BLOCK_M)
    in_m = m < ROWS
    k_lanes = tl.arange(0, BLOCK_K)
    floors = tl.full([BLOCK_P, BLOCK_M], float("-inf"), tl.float32)
    for start in range(0, NUM_FLOORS, BLOCK_P):
        slot = start + tl.arange(0, BLOCK_P)
        is_slot = (slot < NUM_FLOORS)[:, None] & in_m[None, :]
        part = tl.load(floor_ptr + slot[:, None] * ROWS + m[None, :], mask=is_slot, other=float("-inf"))
        floors = tl.maximum(floors, part)
    floor = tl.max(floors, axis=0)
    best = tl.zeros([BLOCK_V, BLOCK_M], tl.uint64)
    stop = tl.minimum(program * SHARE + SHARE, VOCAB)
    # most programs have nothing that could win, and see it at once
    if _any_above(upper_ptr, floor, program * SHARE + tl.arange(0, BLOCK_S), stop, m, in_m, ROWS):
        for first in range(program * SHARE, stop, BLOCK_V):
            v = first + tl.arange(0, BLOCK_V)
            if _any_above(upper_ptr, floor, v, stop, m, in_m, ROWS):
                is_live = (v < stop)[:, None] & in_m[None, :]
                upper_ptrs = upper_ptr + v.to(tl.int64)[:, None] * ROWS + m[None, :]
                upper = tl.load(upper_ptrs, mask=is_live, other=0.0).to(tl.float32)
                could_win = tl.max((is_live & (upper >= floor[None, :])).to(tl.int32), axis=1) > 0
                rows = v.to(tl.int64) * HIDDEN
                acc = tl.zeros([BLOCK_V, BLOCK_M], tl.float32)
                for start in tl.range(0, HIDDEN, BLOCK_K, num_stages=NUM_STAGES):
                    k = start + k_lanes
                    in_k = k < HIDDEN
                    weight_mask = could_win[:, None] & in_k[None, :]
                    weight = tl.load(weight_ptr + rows[:, None] + k[None, :], mask=weight_mask, other=0.0)
                    normed_mask = in_m[None, :] & in_k[:, None]
                    normed_ptrs = normed_ptr + m[None, :] * normed_stride + k[:, None]
                    acc = dot(weight, tl.load(normed_ptrs, mask=normed_mask, other=0.0), acc)
                logits = through(acc, weight_ptr.dtype.element_ty)
                token = v
                if IS_TRIMMED:
                    token = tl.load(token_ids_ptr + v, mask=v < stop, other=0).to(tl.int32)
                if HAS_GRAMMAR:
                    logits = allowed_of(logits, bitmask_ptr, bitmask_stride, token, m, in_m, MASK_WORDS)
                keys = tl.where(could_win[:, None], packed(logits, token[:, None]), 0)
                best = tl.where(keys > best, keys, best)
    leave_best(
        token_ptr,
        token_ptr,
        best_ptr,
        best_ptr,
        best_ptr,
        best_ptr,
        arrived_ptr,
        best,
        best,
        best,
        best,
        m,
        in_m,
        ROWS,
        False,
        NUM_PROGRAMS,
        BLOCK_M,
        BLOCK_P,
    )


@triton.jit
def _any_above(upper_ptr, floor, v, stop, m, in_m, ROWS: tl.constexpr):
    """Whether any row of these tokens could win: upper[v, m] reaches floor[m]."""
    is_live = (v < stop)[:, None] & in_m[None, :]
    upper_ptrs = upper_ptr + v.to(tl.int64)[:, None] * ROWS + m[None, :]
    upper = tl.load(upper_ptrs, mask=is_live, other=0.0).to(tl.float32)
    reaches = is_live & (upper >= floor[None, :])
    return tl.max(tl.max(reaches.to(tl.int32), axis=1), axis=0) > 0


@triton.jit
def _norm(
    # inputs
    x_ptr,
    x_stride,
    gain_ptr,
    inverse_rms,
    m,
    in_m,
    # sizes
    HIDDEN: tl.constexpr,
    # tiles
    BLOCK_D: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    """At least the Euclidean norm of every normed row: what squares lose by underflow and rounding is added."""
    # 2^-125 for each square that is lost, and a relative 2^-22 for each sum
    squares = tl.full([m.shape[0]], HIDDEN * 2.350988701644575e-38, tl.float32)
    for start in tl.range(0, HIDDEN, BLOCK_D, num_stages=NUM_STAGES):
        d = start + tl.arange(0, BLOCK_D)
        is_live = in_m[:, None] & (d < HIDDEN)[None, :]
        x = tl.load(x_ptr + m[:, None] * x_stride + d[None, :], mask=is_live, other=0.0)
        gain = tl.load(gain_ptr + d, mask=d < HIDDEN, other=0.0)
        normed = normed_of(x, inverse_rms[:, None], gain[None, :]).to(tl.float32)
        squares += tl.sum(normed * normed, axis=1)
    return tl.sqrt(squares) * (1.0 + HIDDEN * 2.384185791015625e-07)
