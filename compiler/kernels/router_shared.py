"""The router and the shared expert's gate and up products, side by side over rows that both norm alike."""

import triton
import triton.language as tl

from compiler.kernels.numerics import dot, rounded, through
from compiler.kernels.router_choice import choose_experts
from compiler.kernels.swiglu import clamped_swiglu, gate_up_rows


@triton.jit
def inverse_rms(x_ptr, row, in_rows, K: tl.constexpr, x_stride, EPS: tl.constexpr, NUM_SQUARES: tl.constexpr):
    """Return 1 / sqrt(mean(x^2) + eps) of rows, in steps of at most NUM_SQUARES numbers."""
    rows: tl.constexpr = row.shape[0]
    BLOCK_K: tl.constexpr = NUM_SQUARES // rows
    k_lanes = tl.arange(0, BLOCK_K)
    squares = tl.zeros([rows, BLOCK_K], tl.float32)
    # nothing else can start before the scale is known, so its reads overlap each other
    for start in tl.range(0, K, BLOCK_K, num_stages=3):
        k = start + k_lanes
        in_x = in_rows[:, None] & (k < K)[None, :]
        x = tl.load(x_ptr + row[:, None] * x_stride + k[None, :], mask=in_x, other=0.0).to(tl.float32)
        squares += x * x
    return tl.rsqrt(tl.sum(squares, 1) / K + EPS)


@triton.jit
def write_normed(
    normed_ptr, x_ptr, gain_ptr, row, K: tl.constexpr, x_stride, normed_stride, EPS, NUM_SQUARES: tl.constexpr
):
    """Write one normed row."""
    rows = row + tl.arange(0, 1)
    scale = inverse_rms(x_ptr, rows, rows >= 0, K, x_stride, EPS, NUM_SQUARES)
    dtype = normed_ptr.dtype.element_ty
    k_lanes = tl.arange(0, NUM_SQUARES)
    for start in range(0, K, NUM_SQUARES):
        k = start + k_lanes[None, :]
        in_k = k < K
        x = tl.load(x_ptr + rows[:, None] * x_stride + k, mask=in_k, other=0.0).to(tl.float32)
        gain = tl.load(gain_ptr + k, mask=in_k, other=0.0).to(tl.float32)
        normed = rounded(gain * through(x * scale[:, None], dtype), dtype)
        tl.store(normed_ptr + rows[:, None] * normed_stride + k, normed, mask=in_k)


