"""Routed experts: each chosen expert's weights are read once, whatever number of rows chose it.

A pair is a row's choice, row * TOP_K + choice. Ids that are no expert of this rank are skipped. A row names an expert
once at most, in ascending order, as TopkRouter does.
"""

import triton
import triton.language as tl

from compiler.kernels.numerics import dot, rounded, through
from compiler.kernels.swiglu import clamped_swiglu, gate_up_rows


@triton.jit
def local_id(expert, EXPERTS: tl.constexpr):
    """Return an id as int32, -1 where it is no expert of this rank."""
    return tl.where((expert >= 0) & (expert < EXPERTS), expert, -1).to(tl.int32)


@triton.jit
def list_chosen(
    slot_expert_ptr,
    slot_pair_ptr,
    num_slots_ptr,
    ids_ptr,
    ROWS: tl.constexpr,
    TOP_K: tl.constexpr,
    EXPERTS: tl.constexpr,
    ids_stride,
    BLOCK_E: tl.constexpr,
):
    """List the experts that any row chose in ascending order, one a slot, and which pair of each row chose them.

    A row that did not choose a slot's expert has pair -1.
    """
    expert = tl.arange(0, BLOCK_E)
    is_chosen = expert < 0
    for pair in range(ROWS * TOP_K):
        chosen = local_id(tl.load(ids_ptr + pair // TOP_K * ids_stride + pair % TOP_K), EXPERTS)
        is_chosen = is_chosen | (expert == chosen)
    slot = tl.cumsum(is_chosen.to(tl.int32), 0) - 1
    tl.store(slot_expert_ptr + slot, expert, mask=is_chosen)
    tl.store(num_slots_ptr, tl.sum(is_chosen.to(tl.int32), 0))
    for row in range(ROWS):
        pair_of = tl.full([BLOCK_E], -1, tl.int32)
        for choice in range(TOP_K):
            chosen = local_id(tl.load(ids_ptr + row * ids_stride + choice), EXPERTS)
            pair_of = tl.where(expert == chosen, row * TOP_K + choice, pair_of)
        tl.store(slot_pair_ptr + slot * ROWS + row, pair_of, mask=is_chosen)


@triton.jit
def expert_tile(
    active_ptr,
    x_ptr,
    gate_up_ptr,
    expert,
    pair,
    first,
    INTER: tl.constexpr,
    K: tl.constexpr,
    x_stride,
    LIMIT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_K: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    """BLOCK_R / 2 outputs of one expert from `first` on, for the rows whose `pair` is not negative."""
    inner, row = gate_up_rows(first, INTER, BLOCK_R)
    m = tl.arange(0, BLOCK_M)
    k_lanes = tl.arange(0, BLOCK_K)
    is_chosen = pair >= 0
    in_inner = inner < INTER
    # an expert's weights times its number pass 2**31 elements
    base = gate_up_ptr + expert.to(tl.int64) * (2 * INTER * K)
    acc = tl.zeros([BLOCK_R, BLOCK_M], tl.float32)
    for start in tl.range(0, K, BLOCK_K, num_stages=NUM_STAGES):
        k = start + k_lanes
        in_k = k < K
        weight = tl.load(base + row[:, None] * K + k[None, :], mask=in_inner[:, None] & in_k[None, :], other=0.0)
        x = tl.load(x_ptr + m[None, :] * x_stride + k[:, None], mask=is_chosen[None, :] & in_k[:, None], other=0.0)
        acc = dot(weight, x, acc)
    dtype = active_ptr.dtype.element_ty
    active = rounded(clamped_swiglu(acc, LIMIT, dtype), dtype)
    out = first + tl.arange(0, BLOCK_R // 2)
    is_live = (out < INTER)[:, None] & is_chosen[None, :]
    tl.store(active_ptr + pair[None, :].to(tl.int64) * INTER + out[:, None], active, mask=is_live)


@triton.jit
def experts_up(
    # outputs
    active_ptr,
    slot_expert_ptr,
    slot_pair_ptr,
    num_slots_ptr,
    # inputs
    x_ptr,
    ids_ptr,
    gate_up_ptr,
    # sizes and strides
    ROWS: tl.constexpr,
    TOP_K: tl.constexpr,
    EXPERTS: tl.constexpr,
    INTER: tl.constexpr,
    K: tl.constexpr,
    x_stride,
    ids_stride,
    # scalars
    LIMIT: tl.constexpr,
    # tiles
    BLOCK_M: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_K: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    """active[pair] = swiglu(gate_up[id of pair] @ x[row of pair]), each product, silu and result rounded.

    Program 0 lists the chosen experts for the launch that follows. Any other: BLOCK_R / 2 outputs of one pair's expert,
    for all rows that chose it; where an earlier pair has the same expert the program of that one does the work.
    """
    tiles: tl.constexpr = (2 * INTER + BLOCK_R - 1) // BLOCK_R
    program = tl.program_id(0)
    if program == 0:
        list_chosen(slot_expert_ptr, slot_pair_ptr, num_slots_ptr, ids_ptr, ROWS, TOP_K, EXPERTS, ids_stride, BLOCK_E)
    else:
        own = (program - 1) // tiles
        expert = tl.load(ids_ptr + own // TOP_K * ids_stride + own % TOP_K)
        m = tl.arange(0, BLOCK_M)
        choice = tl.arange(0, BLOCK_C)
        in_ids = (m < ROWS)[:, None] & (choice < TOP_K)[None, :]
        ids = tl.load(ids_ptr + m[:, None] * ids_stride + choice[None, :], mask=in_ids, other=-1)
        pairs = tl.where((ids == expert) & in_ids, m[:, None] * TOP_K + choice[None, :], -1)
        is_earlier = (pairs >= 0) & (pairs < own)
        num_earlier = tl.sum(tl.sum(is_earlier.to(tl.int32), 1), 0)
        if (expert >= 0) & (expert < EXPERTS) & (num_earlier == 0):
            expert_tile(
                active_ptr,
                x_ptr,
                gate_up_ptr,
                expert,
                tl.max(pairs, 1),
                (program - 1) % tiles * (BLOCK_R // 2),
                INTER,
                K,
                x_stride,
                LIMIT,
                BLOCK_M,
                BLOCK_R,
                BLOCK_K,
                NUM_STAGES,
            )


@triton.jit
def shared_product(
    active_ptr,
    weight_ptr,
    n,
    ROWS: tl.constexpr,
    N: tl.constexpr,
    WIDTH: tl.constexpr,
    active_stride,
    BLOCK_M: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    """Return columns n of active @ weight^T for all rows, float32 [columns, rows]."""
    m = tl.arange(0, BLOCK_M)
    in_m = m < ROWS
    in_n = n < N
    k_lanes = tl.arange(0, PARTS)[:, None] * BLOCK_K + tl.arange(0, BLOCK_K)[None, :]
    acc = tl.zeros([PARTS, n.shape[0], BLOCK_M], tl.float32)
    for start in tl.range(0, WIDTH, PARTS * BLOCK_K, num_stages=NUM_STAGES):
        k = start + k_lanes
        in_k = k < WIDTH
        weight_ptrs = weight_ptr + n[None, :, None] * WIDTH + k[:, None, :]
        weight = tl.load(weight_ptrs, mask=in_n[None, :, None] & in_k[:, None, :], other=0.0)
        active_ptrs = active_ptr + m[None, None, :] * active_stride + k[:, :, None]
        active = tl.load(active_ptrs, mask=in_m[None, None, :] & in_k[:, :, None], other=0.0)
        acc = dot(weight, active, acc)
    return tl.sum(acc, 0)


@triton.jit
def routed_products(
    active_ptr,
    slot_expert_ptr,
    slot_pair_ptr,
    num_slots_ptr,
    weights_ptr,
    down_ptr,
    n,
    ROWS: tl.constexpr,
    N: tl.constexpr,
    INTER: tl.constexpr,
    dtype: tl.constexpr,
    BLOCK_M: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    """Return columns n of the chosen experts' products, each rounded to `dtype`, weighted and summed slot by slot.

    One loop over the tiles of all slots, so that the reads of an expert's first tiles do not wait for the one before.
    """
    tiles: tl.constexpr = (INTER + PARTS * BLOCK_K - 1) // (PARTS * BLOCK_K)
    m = tl.arange(0, BLOCK_M)
    in_m = m < ROWS
    in_n = n < N
    k_lanes = tl.arange(0, PARTS)[:, None] * BLOCK_K + tl.arange(0, BLOCK_K)[None, :]
    acc = tl.zeros([PARTS, n.shape[0], BLOCK_M], tl.float32)
    total = tl.zeros([n.shape[0], BLOCK_M], tl.float32)
    num_slots = tl.load(num_slots_ptr)
    last_slot = tl.maximum(num_slots, 1) - 1
    # read a step ahead and carried: an address that a load of the same step gives leaves one tile in flight, not three
    expert = tl.load(slot_expert_ptr)
    pair = tl.load(slot_pair_ptr + m, mask=in_m, other=-1)
    for step in tl.range(0, num_slots * tiles, num_stages=NUM_STAGES):
        k = step % tiles * (PARTS * BLOCK_K) + k_lanes
        in_k = k < INTER
        base = down_ptr + expert.to(tl.int64) * (N * INTER)
        weight_ptrs = base + n[None, :, None] * INTER + k[:, None, :]
        weight = tl.load(weight_ptrs, mask=in_n[None, :, None] & in_k[:, None, :], other=0.0)
        is_chosen = pair >= 0
        active_ptrs = active_ptr + pair[None, None, :].to(tl.int64) * INTER + k[:, :, None]
        active = tl.load(active_ptrs, mask=is_chosen[None, None, :] & in_k[:, :, None], other=0.0)
        acc = dot(weight, active, acc)
        if step % tiles == tiles - 1:
            gain = tl.load(weights_ptr + pair, mask=is_chosen, other=0.0)
            weighted = through(tl.sum(acc, 0), dtype) * gain[None, :]
            # a row that did not choose the expert takes nothing of it, NaN neither
            total += tl.where(is_chosen[None, :], weighted, 0.0)
            acc = tl.zeros([PARTS, n.shape[0], BLOCK_M], tl.float32)
        slot = tl.minimum((step + 1) // tiles, last_slot)
        expert = tl.load(slot_expert_ptr + slot)
        pair = tl.load(slot_pair_ptr + slot * ROWS + m, mask=in_m, other=-1)
    return total


@triton.jit
def experts_down(
    # outputs
    out_ptr,
    # inputs
    active_ptr,
    slot_expert_ptr,
    slot_pair_ptr,
    num_slots_ptr,
    weights_ptr,
    down_ptr,
    shared_active_ptr,
    shared_down_ptr,
    residual_ptr,
    # sizes and strides
    ROWS: tl.constexpr,
    N: tl.constexpr,
    INTER: tl.constexpr,
    WIDTH: tl.constexpr,
    shared_stride,
    residual_stride,
    out_stride,
    # tiles
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    """out = residual + (sum over choices of weight * down[id] @ active + shared_down @ shared_active).

    One program: BLOCK_N columns of all rows. Each product, the weighted sum and both sums are rounded, as the nodes do.
    A tile's summands lie in PARTS, one a warp: sixteen columns alone would leave one warp with one chain of products.
    """
    n = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    dtype = out_ptr.dtype.element_ty
    shared = shared_product(
        shared_active_ptr,
        shared_down_ptr,
        n,
        ROWS,
        N,
        WIDTH,
        shared_stride,
        BLOCK_M,
        PARTS,
        BLOCK_K,
        NUM_STAGES,
    )
    routed = routed_products(
        active_ptr,
        slot_expert_ptr,
        slot_pair_ptr,
        num_slots_ptr,
        weights_ptr,
        down_ptr,
        n,
        ROWS,
        N,
        INTER,
        dtype,
        BLOCK_M,
        PARTS,
        BLOCK_K,
        NUM_STAGES,
    )
    m = tl.arange(0, BLOCK_M)
    is_live = (n < N)[:, None] & (m < ROWS)[None, :]
    residual = tl.load(residual_ptr + m[None, :] * residual_stride + n[:, None], mask=is_live, other=0.0)
    both = through(through(routed, dtype) + through(shared, dtype), dtype)
    tl.store(
        out_ptr + m[None, :] * out_stride + n[:, None], rounded(residual.to(tl.float32) + both, dtype), mask=is_live
    )
