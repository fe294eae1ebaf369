"""What a row leaves in the drafter's caches: its latent, the key of a pool that it completes, its raw key and gate.

The paged caches are addressed through the block table; the ring of a sequence holds its newest raw rows, row r in place
r % DEPTH. Pooling reads the ring as it was before the run, so of many rows the ring is written by a launch of its own.
"""

import triton
import triton.language as tl

from compiler.kernels.numerics import rounded, through


@triton.jit
def _normed_keys(
    raw, in_tile, k_gain_ptr, k_bias_ptr, WIDTH: tl.constexpr, K_EPS: tl.constexpr, BLOCK_D: tl.constexpr
):  # fmt: skip
    """LayerNorm of raw keys [rows, BLOCK_D], rounded to the model dtype and widened again."""
    d = tl.arange(0, BLOCK_D)
    in_width = d < WIDTH
    wide = raw.to(tl.float32)
    mean = tl.sum(wide, axis=1) / WIDTH
    centered = tl.where(in_tile, wide - mean[:, None], 0.0)
    variance = tl.sum(centered * centered, axis=1) / WIDTH
    gain = tl.load(k_gain_ptr + d, mask=in_width, other=0.0).to(tl.float32)
    bias = tl.load(k_bias_ptr + d, mask=in_width, other=0.0).to(tl.float32)
    normed = centered * tl.rsqrt(variance + K_EPS)[:, None] * gain[None, :] + bias[None, :]
    return through(normed, raw.dtype)


@triton.jit
def _write_latent(
    latent_ptr, kv_a_ptr, kv_gain_ptr, row, slot, kv_a_stride, LATENT: tl.constexpr, KV_EPS: tl.constexpr,
    BLOCK_L: tl.constexpr,
):  # fmt: skip
    """latent[slot] = gain * round(kv_a / sqrt(mean(kv_a^2) + eps)), rounded where RmsNorm does."""
    lanes = tl.arange(0, BLOCK_L)
    in_row = lanes < LATENT
    dtype = latent_ptr.dtype.element_ty
    x = tl.load(kv_a_ptr + row * kv_a_stride + lanes, mask=in_row, other=0.0).to(tl.float32)
    gain = tl.load(kv_gain_ptr + lanes, mask=in_row, other=0.0).to(tl.float32)
    inverse_rms = tl.rsqrt(tl.sum(x * x, axis=0) / LATENT + KV_EPS)
    normed = gain * through(x * inverse_rms, dtype)
    tl.store(latent_ptr + slot * LATENT + lanes, rounded(normed, dtype), mask=in_row)


