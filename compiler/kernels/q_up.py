"""The second product of a draft's query, and beside it everything that the row writes into the caches."""

import triton
import triton.language as tl

from compiler.kernels.cache_writes import write_pages, write_ring
from compiler.kernels.numerics import dot, rounded


@triton.jit
def _normed_product(
    product_ptr, q_a_ptr, q_gain_ptr, weight_ptr, tile, ROWS: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    q_a_stride, product_stride, Q_EPS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, NUM_STAGES: tl.constexpr,
):  # fmt: skip
    """product[m, n] = sum over k of norm(q_a)[m, k] * weight[n, k], for BLOCK_N outputs of BLOCK_M rows.

    The norm's scale is applied to the sum, so that the rows are read once, beside the weight. Tiles of the same outputs
    are neighbours, which finds the weight in the cache.
    """
    ROW_TILES: tl.constexpr = (ROWS + BLOCK_M - 1) // BLOCK_M
    n = (tile // ROW_TILES * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    m = (tile % ROW_TILES * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    in_n = n < N
    in_m = m < ROWS
    k_lanes = tl.arange(0, BLOCK_K)
    acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    squares = tl.zeros([BLOCK_M], tl.float32)
    for start in tl.range(0, K, BLOCK_K, num_stages=NUM_STAGES):
        k = start + k_lanes
        in_k = k < K
        weight = tl.load(weight_ptr + n[:, None] * K + k[None, :], mask=in_n[:, None] & in_k[None, :], other=0.0)
        x = tl.load(q_a_ptr + m[None, :] * q_a_stride + k[:, None], mask=in_m[None, :] & in_k[:, None], other=0.0)
        gain = tl.load(q_gain_ptr + k, mask=in_k, other=0.0)
        wide = x.to(tl.float32)
        squares += tl.sum(wide * wide, axis=0)
        acc = dot(weight, rounded(wide * gain.to(tl.float32)[:, None], weight_ptr.dtype.element_ty), acc)
    product = acc * tl.rsqrt(squares / K + Q_EPS)[None, :]
    is_live = in_n[:, None] & in_m[None, :]
    product = rounded(product, product_ptr.dtype.element_ty)
    tl.store(product_ptr + m[None, :] * product_stride + n[:, None], product, mask=is_live)


@triton.jit
def q_up(
    # outputs
    product_ptr,
    latent_ptr,
    index_keys_ptr,
    tail_ptr,
    next_position_ptr,
    # inputs
    q_a_ptr,
    q_gain_ptr,
    weight_ptr,
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
    ROWS: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    LATENT: tl.constexpr,
    WIDTH: tl.constexpr,
    POOL: tl.constexpr,
    DEPTH: tl.constexpr,
    ROWS_A_BLOCK: tl.constexpr,
    POOLS_A_BLOCK: tl.constexpr,
    q_a_stride,
    product_stride,
    kv_a_stride,
    raw_key_stride,
    gate_stride,
    block_table_stride,
    # scalars
    Q_EPS: tl.constexpr,
    KV_EPS: tl.constexpr,
    K_EPS: tl.constexpr,
    POSITION_STEP: tl.constexpr,
    # flags
    HAS_NEXT_POSITION: tl.constexpr,
    # tiles
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_L: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_P: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    """norm(q_a) @ weight^T, the rows' cache writes, and their next positions.

    One program: all writes of one row, of a sequence that no other live row has, or BLOCK_N outputs of BLOCK_M
    rows. The writers come first: theirs is a chain of loads, which the stream of the weight then hides.
    """
    program = tl.program_id(0)
    if program < ROWS:
        row = program.to(tl.int64)
        write_pages(
            latent_ptr, index_keys_ptr, tail_ptr, kv_a_ptr, kv_gain_ptr, raw_key_ptr, gate_ptr, k_gain_ptr, k_bias_ptr,
            pool_bias_ptr, position_ptr, sequence_ptr, block_table_ptr, row, kv_a_stride, raw_key_stride, gate_stride,
            block_table_stride, LATENT, WIDTH, POOL, DEPTH, ROWS_A_BLOCK, POOLS_A_BLOCK, KV_EPS, K_EPS, False,
            BLOCK_L, BLOCK_D, BLOCK_P,
        )  # fmt: skip
        write_ring(
            tail_ptr, raw_key_ptr, gate_ptr, k_gain_ptr, k_bias_ptr, position_ptr, sequence_ptr, row, raw_key_stride,
            gate_stride, WIDTH, DEPTH, K_EPS, BLOCK_D,
        )  # fmt: skip
        if HAS_NEXT_POSITION:
            tl.store(next_position_ptr + row, tl.load(position_ptr + row) + POSITION_STEP)
    else:
        _normed_product(
            product_ptr, q_a_ptr, q_gain_ptr, weight_ptr, program - ROWS, ROWS, N, K, q_a_stride,
            product_stride, Q_EPS, BLOCK_M, BLOCK_N, BLOCK_K, NUM_STAGES,
        )  # fmt: skip
