"""experts: the chosen experts' feed-forward, the shared expert's down product, and the residual around both."""

import torch

from circuit import LoweringError
from compiler.triton.emission import RegionEmission
from compiler.triton.launch import View
from compiler.triton.tiles import cdiv, power_of_two
from nodes import RoutedExperts


def lower_experts(emit: RegionEmission) -> None:
    """Two launches: active = swiglu(gate_up @ x) of each choice; out = residual + (weighted downs + shared down)."""
    ids = emit.view(emit.call("routed").args[1])
    rows, top_k = ids.shape
    experts, _, inter = emit.sizes(emit.call("routed").args[4])
    dtype = emit.type(emit.call("routed").args[0]).dtype
    slots = min(rows * top_k, experts)
    chosen = {
        "active_ptr": emit.scratch("active", dtype, rows * top_k, inter),
        "slot_expert_ptr": emit.scratch("slot_expert", torch.int32, slots),
        "slot_pair_ptr": emit.scratch("slot_pair", torch.int32, slots, rows),
        "num_slots_ptr": emit.scratch("num_slots", torch.int32, 1),
    }
    _launch_up(emit, chosen)
    _launch_down(emit, chosen)


def _launch_up(emit: RegionEmission, chosen: dict[str, View]) -> None:
    routed = emit.call("routed").node
    assert isinstance(routed, RoutedExperts)
    x, ids, _, gate_up, _ = (emit.view(value) for value in emit.call("routed").args)
    (rows, top_k), (experts, twice_inter, k) = ids.shape, gate_up.shape
    block_r = 16
    emit.launch(
        "experts_up",
        "experts.experts_up",
        grid=(1 + rows * top_k * cdiv(twice_inter, block_r),),
        arguments={
            **chosen,
            "x_ptr": x,
            "ids_ptr": ids,
            "gate_up_ptr": gate_up,
            "x_stride": x.row_stride,
            "ids_stride": ids.row_stride,
        },
        constants={
            "ROWS": rows,
            "TOP_K": top_k,
            "EXPERTS": experts,
            "INTER": twice_inter // 2,
            "K": k,
            "LIMIT": routed.limit,
            "BLOCK_M": power_of_two(rows),
            "BLOCK_C": power_of_two(top_k),
            "BLOCK_E": power_of_two(experts),
            "BLOCK_R": block_r,
            "BLOCK_K": min(128, max(16, power_of_two(k))),
            "NUM_STAGES": 5,
        },
        num_warps=1,
        num_stages=5,
    )


def _launch_down(emit: RegionEmission, chosen: dict[str, View]) -> None:
    _, _, weights, _, down = (emit.view(value) for value in emit.call("routed").args)
    shared_active, shared_down = (emit.view(value) for value in emit.call("shared").args)
    residual, out = emit.view(emit.call("residual").args[0]), emit.view(emit.call("residual").results[0])
    rows, n, inter = weights.shape[0], *down.shape[1:]
    if not weights.is_contiguous:
        raise LoweringError(f"experts: expected weights whose rows lie side by side, got {weights}; report this")
    block_n, parts = 16, 4
    emit.launch(
        "experts_down",
        "experts.experts_down",
        grid=(cdiv(n, block_n),),
        arguments={
            "out_ptr": out,
            **chosen,
            "weights_ptr": weights,
            "down_ptr": down,
            "shared_active_ptr": shared_active,
            "shared_down_ptr": shared_down,
            "residual_ptr": residual,
            "shared_stride": shared_active.row_stride,
            "residual_stride": residual.row_stride,
            "out_stride": out.row_stride,
        },
        constants={
            "ROWS": rows,
            "N": n,
            "INTER": inter,
            "WIDTH": shared_down.shape[1],
            "BLOCK_M": power_of_two(rows),
            "BLOCK_N": block_n,
            "PARTS": parts,
            # more than 16 rows leave less shared memory for summands
            "BLOCK_K": max(16, min(128, 2048 // power_of_two(rows), power_of_two(cdiv(inter, parts)))),
            "NUM_STAGES": 4,
        },
        num_warps=parts,
        num_stages=4,
    )
