"""What every form of the head's kernel does beside its product: the norm, the mask of a grammar, the best key."""

import triton
import triton.language as tl

from compiler.kernels.numerics import packed_index, rounded, through


@triton.jit
def inverse_rms_of(
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
def normed_of(x, inverse_rms, gain):
    """x * inverse_rms rounded, times the gain, rounded."""
    normalised = through(x.to(tl.float32) * inverse_rms, x.dtype)
    return rounded(normalised * gain.to(tl.float32), x.dtype)


@triton.jit
def store_normed(
    # outputs
    normed_ptr,
    # inputs
    x_ptr,
    gain_ptr,
    inverse_rms,
    m,
    in_m,
    # sizes and strides
    HIDDEN: tl.constexpr,
    x_stride,
    normed_stride,
    # tiles
    NUM_PROGRAMS: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Write the normed rows; the programs share out their columns."""
    for start in range(tl.program_id(0) * BLOCK_D, HIDDEN, NUM_PROGRAMS * BLOCK_D):
        d = start + tl.arange(0, BLOCK_D)
        is_owned = in_m[:, None] & (d < HIDDEN)[None, :]
        x = tl.load(x_ptr + m[:, None] * x_stride + d[None, :], mask=is_owned, other=0.0)
        gain = tl.load(gain_ptr + d, mask=d < HIDDEN, other=0.0)
        normed = normed_of(x, inverse_rms[:, None], gain[None, :])
        tl.store(normed_ptr + m[:, None] * normed_stride + d[None, :], normed, mask=is_owned)


@triton.jit
def allowed_of(
    logits,
    # inputs
    bitmask_ptr,
    bitmask_stride,
    token,
    m,
    in_m,
    # sizes
    MASK_WORDS: tl.constexpr,
):
    """Logits [token, m], -inf where the bit of a token is not set or not there."""
    is_covered = (token < MASK_WORDS * 32)[:, None] & in_m[None, :]
    word_ptrs = bitmask_ptr + m[None, :] * bitmask_stride + (token // 32)[:, None]
    words = tl.load(word_ptrs, mask=is_covered, other=0)
    return tl.where(((words >> (token % 32)[:, None]) & 1) == 1, logits, float("-inf"))


@triton.jit
def leave_best(
    # outputs
    token_ptr,
    probability_ptr,
    # work memory
    best_ptr,
    logit_ptr,
    maximum_ptr,
    sum_ptr,
    arrived_ptr,
    # inputs
    best,
    chosen,
    maximum,
    total,
    m,
    in_m,
    # sizes
    ROWS: tl.constexpr,
    # flags
    HAS_CONFIDENCE: tl.constexpr,
    # tiles
    NUM_PROGRAMS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_P: tl.constexpr,
):
    """Leave a program's best keys [v, m] and sums; the last program to arrive reduces those of all."""
    winner = tl.max(best, axis=0)
    slot = tl.program_id(0) * ROWS + m
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
            maximum, total = merged_sums(maximum, total, part, part_total)
        best = tl.where(keys > best, keys, best)
    winner = tl.max(best, axis=0)
    tl.store(token_ptr + m, packed_index(winner).to(tl.int64), mask=in_m)
    if HAS_CONFIDENCE:
        base = _finite(tl.max(maximum, axis=0))
        whole = tl.sum(total * tl.exp(maximum - base[None, :]), axis=0)
        exponent = _of_winner(chosen, best, winner) - base - tl.log(tl.where(in_m, whole, 1.0))
        tl.store(probability_ptr + m, tl.exp(exponent), mask=in_m)


@triton.jit
def merged_sums(maximum, total, other_maximum, other_total):
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
