"""lm_head_int8: the head over rows in eight bits, in one launch like the one over rows in the model dtype."""

from compiler.triton.emission import RegionEmission
from compiler.triton.lowering.lm_head import HeadTiles, HeadViews, launch_head


def lower_lm_head_int8(emit: RegionEmission) -> None:
    """One launch: token = argmax of scale * (norm(x) @ weight^T)."""
    head, (_, weight, scale) = HeadViews.of(emit), emit.call("logits").args
    launch_head(emit, head, emit.view(weight), int8_tiles_of(head.x.shape[0]), scale=emit.view(scale))


def int8_tiles_of(rows: int) -> HeadTiles:
    """Return tiles by rows: as many bytes on their way as of bf16, twice the summands.

    More rows of the weight in a tile would make it the operand of warpgroups, which reads it a byte or eight at a time.
    """
    if rows <= 2:
        return HeadTiles(block_v=16, block_k=512, num_warps=1, num_stages=4, residents=5)
    return HeadTiles(block_v=32, block_k=256, num_warps=4, num_stages=4, residents=2)
