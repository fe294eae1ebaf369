"""lm_head_certified: bounds of all logits from rows in eight bits, then the logits of the rows that could win."""

import torch

from compiler.triton.emission import RegionEmission
from compiler.triton.lowering.lm_head import HeadViews, tile_constants, tiles_of
from compiler.triton.lowering.lm_head_int8 import int8_tiles_of
from compiler.triton.tiles import cdiv, power_of_two

# the second kernel's programs by those of the whole head: few tokens each, since a tile that is read makes it wait
_FINER = 3


def lower_lm_head_certified(emit: RegionEmission) -> None:
    """Two launches: upper bounds and the best lower one; the argmax over what reaches it."""
    head = HeadViews.of(emit)
    _, weight, rows_in_int8, scale, error = (emit.view(arg) for arg in emit.call("logits").args)
    rows, vocab = head.x.shape[0], weight.shape[0]
    sizes = {name: value for name, value in head.constants(vocab).items() if name != "HAS_CONFIDENCE"}
    tiles = int8_tiles_of(rows)
    floors = cdiv(vocab, tiles.share(vocab))
    upper = emit.scratch("upper", weight.dtype, vocab, rows)
    floor = emit.scratch("floor", torch.float32, floors, rows)
    masks = {"bitmask_ptr": head.bitmask, "token_ids_ptr": head.token_ids}
    bounds = tile_constants(tiles, vocab, head.x.shape, has_confidence=False)
    emit.launch(
        "lm_head_bounds",
        "lm_head_certified.lm_head_bounds",
        grid=(floors,),
        arguments={
            "normed_ptr": head.normed,
            "upper_ptr": upper,
            "floor_ptr": floor,
            "x_ptr": head.x,
            "gain_ptr": head.gain,
            "weight_ptr": rows_in_int8,
            "scale_ptr": scale,
            "error_ptr": error,
            **masks,
            "x_stride": head.x.row_stride,
            "normed_stride": head.normed.row_stride,
            "bitmask_stride": head.bitmask.row_stride,
        },
        constants={
            **sizes,
            "NUM_PROGRAMS": floors,
            **{name: value for name, value in bounds.items() if name != "BLOCK_P"},
            "NUM_STAGES": tiles.num_stages,
        },
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
    )
    # those of the whole head, whose sums it repeats
    tiles = tiles_of(rows)
    share = cdiv(tiles.share(vocab), _FINER * tiles.block_v) * tiles.block_v
    programs = cdiv(vocab, share)
    rescore = tile_constants(tiles, vocab, head.x.shape, has_confidence=False)
    emit.launch(
        "lm_head_rescore",
        "lm_head_certified.lm_head_rescore",
        grid=(programs,),
        arguments={
            "token_ptr": head.token,
            "best_ptr": emit.scratch("best_keys", torch.uint64, programs, rows),
            "arrived_ptr": emit.counter("arrived"),
            "normed_ptr": head.normed,
            "weight_ptr": weight,
            "upper_ptr": upper,
            "floor_ptr": floor,
            **masks,
            "normed_stride": head.normed.row_stride,
            "bitmask_stride": head.bitmask.row_stride,
        },
        constants={
            **{name: value for name, value in sizes.items() if name != "EPS"},
            "NUM_FLOORS": floors,
            "NUM_PROGRAMS": programs,
            **{name: value for name, value in rescore.items() if name != "BLOCK_D"},
            "SHARE": share,
            "BLOCK_S": power_of_two(share),
            "NUM_STAGES": tiles.num_stages,
        },
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
    )
