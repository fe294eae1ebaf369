"""Queries moved into the latent space, beside them, in the same launch, the indexer's scores and the best pools."""

import triton
import triton.language as tl

from compiler.kernels.numerics import dot, rounded
from compiler.kernels.top_pools import GROUP, choose_pools, extend_row, level_start, score_keys, write_selection


@triton.jit
def absorb_columns(
    program,
    # outputs
    absorbed_ptr,
    # inputs
    query_ptr,
    weight_ptr,
    # sizes
    ROWS: tl.constexpr,
    NOPE: tl.constexpr,
    LATENT: tl.constexpr,
    HEAD_ROWS: tl.constexpr,
    # strides
    absorbed_stride,
    absorbed_head_stride,
    query_stride,
    query_head_stride,
    # tiles
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    """absorbed[m, h, l] = sum over d of query[m, h, d] * weight[h * HEAD_ROWS + d, l].

    One program: BLOCK_N columns of one head, all rows. Accumulates in float32 and rounds once.
    """
    tiles: tl.constexpr = (LATENT + BLOCK_N - 1) // BLOCK_N
    head = (program // tiles).to(tl.int64)
    column = program % tiles * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.arange(0, BLOCK_M).to(tl.int64)
    in_column = column < LATENT
    in_m = m < ROWS
    weight_ptr += head * HEAD_ROWS * LATENT
    query_ptr += head * query_head_stride
    acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    for start in tl.range(0, NOPE, BLOCK_K, num_stages=NUM_STAGES):
        k = start + tl.arange(0, BLOCK_K)
        in_k = k < NOPE
        weight = tl.load(
            weight_ptr + k[None, :] * LATENT + column[:, None], mask=in_column[:, None] & in_k[None, :], other=0.0
        )
        query = tl.load(
            query_ptr + m[None, :] * query_stride + k[:, None], mask=in_m[None, :] & in_k[:, None], other=0.0
        )
        acc = dot(weight, query, acc)
    absorbed_ptrs = absorbed_ptr + head * absorbed_head_stride + m[None, :] * absorbed_stride + column[:, None]
    tl.store(absorbed_ptrs, rounded(acc, absorbed_ptr.dtype.element_ty), mask=in_column[:, None] & in_m[None, :])


@triton.jit
def score_tiles(
    first,
    num_tiles,
    num_pools,
    # output of one row
    keys_ptr,
    # inputs, of one row but for the pool keys
    pool_keys_ptr,
    index_query_ptr,
    head_weights_ptr,
    block_table_ptr,
    # sizes
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    ENTRIES: tl.constexpr,
    NUM_KEYS: tl.constexpr,
    # strides
    index_query_head_stride,
    # tiles
    PROGRAMS: tl.constexpr,
    LEVELS: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_D: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    """Score every PROGRAMS-th tile of BLOCK_P pools: sum over heads of w_h * H**-0.5 * relu(q_h . key_p * D**-0.5).

    All in float32. Writes keys that sort like the scores, and the levels above them. Reads no key of a pool that is not
    below `num_pools`: there may be anything.
    """
    h = tl.arange(0, BLOCK_H)
    d = tl.arange(0, BLOCK_D)
    in_h = h < HEADS
    in_d = d < WIDTH
    query_ptrs = index_query_ptr + h[None, :] * index_query_head_stride + d[:, None]
    query = tl.load(query_ptrs, mask=in_h[None, :] & in_d[:, None], other=0.0)
    weights = tl.load(head_weights_ptr + h, mask=in_h, other=0.0).to(tl.float32) * (HEADS**-0.5)
    for tile in tl.range(first, num_tiles, PROGRAMS, num_stages=NUM_STAGES):
        pool = tile * BLOCK_P + tl.arange(0, BLOCK_P)
        is_pool = pool < num_pools
        block = tl.load(block_table_ptr + pool // ENTRIES, mask=is_pool, other=0)
        entry = (block * ENTRIES + pool % ENTRIES) * WIDTH
        is_key = is_pool[:, None] & in_d[None, :]
        pool_keys = tl.load(pool_keys_ptr + entry[:, None] + d[None, :], mask=is_key, other=0.0)
        similarity = dot(pool_keys, query, tl.zeros([BLOCK_P, BLOCK_H], tl.float32)) * (WIDTH**-0.5)
        # a NaN stays one, as it does in the reference; a head that is not there adds nothing even to infinite keys
        similarity = tl.where((similarity < 0) | (in_h[None, :] == 0), 0.0, similarity)
        keys = score_keys(tl.sum(weights[None, :] * similarity, axis=1), is_pool)
        tl.store(keys_ptr + pool, keys.to(tl.int32, bitcast=True))
        for level in tl.static_range(1, LEVELS):
            keys = tl.max(tl.reshape(keys, [BLOCK_P // GROUP**level, GROUP]), axis=1)
            item = tile * (BLOCK_P // GROUP**level) + tl.arange(0, BLOCK_P // GROUP**level)
            tl.store(keys_ptr + level_start(level, NUM_KEYS) + item, keys.to(tl.int32, bitcast=True))


@triton.jit
def absorb_index(
    # outputs
    absorbed_ptr,
    selected_ptr,
    extended_ptr,
    # work memory: of each row its keys and the levels above them, its best pools, and a counter
    keys_ptr,
    best_ptr,
    arrived_ptr,
    # inputs
    query_ptr,
    weight_ptr,
    pool_keys_ptr,
    index_query_ptr,
    head_weights_ptr,
    position_ptr,
    selected_at_ptr,
    block_table_ptr,
    # sizes
    ROWS: tl.constexpr,
    NOPE: tl.constexpr,
    LATENT: tl.constexpr,
    HEAD_ROWS: tl.constexpr,
    INDEX_HEADS: tl.constexpr,
    INDEX_WIDTH: tl.constexpr,
    NUM_POOLS: tl.constexpr,
    ENTRIES: tl.constexpr,
    KPOOL: tl.constexpr,
    BUDGET: tl.constexpr,
    EXTRA: tl.constexpr,
    # strides
    absorbed_stride,
    absorbed_head_stride,
    selected_stride,
    extended_stride,
    keys_stride,
    query_stride,
    query_head_stride,
    index_query_stride,
    index_query_head_stride,
    head_weights_stride,
    block_table_stride,
    # tiles
    PROGRAMS: tl.constexpr,
    LEVELS: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_D: tl.constexpr,
    INDEX_STAGES: tl.constexpr,
    BLOCK_W: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    """Absorb the queries, and choose each row's best BUDGET pools.

    One program: every PROGRAMS-th tile of one row's visible pools, or the absorbed columns of one head. The last
    program of a row to arrive makes the row's choice. Only programs with a visible tile take part, the first one
    always, and each knows by the position how many those are; a row that keeps all its pools is not scored at all.
    """
    num_keys: tl.constexpr = (NUM_POOLS + BLOCK_P - 1) // BLOCK_P * BLOCK_P
    program = tl.program_id(0)
    # the programs of the index come first: the choice that follows them hides behind the absorbing ones
    if program < ROWS * PROGRAMS:
        row = (program // PROGRAMS).to(tl.int64)
        first = program % PROGRAMS
        position = tl.load(position_ptr + row)
        num_pools = tl.minimum((position + 1) // KPOOL, NUM_POOLS).to(tl.int32)
        num_tiles = tl.where(num_pools > BUDGET, (num_pools + BLOCK_P - 1) // BLOCK_P, 0)
        num_programs = tl.maximum(tl.minimum(num_tiles, PROGRAMS), 1)
        if first < num_programs:
            keys_ptr += row * keys_stride
            if num_tiles > 0:
                score_tiles(
                    first,
                    num_tiles,
                    num_pools,
                    keys_ptr,
                    pool_keys_ptr,
                    index_query_ptr + row * index_query_stride,
                    head_weights_ptr + row * head_weights_stride,
                    block_table_ptr + row * block_table_stride,
                    INDEX_HEADS,
                    INDEX_WIDTH,
                    ENTRIES,
                    num_keys,
                    index_query_head_stride,
                    PROGRAMS,
                    LEVELS,
                    BLOCK_P,
                    BLOCK_H,
                    BLOCK_D,
                    INDEX_STAGES,
                )
            # every thread's keys are written before the one that counts says so, and read after it has
            tl.debug_barrier()
            arrived = tl.atomic_add(arrived_ptr + row, 1, sem="acq_rel", scope="gpu")
            if arrived == num_programs - 1:
                tl.debug_barrier()
                tl.store(arrived_ptr + row, 0)
                best_ptr += row * BUDGET
                num_listed = tl.zeros([], tl.int32)
                if num_tiles > 0:
                    num_listed = choose_pools(best_ptr, keys_ptr, num_pools, num_keys, BUDGET, LEVELS, TILE)
                write_selection(
                    selected_ptr + row * selected_stride,
                    extended_ptr + row * extended_stride,
                    best_ptr,
                    tl.where(num_tiles > 0, num_listed, num_pools),
                    num_listed,
                    position,
                    tl.load(selected_at_ptr + row),
                    BUDGET,
                    KPOOL,
                    EXTRA,
                    BLOCK_W,
                )
    else:
        absorb_columns(
            program - ROWS * PROGRAMS,
            absorbed_ptr,
            query_ptr,
            weight_ptr,
            ROWS,
            NOPE,
            LATENT,
            HEAD_ROWS,
            absorbed_stride,
            absorbed_head_stride,
            query_stride,
            query_head_stride,
            BLOCK_M,
            BLOCK_N,
            BLOCK_K,
            NUM_STAGES,
        )


@triton.jit
def absorb_extend(
    # outputs
    absorbed_ptr,
    extended_ptr,
    # inputs
    query_ptr,
    weight_ptr,
    selected_ptr,
    position_ptr,
    selected_at_ptr,
    # sizes
    ROWS: tl.constexpr,
    NOPE: tl.constexpr,
    LATENT: tl.constexpr,
    HEAD_ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    EXTRA: tl.constexpr,
    # strides
    absorbed_stride,
    absorbed_head_stride,
    extended_stride,
    query_stride,
    query_head_stride,
    selected_stride,
    # tiles
    BLOCK_W: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    """Absorb the queries, and add the newer rows to a selection that an earlier draft made, if EXTRA.

    One program: the selection of one row, or the absorbed columns of one head.
    """
    program = tl.program_id(0)
    num_extended: tl.constexpr = ROWS if EXTRA > 0 else 0
    if program < num_extended:
        row = program.to(tl.int64)
        extend_row(
            extended_ptr + row * extended_stride,
            selected_ptr + row * selected_stride,
            tl.load(position_ptr + row),
            tl.load(selected_at_ptr + row),
            WIDTH,
            EXTRA,
            BLOCK_W,
        )
    else:
        absorb_columns(
            program - num_extended,
            absorbed_ptr,
            query_ptr,
            weight_ptr,
            ROWS,
            NOPE,
            LATENT,
            HEAD_ROWS,
            absorbed_stride,
            absorbed_head_stride,
            query_stride,
            query_head_stride,
            BLOCK_M,
            BLOCK_N,
            BLOCK_K,
            NUM_STAGES,
        )