@triton.jit
def _write_pool_key(
    index_keys_ptr,
    tail_ptr,
    raw_key_ptr,
    gate_ptr,
    k_gain_ptr,
    k_bias_ptr,
    pool_bias_ptr,
    sequence_ptr,
    row,
    position,
    slot,
    raw_key_stride,
    gate_stride,
    WIDTH: tl.constexpr,
    POOL: tl.constexpr,
    DEPTH: tl.constexpr,
    K_EPS: tl.constexpr,
    HAS_NEIGHBOURS: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_P: tl.constexpr,
):
    """index_keys[slot] = sum over the pool of softmax(gate + bias) * key per channel, rounded where KeyPool does.

    `row` completes the pool. The pool's rows are those before it in this run as far as they are its sequence's, the
    others come from the ring; all but the row itself do where a run has no two rows of a sequence.
    """
    dtype = index_keys_ptr.dtype.element_ty
    p = tl.arange(0, BLOCK_P)
    d = tl.arange(0, BLOCK_D)
    in_pool = p < POOL
    in_tile = in_pool[:, None] & (d < WIDTH)[None, :]
    sequence = tl.load(sequence_ptr + row)
    rows_back = POOL - 1 - p
    rows = row - rows_back
    # rows of nobody share a sequence all the same: without neighbours those alike write alike pools, whoever is last
    is_before = in_pool & ((rows >= 0) if HAS_NEIGHBOURS else (rows_back == 0))
    in_run = (is_before & (tl.load(sequence_ptr + rows, mask=is_before, other=-1) == sequence))[:, None]
    ring_ptrs = (tail_ptr + (sequence * DEPTH + (position - rows_back) % DEPTH) * (2 * WIDTH))[:, None] + d[None, :]
    gate_ptrs = tl.where(in_run, (gate_ptr + rows * gate_stride)[:, None] + d[None, :], ring_ptrs + WIDTH)
    key_ptrs = tl.where(in_run, (raw_key_ptr + rows * raw_key_stride)[:, None] + d[None, :], ring_ptrs)
    gates = tl.load(gate_ptrs, mask=in_tile, other=0.0).to(tl.float32)
    bias = tl.load(pool_bias_ptr + p[:, None] * WIDTH + d[None, :], mask=in_tile, other=0.0).to(tl.float32)
    gates = tl.where(in_pool[:, None], gates + bias, float("-inf"))
    shares = tl.exp(gates - tl.max(gates, axis=0)[None, :])
    shares = through(shares / tl.sum(shares, axis=0)[None, :], dtype)
    # the ring holds keys that are normed already
    keys = tl.load(key_ptrs, mask=in_tile, other=0.0)
    normed = _normed_keys(keys, in_tile, k_gain_ptr, k_bias_ptr, WIDTH, K_EPS, BLOCK_D)
    pooled = tl.sum(through(shares * tl.where(in_run, normed, keys.to(tl.float32)), dtype), axis=0)
    tl.store(index_keys_ptr + slot * WIDTH + d, rounded(pooled, dtype), mask=d < WIDTH)


