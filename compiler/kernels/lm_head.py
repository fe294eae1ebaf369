"""The drafted token of up to 16 rows: head norm, product with lm_head and argmax; no logit reaches memory."""

import triton
import triton.language as tl

from compiler.kernels.numerics import dot, packed, packed_index, rounded, through


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
    token token_ids[v], ascending.
    """
    program = tl.program_id(0)
    m = tl.arange(0, BLOCK_M)
    in_m = m < ROWS
    k_lanes = tl.arange(0, BLOCK_K)
    inverse_rms = _inverse_rms(x_ptr, x_stride, m, in_m, HIDDEN, EPS, BLOCK_D, NUM_STAGES)
    # the programs share out the columns of what leaves
    for start in range(program * BLOCK_D, HIDDEN, NUM_PROGRAMS * BLOCK_D):
        d = start + tl.arange(0, BLOCK_D)
        is_owned = in_m[:, None] & (d < HIDDEN)[None, :]
        x = tl.load(x_ptr + m[:, None] * x_stride + d[None, :], mask=is_owned, other=0.0)
        gain = tl.load(gain_ptr + d, mask=d < HIDDEN, other=0.0)
        normed = _normed(x, inverse_rms[:, None], gain[None, :])
        tl.store(normed_ptr + m[:, None] * normed_stride + d[None, :], normed, mask=is_owned)
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
            weight = tl.load(weight_ptr + rows[:, None] + k[None, :], mask=weight_mask, other=0.0)
            x_mask = in_m[None, :] & in_k[:, None]
            x = tl.load(x_ptr + m[None, :] * x_stride + k[:, None], mask=x_mask, other=0.0)
            gain = tl.load(gain_ptr + k, mask=in_k, other=0.0)
            acc = dot(weight, _normed(x, inverse_rms[None, :], gain[:, None]), acc)
        logits = through(acc, weight_ptr.dtype.element_ty)
        token = v
        if IS_TRIMMED:
            token = tl.load(token_ids_ptr + v, mask=in_v, other=0).to(tl.int32)
        allowed = logits
        if HAS_GRAMMAR:
            is_covered = (token < MASK_WORDS * 32)[:, None] & in_m[None, :]
            word_ptrs = bitmask_ptr + m[None, :] * bitmask_stride + (token // 32)[:, None]
            words = tl.load(word_ptrs, mask=is_covered, other=0)
            allowed = tl.where(((words >> (token % 32)[:, None]) & 1) == 1, logits, float("-inf"))
        keys = tl.where(in_v[:, None], packed(allowed, token[:, None]), 0)
        if HAS_CONFIDENCE:
            chosen = tl.where(keys > best, logits, chosen)
            # a token beyond the vocabulary adds exp(-inf)
            logits = tl.where(in_v[:, None], logits, float("-inf"))
            maximum, total = _summed(maximum, total, logits, 1.0)
        best = tl.where(keys > best, keys, best)
    winner = tl.max(best, axis=0)
    slot = program * ROWS + m
    tl.store(best_ptr + slot, winner, mask=in_m)
    if HAS_CONFIDENCE:
        highest = tl.max(maximum, axis=0)
        shares = total * tl.exp(maximum - _finite(highest)[None, :])
        tl.store(logit_ptr + slot, _of_winner(chosen, best, winner), mask=in_m)
        tl.store(maximum_ptr + slot, highest, mask=in_m)
        tl.store(sum_ptr + slot, tl.sum(shares, axis=0), mask=in_m)
    # what every thread stored must be seen before the program counts as arrived
    tl.debug_barrier()
    arrived = tl.atomic_add(arrived_ptr, 1, sem="acq_rel", scope="gpu")
    if arrived == NUM_PROGRAMS - 1:
        _reduce(
            token_ptr,
            probability_ptr,
            best_ptr,
            logit_ptr,
            maximum_ptr,
            sum_ptr,
            ROWS,
            HAS_CONFIDENCE,
            NUM_PROGRAMS,
            BLOCK_M,
            BLOCK_P,
        )
        tl.store(arrived_ptr, 0)


@triton.jit
def _reduce(
    # outputs
    token_ptr,
    probability_ptr,
    # inputs
    best_ptr,
    logit_ptr,
    maximum_ptr,
    sum_ptr,
    # sizes
    ROWS: tl.constexpr,
    # flags
    HAS_CONFIDENCE: tl.constexpr,
    # tiles
    NUM_PROGRAMS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_P: tl.constexpr,
):
    """Write the token of the best key that any program left, and its share of the sum over all of them."""
    m = tl.arange(0, BLOCK_M)
    in_m = m < ROWS
    best = tl.zeros([BLOCK_P, BLOCK_M], tl.uint64)
    chosen = tl.zeros([BLOCK_P, BLOCK_M], tl.float32)
    maximum = tl.full([BLOCK_P, BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_P, BLOCK_M], tl.float32)
    for start in range(0, NUM_PROGRAMS, BLOCK_P):
        program = start + tl.arange(0, BLOCK_P)
        is_live = (program < NUM_PROGRAMS)[:, None] & in_m[None, :]
        slots = program[:, None] * ROWS + m[None, :]
        # past the first cache level, which other multiprocessors do not write to
        keys = tl.load(best_ptr + slots, mask=is_live, other=0, cache_modifier=".cg")
        if HAS_CONFIDENCE:
            logit = tl.load(logit_ptr + slots, mask=is_live, other=0.0, cache_modifier=".cg")
            chosen = tl.where(keys > best, logit, chosen)
            part = tl.load(maximum_ptr + slots, mask=is_live, other=float("-inf"), cache_modifier=".cg")
            part_total = tl.load(sum_ptr + slots, mask=is_live, other=0.0, cache_modifier=".cg")
            maximum, total = _summed(maximum, total, part, part_total)
        best = tl.where(keys > best, keys, best)
    winner = tl.max(best, axis=0)
    tl.store(token_ptr + m, packed_index(winner).to(tl.int64), mask=in_m)
    if HAS_CONFIDENCE:
        base = _finite(tl.max(maximum, axis=0))
        whole = tl.sum(total * tl.exp(maximum - base[None, :]), axis=0)
        exponent = _of_winner(chosen, best, winner) - base - tl.log(tl.where(in_m, whole, 1.0))
        tl.store(probability_ptr + m, tl.exp(exponent), mask=in_m)


@triton.jit
def _summed(maximum, total, other_maximum, other_total):
    """Merge two sums of exp, each relative to a maximum of its own."""
    higher = tl.maximum(maximum, other_maximum)
    base = _finite(higher)
    return higher, total * tl.exp(maximum - base) + other_total * tl.exp(other_maximum - base)


@triton.jit
def _finite(x):
    """x, or 0 for an infinity: what exponents count from, since an infinity minus itself is NaN."""
    return tl.where(tl.abs(x) == float("inf"), 0.0, x)


@triton.jit
def _of_winner(chosen, best, winner):
    """What `chosen` holds where `best` is the winner of its column; keys differ, so it is one place."""
    return tl.sum(tl.where(best == winner[None, :], chosen, 0.0), axis=0)


@triton.jit
def _inverse_rms(
    # inputs
    x_ptr,
    x_stride,
    m,
    in_m,
    # sizes
    HIDDEN: tl.constexpr,
    # scalars
    EPS: tl.constexpr,
    # tiles
    BLOCK_D: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    """1 / sqrt(mean of x[m]^2 + EPS) of all rows."""
    squares = tl.zeros([m.shape[0]], tl.float32)
    for start in tl.range(0, HIDDEN, BLOCK_D, num_stages=NUM_STAGES):
        d = start + tl.arange(0, BLOCK_D)
        is_live = in_m[:, None] & (d < HIDDEN)[None, :]
        x = tl.load(x_ptr + m[:, None] * x_stride + d[None, :], mask=is_live, other=0.0).to(tl.float32)
        squares += tl.sum(x * x, axis=1)
    return tl.rsqrt(squares / HIDDEN + EPS)


@triton.jit
def _normed(x, inverse_rms, gain):
    """x * inverse_rms rounded, times the gain, rounded."""
    normalised = through(x.to(tl.float32) * inverse_rms, x.dtype)
    return rounded(normalised * gain.to(tl.float32), x.dtype)
