"""The best pools of a row by keys that sort like their scores, and the selection that they and the tail make.

A key of 0 is no pool: one that is not there, not visible, or of a score of -inf. Above a row's keys lie levels of the
largest of every GROUP neighbours, those of level 1 over the keys, those of level 2 over level 1, and so on.
"""

import triton
import triton.language as tl

from compiler.kernels.numerics import ordered_bits

GROUP = tl.constexpr(4)


@triton.jit
def level_start(level: tl.constexpr, NUM_KEYS: tl.constexpr):
    """Return where a level begins in a row of work memory; NUM_KEYS is a multiple of what one key of it stands for."""
    # the sum of NUM_KEYS / GROUP**l over the levels below
    return (NUM_KEYS - NUM_KEYS // GROUP**level) * GROUP // (GROUP - 1)


@triton.jit
def score_keys(scores, is_pool):
    """Map float32 scores to uint32 keys that sort alike, 0 where there is no pool; zeros of both signs are one key."""
    keys = ordered_bits(tl.where(scores == 0, 0.0, scores))
    return tl.where(is_pool & (scores != float("-inf")), keys, 0).to(tl.uint32)


@triton.jit
def best_lanes(keys, BUDGET: tl.constexpr):
    """Choose the lanes of the BUDGET largest keys, the lowest lanes among equals and none whose key is 0.

    Returns which are chosen, each one's place among the chosen, and how many there are. Bisects for the largest bound
    that BUDGET keys reach, and stops early where exactly so many do.
    """
    low = tl.full([], 1, tl.uint32)
    high = tl.max(keys, axis=0)
    count = tl.sum((keys >= low).to(tl.int32), axis=0)
    while (count > BUDGET) & (low < high):
        middle = high - ((high - low) >> 1)
        reached = tl.sum((keys >= middle).to(tl.int32), axis=0)
        is_enough = reached >= BUDGET
        low = tl.where(is_enough, middle, low)
        high = tl.where(is_enough, high, middle - 1)
        count = tl.where(is_enough, reached, count)
    is_above = keys > low
    is_equal = keys == low
    # both counts in one sum, 16 bits each: fewer than BUDGET keys lie above, the lower half counts the equal ones
    both = tl.cumsum(is_above.to(tl.int32) * 65536 + is_equal.to(tl.int32), axis=0)
    num_above = both >> 16
    num_equal = both & 0xFFFF
    room = BUDGET - tl.max(num_above, axis=0)
    is_chosen = is_above | (is_equal & (num_equal <= room))
    return is_chosen, num_above + tl.minimum(num_equal, room) - 1, tl.minimum(count, BUDGET)


@triton.jit
def choose_pools(
    # output of one row
    best_ptr,
    # input of one row
    keys_ptr,
    # sizes
    num_pools,
    NUM_KEYS: tl.constexpr,
    BUDGET: tl.constexpr,
    # tiles
    LEVELS: tl.constexpr,
    TILE: tl.constexpr,
):
    """Write the row's best BUDGET pools to `best`, ascending, and return their number.

    From the lowest level that has at most TILE keys down: the best BUDGET of a level, then the best of their groups.
    Exact, with ties: a group that holds one of the best BUDGET keys is beaten by fewer than BUDGET groups, since each
    of those holds a better key. TILE is at least BUDGET * GROUP. Keys come from other programs: read past the L1.
    """
    lane = tl.arange(0, TILE)
    num_listed = tl.zeros([], tl.int32)
    for level in tl.static_range(LEVELS - 1, -1, -1):
        span = GROUP**level
        # the level below has more than TILE keys, or there is none
        if num_pools * GROUP > TILE * span or level == 0:
            rank = lane // GROUP
            is_listed = rank < num_listed
            group = tl.load(best_ptr + rank, mask=is_listed, other=0)
            item = tl.where(is_listed, group * GROUP + lane % GROUP, lane)
            num_candidates = tl.where(num_listed > 0, num_listed * GROUP, TILE)
            is_candidate = (lane < num_candidates) & (item * span < num_pools)
            key_ptrs = keys_ptr + level_start(level, NUM_KEYS) + item
            keys = tl.load(key_ptrs, mask=is_candidate, other=0, cache_modifier=".cg")
            is_chosen, place, num_listed = best_lanes(keys.to(tl.uint32, bitcast=True), BUDGET)
            # the list is read, written and read again
            tl.debug_barrier()
            tl.store(best_ptr + place, item, mask=is_chosen)
            tl.debug_barrier()
    return num_listed


@triton.jit
def write_selection(
    # outputs of one row
    selected_ptr,
    extended_ptr,
    # inputs of one row
    best_ptr,
    num_chosen,
    num_listed,
    position,
    selected_at,
    # sizes
    BUDGET: tl.constexpr,
    KPOOL: tl.constexpr,
    EXTRA: tl.constexpr,
    # tiles
    BLOCK_W: tl.constexpr,
):
    """Write tokens of the chosen pools, then -1, the tail, then -1; and the same with EXTRA newer rows, if there are.

    The chosen pools are the `num_listed` ones in `best`, or the first ones where that is 0.
    """
    WIDTH: tl.constexpr = BUDGET * KPOOL + KPOOL - 1
    for start in range(0, WIDTH + EXTRA, BLOCK_W):
        column = start + tl.arange(0, BLOCK_W)
        rank = column // KPOOL
        is_pool = rank < num_chosen
        is_listed = rank < num_listed
        pool = tl.where(is_listed, tl.load(best_ptr + rank, mask=is_listed, other=0), rank)
        token = (pool * KPOOL + column % KPOOL).to(tl.int64)
        tail = (position + 1) // KPOOL * KPOOL + (column - BUDGET * KPOOL)
        is_tail = (column >= BUDGET * KPOOL) & (column < WIDTH)
        token = tl.where(is_tail, tail, token)
        token = tl.where(is_pool | (is_tail & (tail <= position)), token, -1)
        tl.store(selected_ptr + column, token, mask=column < WIDTH)
        if EXTRA > 0:
            newer = selected_at + 1 + (column - WIDTH)
            newer = tl.where(newer <= position, newer, -1)
            extended = tl.where(column < WIDTH, token, newer)
            tl.store(extended_ptr + column, extended, mask=column < WIDTH + EXTRA)


@triton.jit
def extend_row(
    # outputs of one row
    extended_ptr,
    # inputs of one row
    selected_ptr,
    position,
    selected_at,
    # sizes
    WIDTH: tl.constexpr,
    EXTRA: tl.constexpr,
    # tiles
    BLOCK_W: tl.constexpr,
):
    """Write a selection and the rows after the one that made it, then -1."""
    for start in range(0, WIDTH + EXTRA, BLOCK_W):
        column = start + tl.arange(0, BLOCK_W)
        held = tl.load(selected_ptr + column, mask=column < WIDTH, other=-1)
        newer = selected_at + 1 + (column - WIDTH)
        newer = tl.where(newer <= position, newer, -1)
        tl.store(extended_ptr + column, tl.where(column < WIDTH, held, newer), mask=column < WIDTH + EXTRA)
