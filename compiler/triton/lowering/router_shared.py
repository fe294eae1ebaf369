"""router_shared: the norm after attention, the router's choice, and the shared expert's gated products."""

from dataclasses import dataclass

import torch

from circuit import LoweringError
from compiler.triton.emission import RegionEmission
from compiler.triton.launch import Constant, View
from compiler.triton.tiles import cdiv, power_of_two
from nodes import RmsNorm, Slice, Swiglu, TopkRouter


@dataclass(frozen=True, slots=True)
class RouterSharedTiles:
    """Rows, experts and summands of a router program; rows of joined weight and summands a warp of a shared one.

    num_squares: numbers that a norm squares in one step.
    """

    block_r: int
    block_e: int
    router_k: int
    block_m: int
    block_w: int
    block_k: int
    num_squares: int
    parts: int = 4
    num_stages: int = 4


def lower_router_shared(emit: RegionEmission) -> None:
    """One launch: moe_in = norm(x); ids and weights of the chosen experts; shared_active = swiglu(gate_up @ moe_in)."""
    norm, router = emit.call("norm"), emit.call("router")
    x, gain = (emit.view(value) for value in norm.args)
    router_weight = emit.view(emit.call("logits").args[1])
    gate_up = emit.view(emit.call("product").args[1])
    ids, weights = (emit.view(value) for value in router.results)
    rows, k = x.shape
    experts, width = router_weight.shape[0], gate_up.shape[0] // 2
    _require_joined(emit, width, (ids, weights))
    tiles = _tiles(rows, k)
    row_blocks = cdiv(rows, tiles.block_r)
    num_routers = row_blocks * cdiv(experts, tiles.block_e)
    active = emit.view(emit.call("active").results[0])
    normed = emit.view(norm.results[0])
    emit.launch(
        "router_shared",
        "router_shared.router_shared",
        grid=(num_routers + rows + cdiv(2 * width, tiles.block_w),),
        arguments={
            "normed_ptr": normed,
            "ids_ptr": ids,
            "weights_ptr": weights,
            "active_ptr": active,
            "logits_ptr": emit.scratch("logits", torch.float32, rows, experts),
            "arrivals_ptr": emit.counter("arrivals", row_blocks),
            "x_ptr": x,
            "gain_ptr": gain,
            "router_ptr": router_weight,
            "bias_ptr": emit.view(router.args[1]),
            "gate_up_ptr": gate_up,
            "x_stride": x.row_stride,
            "normed_stride": normed.row_stride,
            "active_stride": active.row_stride,
        },
        constants={
            "ROWS": rows,
            "K": k,
            "EXPERTS": experts,
            "WIDTH": width,
            **_scalars(emit),
            "BLOCK_R": tiles.block_r,
            "BLOCK_E": tiles.block_e,
            "ROUTER_K": tiles.router_k,
            # two rows of keys at a time; four spill on triton 3.6
            "CHOICE_R": min(2, tiles.block_r),
            "ALL_EXPERTS": power_of_two(experts),
            "BLOCK_M": tiles.block_m,
            "BLOCK_W": tiles.block_w,
            "PARTS": tiles.parts,
            "BLOCK_K": tiles.block_k,
            "NUM_SQUARES": tiles.num_squares,
            "NUM_STAGES": tiles.num_stages,
        },
        num_warps=tiles.parts,
        num_stages=tiles.num_stages,
    )


def _tiles(rows: int, k: int) -> RouterSharedTiles:
    block_m, are_few = power_of_two(rows), rows <= 4
    # four rows at most: products of single numbers are kept in registers, 32 a thread
    block_r = min(4, block_m)
    block_e = 4 if are_few else 8
    return RouterSharedTiles(
        block_r=block_r,
        block_e=block_e,
        router_k=min(4096 // (block_r * block_e), power_of_two(k)),
        block_m=block_m,
        # every program norms all rows; with many of them wider tiles norm them less often
        block_w=16 if are_few else 32,
        block_k=max(16, min(128 if are_few else 64, 2048 // block_m, power_of_two(cdiv(k, 4)))),
        num_squares=block_m * min(max(1, 4096 // block_m), power_of_two(k)),
    )


def _scalars(emit: RegionEmission) -> dict[str, Constant]:
    norm, router, active = (emit.call(step).node for step in ("norm", "router", "active"))
    assert isinstance(norm, RmsNorm)
    assert isinstance(router, TopkRouter)
    assert isinstance(active, Swiglu)
    return {
        "EPS": norm.eps,
        "TOP_K": router.top_k,
        "N_GROUP": router.n_group,
        "TOPK_GROUP": router.topk_group,
        "IS_NORMED": router.norm_topk_prob,
        "SCALE": router.scale,
        "LIMIT": active.limit,
    }


def _require_joined(emit: RegionEmission, width: int, written: tuple[View, ...]) -> None:
    gate, up = emit.call("gate").node, emit.call("up").node
    assert isinstance(gate, Slice)
    assert isinstance(up, Slice)
    if (gate.start, up.start) != (0, width):
        raise LoweringError(
            f"router_shared: expected gate rows at 0 and up rows at {width}, got {gate.start} and {up.start}; "
            "report this"
        )
    if not all(view.is_contiguous for view in written):
        raise LoweringError(f"router_shared: expected ids and weights without gaps, got {written}; report this")
