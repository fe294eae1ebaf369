"""sparse_mla: attention over the selected latent rows, split over the selection, and the value half of kv_b_proj."""

from dataclasses import dataclass
from math import e, log2

import torch

from compiler.triton.emission import RegionEmission
from compiler.triton.launch import View
from compiler.triton.tiles import cdiv, power_of_two
from nodes import AbsorbValue, SparseMlaAttention

# a tensor core wants 16 rows and 16 summands at least
_LEAST = 16
_BLOCK_T = 32


@dataclass(frozen=True, slots=True)
class _Partials:
    """What each split leaves: outputs [n, heads, splits, latent] before division, maxima and sums."""

    outputs: View
    maxima: View
    sums: View

    @property
    def splits(self) -> int:
        return self.maxima.shape[-1]


def lower_sparse_mla(emit: RegionEmission) -> None:
    """Two launches: every split of every row's selection, then what combines the splits of a head and multiplies."""
    rows, heads, latent = emit.sizes(emit.call("attended").args[1])
    width = emit.sizes(emit.call("attended").args[2])[1]
    splits = _num_splits(rows, width)
    parts = (rows, heads, splits)
    partials = _Partials(
        outputs=emit.scratch("partial_outputs", torch.float32, *parts, latent),
        maxima=emit.scratch("partial_maxima", torch.float32, *parts),
        sums=emit.scratch("partial_sums", torch.float32, *parts),
    )
    _split(emit, partials)
    _combine(emit, partials)


def _split(emit: RegionEmission, partials: _Partials) -> None:
    call = emit.call("attended")
    assert isinstance(call.node, SparseMlaAttention)
    cache, query, selected, block_table = (emit.view(value) for value in call.args)
    rows, heads, latent = query.shape
    block_h = _LEAST if rows < 8 else 2 * _LEAST
    emit.launch(
        "mla_split",
        "mla_split.mla_split",
        grid=(cdiv(heads, block_h), partials.splits, rows),
        arguments={
            "partial_ptr": partials.outputs,
            "maximum_ptr": partials.maxima,
            "sum_ptr": partials.sums,
            "latent_ptr": cache,
            "query_ptr": query,
            "selected_ptr": selected,
            "block_table_ptr": block_table,
            "query_stride": query.row_stride,
            "query_head_stride": query.strides[1],
            "selected_stride": selected.row_stride,
            "block_table_stride": block_table.row_stride,
        },
        constants={
            "HEADS": heads,
            "LATENT": latent,
            "WIDTH": selected.shape[1],
            "BLOCK_SIZE": cache.shape[1],
            "SCALE": call.node.scale * log2(e),
            "SPLITS": partials.splits,
            "BLOCK_H": block_h,
            "BLOCK_T": _BLOCK_T,
            "BLOCK_L": max(_LEAST, power_of_two(latent)),
            "NUM_STAGES": 3,
        },
        num_warps=8,
        num_stages=3,
    )


def _combine(emit: RegionEmission, partials: _Partials) -> None:
    call = emit.call("values")
    assert isinstance(call.node, AbsorbValue)
    weight, out = emit.view(call.args[1]), emit.view(call.results[0])
    rows, heads, _, latent = partials.outputs.shape
    value, nope = call.node.v_head_dim, call.node.qk_nope_head_dim
    block_m = power_of_two(rows)
    # each program combines anew what it multiplies: more rows want wider programs, and smaller pieces of them
    block_v = 32 if rows < 8 else 64
    emit.launch(
        "combine_values",
        "combine_values.combine_values",
        grid=(heads, cdiv(value, block_v)),
        arguments={
            "out_ptr": out,
            "partial_ptr": partials.outputs,
            "maximum_ptr": partials.maxima,
            "sum_ptr": partials.sums,
            "weight_ptr": weight,
            "out_stride": out.row_stride,
        },
        constants={
            "ROWS": rows,
            "HEADS": heads,
            "LATENT": latent,
            "VALUE": value,
            "KEY_ROWS": nope,
            "SPLITS": partials.splits,
            "BLOCK_M": block_m,
            "BLOCK_V": block_v,
            "BLOCK_L": max(_LEAST, min(power_of_two(latent), 8192 // (block_m * partials.splits))),
            "NUM_STAGES": 2,
        },
        num_warps=4,
        num_stages=2,
    )


def _num_splits(rows: int, width: int) -> int:
    """Return how many programs share one row's selection: a power of two, at most one per tile of it.

    Few rows need splits to fill the device; each split costs its partial output, written and read once.
    """
    wanted = 16 if rows <= 2 else 8 if rows <= 4 else 4
    return min(wanted, power_of_two(cdiv(width, _BLOCK_T) + 1) // 2)