@triton.jit
def write_pages(
    latent_ptr,
    index_keys_ptr,
    tail_ptr,
    kv_a_ptr,
    kv_gain_ptr,
    raw_key_ptr,
    gate_ptr,
    k_gain_ptr,
    k_bias_ptr,
    pool_bias_ptr,
    position_ptr,
    sequence_ptr,
    block_table_ptr,
    row,
    kv_a_stride,
    raw_key_stride,
    gate_stride,
    block_table_stride,
    LATENT: tl.constexpr,
    WIDTH: tl.constexpr,
    POOL: tl.constexpr,
    DEPTH: tl.constexpr,
    ROWS_A_BLOCK: tl.constexpr,
    POOLS_A_BLOCK: tl.constexpr,
    KV_EPS: tl.constexpr,
    K_EPS: tl.constexpr,
    HAS_NEIGHBOURS: tl.constexpr,
    BLOCK_L: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_P: tl.constexpr,
):
    """Write one row's latent into its page, and the key of the pool that it completes, if it does. Reads the ring."""
    position = tl.load(position_ptr + row)
    table_ptr = block_table_ptr + row * block_table_stride
    block = tl.load(table_ptr + position // ROWS_A_BLOCK)
    _write_latent(
        latent_ptr, kv_a_ptr, kv_gain_ptr, row, block * ROWS_A_BLOCK + position % ROWS_A_BLOCK, kv_a_stride, LATENT,
        KV_EPS, BLOCK_L,
    )  # fmt: skip
    if (position + 1) % POOL == 0:
        pool = position // POOL
        block = tl.load(table_ptr + pool // POOLS_A_BLOCK)
        _write_pool_key(
            index_keys_ptr, tail_ptr, raw_key_ptr, gate_ptr, k_gain_ptr, k_bias_ptr, pool_bias_ptr, sequence_ptr, row,
            position, block * POOLS_A_BLOCK + pool % POOLS_A_BLOCK, raw_key_stride, gate_stride, WIDTH, POOL, DEPTH,
            K_EPS, HAS_NEIGHBOURS, BLOCK_D, BLOCK_P,
        )  # fmt: skip


@triton.jit
def write_ring(
    tail_ptr, raw_key_ptr, gate_ptr, k_gain_ptr, k_bias_ptr, position_ptr, sequence_ptr, row, raw_key_stride,
    gate_stride, WIDTH: tl.constexpr, DEPTH: tl.constexpr, K_EPS: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """tail[sequence, position % DEPTH] = key, gate of one row."""
    dtype = tail_ptr.dtype.element_ty
    d = tl.arange(0, BLOCK_D)[None, :]
    in_row = d < WIDTH
    position = tl.load(position_ptr + row)
    sequence = tl.load(sequence_ptr + row)
    raw = tl.load(raw_key_ptr + row * raw_key_stride + d, mask=in_row, other=0.0)
    keys = _normed_keys(raw, in_row, k_gain_ptr, k_bias_ptr, WIDTH, K_EPS, BLOCK_D)
    gates = tl.load(gate_ptr + row * gate_stride + d, mask=in_row, other=0.0)
    ring_ptrs = tail_ptr + (sequence * DEPTH + position % DEPTH) * (2 * WIDTH) + d
    tl.store(ring_ptrs, rounded(keys, dtype), mask=in_row)
    tl.store(ring_ptrs + WIDTH, gates, mask=in_row)


@triton.jit
def context_writes(
    # outputs
    latent_ptr,
    index_keys_ptr,
    # inputs
    tail_ptr,
    kv_a_ptr,
    kv_gain_ptr,
    raw_key_ptr,
    gate_ptr,
    k_gain_ptr,
    k_bias_ptr,
    pool_bias_ptr,
    position_ptr,
    sequence_ptr,
    block_table_ptr,
    # sizes and strides
    LATENT: tl.constexpr,
    WIDTH: tl.constexpr,
    POOL: tl.constexpr,
    DEPTH: tl.constexpr,
    ROWS_A_BLOCK: tl.constexpr,
    POOLS_A_BLOCK: tl.constexpr,
    kv_a_stride,
    raw_key_stride,
    gate_stride,
    block_table_stride,
    # scalars
    KV_EPS: tl.constexpr,
    K_EPS: tl.constexpr,
    # tiles
    BLOCK_L: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_P: tl.constexpr,
):
    """Latents and pooled keys of context rows; rows of one sequence are adjacent, their positions consecutive.

    One program: one row. The ring is only read, so that a program may be late.
    """
    row = tl.program_id(0).to(tl.int64)
    write_pages(
        latent_ptr, index_keys_ptr, tail_ptr, kv_a_ptr, kv_gain_ptr, raw_key_ptr, gate_ptr, k_gain_ptr, k_bias_ptr,
        pool_bias_ptr, position_ptr, sequence_ptr, block_table_ptr, row, kv_a_stride, raw_key_stride, gate_stride,
        block_table_stride, LATENT, WIDTH, POOL, DEPTH, ROWS_A_BLOCK, POOLS_A_BLOCK, KV_EPS, K_EPS, True, BLOCK_L,
        BLOCK_D, BLOCK_P,
    )  # fmt: skip


@triton.jit
def context_tail(
    # outputs
    tail_ptr,
    # inputs
    raw_key_ptr,
    gate_ptr,
    k_gain_ptr,
    k_bias_ptr,
    position_ptr,
    sequence_ptr,
    # sizes and strides
    num_rows,
    WIDTH: tl.constexpr,
    DEPTH: tl.constexpr,
    raw_key_stride,
    gate_stride,
    # scalars
    K_EPS: tl.constexpr,
    # tiles
    BLOCK_D: tl.constexpr,
):
    """Raw keys and gates of context rows into the ring; of rows that share a place the newest is written alone.

    One program: one row.
    """
    row = tl.program_id(0).to(tl.int64)
    has_later = row + DEPTH < num_rows
    later = tl.load(sequence_ptr + row + DEPTH, mask=has_later, other=-1)
    if later != tl.load(sequence_ptr + row):
        write_ring(
            tail_ptr, raw_key_ptr, gate_ptr, k_gain_ptr, k_bias_ptr, position_ptr, sequence_ptr, row, raw_key_stride,
            gate_stride, WIDTH, DEPTH, K_EPS, BLOCK_D,
        )  # fmt: skip
