"""The drafted token of up to 16 rows: head norm, product with lm_head and argmax; no logit reaches memory."""

import triton
import triton.language as tl

from compiler.kernels.head_parts import allowed_of, inverse_rms_of, leave_best, merged_sums, normed_of, store_normed
from compiler.kernels.numerics import dot, packed, through, widened


@triton.jit
def lm_head(
    # outputs
    token_ptr,
    normed_ptr,
    probability_ptr,
    # work memory
    best_ptr,
    logit_ptr,
    maximum_ptr,
    sum_ptr,
    arrived_ptr,
    # inputs
    x_ptr,
    gain_ptr,
    weight_ptr,
    scale_ptr,
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
    HAS_CONFIDENCE: tl.constexpr,
    IS_TRIMMED: tl.constexpr,
    IS_QUANTISED: tl.constexpr,
    # tiles
    NUM_PROGRAMS: tl.constexpr,
    SHARE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_P: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    """token[m] = argmax over v of round(normed[m] . weight[v]), normed = x / rms(x) * gain; the lowest v wins a tie.

    One program: SHARE tokens in tiles of BLOCK_V for all rows, then its best key of each row; the last to arrive
    reduces the keys. Rounded where the nodes round, so that logits tie where theirs do. With HAS_GRAMMAR only tokens
    whose bit is set compete; the probability of the token is over all of them. With IS_TRIMMED row v of the weight is
    token token_ids[v], ascending. With IS_QUANTISED the weight has eight bits, which fit the model dtype exactly, and
    logits are scale[v] times its product, in float32.
    """
    program = tl.program_id(0)
    m = tl.arange(0, BLOCK_M)
    in_m = m < ROWS
    k_lanes = tl.arange(0, BLOCK_K)
    inverse_rms = inverse_rms_of(x_ptr, x_stride, m, in_m, HIDDEN, EPS, BLOCK_D, NUM_STAGES)
    store_normed(
        normed_ptr, x_ptr, gain_ptr, inverse_rms, m, in_m, HIDDEN, x_stride, normed_stride, NUM_PROGRAMS, BLOCK_D
    )
    # below the key of every logit
    best = tl.zeros([BLOCK_V, BLOCK_M], tl.uint64)
    chosen = tl.zeros([BLOCK_V, BLOCK_M], tl.float32)
    maximum = tl.full([BLOCK_V, BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_V, BLOCK_M], tl.float32)
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
            if IS_QUANTISED:
                weight = widened(weight, x.dtype)
            acc = dot(weight, normed_of(x, inverse_rms[None, :], gain[:, None]), acc)
        if IS_QUANTISED:
            acc = acc * tl.load(scale_ptr + v, mask=in_v, other=0.0)[:, None]
        logits = through(acc, x_ptr.dtype.element_ty)
        token = v
        if IS_TRIMMED:
            token = tl.load(token_ids_ptr + v, mask=in_v, other=0).to(tl.int32)
        allowed = logits
        if HAS_GRAMMAR:
            allowed = allowed_of(logits, bitmask_ptr, bitmask_stride, token, m, in_m, MASK_WORDS)
        keys = tl.where(in_v[:, None], packed(allowed, token[:, None]), 0)
        if HAS_CONFIDENCE:
            chosen = tl.where(keys > best, logits, chosen)
            # a token beyond the vocabulary adds exp(-inf)
            logits = tl.where(in_v[:, None], logits, float("-inf"))
            maximum, total = merged_sums(maximum, total, logits, 1.0)
        best = tl.where(keys > best, keys, best)
    leave_best(
        token_ptr,
        probability_ptr,
        best_ptr,
        logit_ptr,
        maximum_ptr,
        sum_ptr,
        arrived_ptr,
        best,
        chosen,
        maximum,
        total,
        m,
        in_m,
        ROWS,
        HAS_CONFIDENCE,
        NUM_PROGRAMS,
        BLOCK_M,
        BLOCK_P,
    )