@triton.jit
def write_logits(
    logits_ptr,
    x_ptr,
    gain_ptr,
    router_ptr,
    first_row,
    first_expert,
    ROWS: tl.constexpr,
    EXPERTS: tl.constexpr,
    K: tl.constexpr,
    x_stride,
    EPS: tl.constexpr,
    dtype: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_K: tl.constexpr,
    NUM_SQUARES: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    """Write float32 logits of BLOCK_R rows and BLOCK_E experts; products of single numbers, so nothing is rounded."""
    row = first_row + tl.arange(0, BLOCK_R)
    in_rows = row < ROWS
    expert = first_expert + tl.arange(0, BLOCK_E)
    in_experts = expert < EXPERTS
    scale = inverse_rms(x_ptr, row, in_rows, K, x_stride, EPS, NUM_SQUARES)
    k_lanes = tl.arange(0, BLOCK_K)
    acc = tl.zeros([BLOCK_R, BLOCK_E, BLOCK_K], tl.float32)
    for start in tl.range(0, K, BLOCK_K, num_stages=NUM_STAGES):
        k = start + k_lanes[None, None, :]
        in_k = k < K
        router_ptrs = router_ptr + expert[None, :, None] * K + k
        router = tl.load(router_ptrs, mask=in_experts[None, :, None] & in_k, other=0.0)
        x_ptrs = x_ptr + row[:, None, None] * x_stride + k
        x = tl.load(x_ptrs, mask=in_rows[:, None, None] & in_k, other=0.0).to(tl.float32)
        gain = tl.load(gain_ptr + k, mask=in_k, other=0.0).to(tl.float32)
        acc += through(gain * through(x * scale[:, None, None], dtype), dtype) * router
    is_live = in_rows[:, None] & in_experts[None, :]
    tl.store(logits_ptr + row[:, None] * EXPERTS + expert[None, :], tl.sum(acc, 2), mask=is_live)


@triton.jit
def write_active(
    active_ptr,
    x_ptr,
    gain_ptr,
    gate_up_ptr,
    first,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    K: tl.constexpr,
    x_stride,
    active_stride,
    EPS: tl.constexpr,
    LIMIT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_W: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    NUM_SQUARES: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    """Write BLOCK_W / 2 outputs of the shared expert from `first` on, of all rows; summands in PARTS, one a warp."""
    inner, weight_row = gate_up_rows(first, WIDTH, BLOCK_W)
    in_inner = inner < WIDTH
    m = tl.arange(0, BLOCK_M)
    in_m = m < ROWS
    dtype = active_ptr.dtype.element_ty
    scale = inverse_rms(x_ptr, m, in_m, K, x_stride, EPS, NUM_SQUARES)
    k_lanes = tl.arange(0, PARTS)[:, None] * BLOCK_K + tl.arange(0, BLOCK_K)[None, :]
    acc = tl.zeros([PARTS, BLOCK_W, BLOCK_M], tl.float32)
    for start in tl.range(0, K, PARTS * BLOCK_K, num_stages=NUM_STAGES):
        k = start + k_lanes
        in_k = k < K
        weight_ptrs = gate_up_ptr + weight_row[None, :, None] * K + k[:, None, :]
        weight = tl.load(weight_ptrs, mask=in_inner[None, :, None] & in_k[:, None, :], other=0.0)
        x_ptrs = x_ptr + m[None, None, :] * x_stride + k[:, :, None]
        x = tl.load(x_ptrs, mask=in_m[None, None, :] & in_k[:, :, None], other=0.0).to(tl.float32)
        gain = tl.load(gain_ptr + k, mask=in_k, other=0.0).to(tl.float32)
        normed = rounded(gain[:, :, None] * through(x * scale[None, None, :], dtype), dtype)
        acc = dot(weight, normed, acc)
    active = rounded(clamped_swiglu(tl.sum(acc, 0), LIMIT, dtype), dtype)
    out = first + tl.arange(0, BLOCK_W // 2)
    is_live = (out < WIDTH)[:, None] & in_m[None, :]
    tl.store(active_ptr + m[None, :] * active_stride + out[:, None], active, mask=is_live)


@triton.jit
def router_shared(
    # outputs
    normed_ptr,
    ids_ptr,
    weights_ptr,
    active_ptr,
    logits_ptr,
    arrivals_ptr,
    # inputs
    x_ptr,
    gain_ptr,
    router_ptr,
    bias_ptr,
    gate_up_ptr,
    # sizes and strides
    ROWS: tl.constexpr,
    K: tl.constexpr,
    EXPERTS: tl.constexpr,
    WIDTH: tl.constexpr,
    x_stride,
    normed_stride,
    active_stride,
    # scalars and flags
    EPS: tl.constexpr,
    TOP_K: tl.constexpr,
    N_GROUP: tl.constexpr,
    TOPK_GROUP: tl.constexpr,
    IS_NORMED: tl.constexpr,
    SCALE: tl.constexpr,
    LIMIT: tl.constexpr,
    # tiles
    BLOCK_R: tl.constexpr,
    BLOCK_E: tl.constexpr,
    ROUTER_K: tl.constexpr,
    CHOICE_R: tl.constexpr,
    ALL_EXPERTS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_W: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    NUM_SQUARES: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    """normed = norm(x); ids, weights = choice of sigmoid(router @ normed); active = swiglu(gate_up @ normed).

    The first programs: BLOCK_E experts' logits of BLOCK_R rows each, and the last of a row block to arrive chooses, so
    that the choice hides behind what follows. Then one normed row each, then BLOCK_W / 2 outputs of the shared expert.
    """
    program = tl.program_id(0)
    blocks: tl.constexpr = (EXPERTS + BLOCK_E - 1) // BLOCK_E
    routers: tl.constexpr = blocks * ((ROWS + BLOCK_R - 1) // BLOCK_R)
    dtype = normed_ptr.dtype.element_ty
    if program < routers:
        first_row = program // blocks * BLOCK_R
        write_logits(
            logits_ptr,
            x_ptr,
            gain_ptr,
            router_ptr,
            first_row,
            program % blocks * BLOCK_E,
            ROWS,
            EXPERTS,
            K,
            x_stride,
            EPS,
            dtype,
            BLOCK_R,
            BLOCK_E,
            ROUTER_K,
            NUM_SQUARES,
            NUM_STAGES,
        )
        # every thread's logits are written before the one that counts says so
        tl.debug_barrier()
        arrived = tl.atomic_add(arrivals_ptr + program // blocks, 1, sem="acq_rel")
        if arrived == blocks - 1:
            # nobody else counts in this run
            tl.store(arrivals_ptr + program // blocks, 0)
            tl.debug_barrier()
            for part in range(0, BLOCK_R, CHOICE_R):
                choose_experts(
                    ids_ptr,
                    weights_ptr,
                    logits_ptr,
                    bias_ptr,
                    first_row + part,
                    ROWS,
                    EXPERTS,
                    TOP_K,
                    N_GROUP,
                    TOPK_GROUP,
                    IS_NORMED,
                    SCALE,
                    CHOICE_R,
                    ALL_EXPERTS,
                )
    elif program < routers + ROWS:
        write_normed(normed_ptr, x_ptr, gain_ptr, program - routers, K, x_stride, normed_stride, EPS, NUM_SQUARES)
    else:
        write_active(
            active_ptr,
            x_ptr,
            gain_ptr,
            gate_up_ptr,
            (program - routers - ROWS) * (BLOCK_W // 2),
            ROWS,
            WIDTH,
            K,
            x_stride,
            active_stride,
            EPS,
            LIMIT,
            BLOCK_M,
            BLOCK_W,
            PARTS,
            BLOCK_K,
            NUM_SQUARES,
            NUM_STAGES,
        )
