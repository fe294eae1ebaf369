"""lm_head: the head norm, the product with lm_head and the argmax, with a grammar and a confidence where asked for."""

from dataclasses import dataclass

import torch

from compiler.triton.emission import RegionEmission
from compiler.triton.tiles import cdiv, power_of_two
from nodes import RmsNorm

# of an H100 or H200; a device with more of them leaves some idle
MULTIPROCESSORS = 132
# tokens: a share that is a multiple of it starts where lines of memory do and fills a tensor core
_SHARE_UNIT = 16


@dataclass(frozen=True, slots=True)
class HeadTiles:
    """Tokens and summands of a program's tile, its warps and loads in flight, and its programs per multiprocessor."""

    block_v: int
    block_k: int
    num_warps: int
    num_stages: int
    residents: int

    def share(self, vocab: int) -> int:
        """Return the tokens of one program, such that all programs run at once and alike."""
        return cdiv(cdiv(vocab, self.residents * MULTIPROCESSORS), _SHARE_UNIT) * _SHARE_UNIT


def lower_lm_head(emit: RegionEmission) -> None:
    """One launch: token = argmax of norm(x) @ weight^T."""
    norm, product, draft = emit.call("norm"), emit.call("logits"), emit.call("draft")
    assert isinstance(norm.node, RmsNorm)
    x, gain = (emit.view(value) for value in norm.args)
    normed, weight, token = emit.view(norm.results[0]), emit.view(product.args[1]), emit.view(draft.results[0])
    rows, (vocab, hidden) = x.shape[0], weight.shape
    tiles = tiles_of(rows)
    programs = cdiv(vocab, tiles.share(vocab))
    # a part that is not there takes a view of something else and leaves it alone
    bitmask = probability = token
    sums = dict.fromkeys(("logit_ptr", "maximum_ptr", "sum_ptr"), token)
    for allowed in emit.calls("allowed"):
        bitmask = emit.view(allowed.args[1])
    for confidence in emit.calls("confidence"):
        probability = emit.view(confidence.results[0])
        sums = {name: emit.scratch(name, torch.float32, programs, rows) for name in sums}
    emit.launch(
        "lm_head",
        "lm_head.lm_head",
        grid=(programs,),
        arguments={
            "token_ptr": token,
            "normed_ptr": normed,
            "probability_ptr": probability,
            "best_ptr": emit.scratch("best_keys", torch.uint64, programs, rows),
            **sums,
            "arrived_ptr": emit.counter("arrived"),
            "x_ptr": x,
            "gain_ptr": gain,
            "weight_ptr": weight,
            "bitmask_ptr": bitmask,
            "x_stride": x.row_stride,
            "normed_stride": normed.row_stride,
            "bitmask_stride": bitmask.row_stride,
        },
        constants={
            "ROWS": rows,
            "VOCAB": vocab,
            "HIDDEN": hidden,
            "MASK_WORDS": bitmask.shape[-1],
            "EPS": norm.node.eps,
            "HAS_GRAMMAR": bool(emit.calls("allowed")),
            "HAS_CONFIDENCE": bool(emit.calls("confidence")),
            "NUM_PROGRAMS": programs,
            **_tile_constants(tiles, tiles.share(vocab), programs, x.shape, bool(emit.calls("confidence"))),
            "NUM_STAGES": tiles.num_stages,
        },
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
    )


def _tile_constants(
    tiles: HeadTiles, share: int, programs: int, shape: tuple[int, ...], has_confidence: bool
) -> dict[str, int]:
    rows, hidden = shape
    block_m = power_of_two(rows)
    # of a tile this wide of all rows a thread holds 32 elements
    columns = max(1, 32 * 32 * tiles.num_warps // block_m)
    return {
        "SHARE": share,
        "BLOCK_M": block_m,
        "BLOCK_V": min(tiles.block_v, power_of_two(share)),
        # a tensor core wants 16 summands at least
        "BLOCK_K": max(16, min(tiles.block_k, power_of_two(hidden))),
        "BLOCK_D": min(columns, power_of_two(hidden)),
        # each program leaves a key of two registers, and three numbers where its sum is asked for
        "BLOCK_P": max(1, min(columns // (8 if has_confidence else 2), power_of_two(programs))),
    }


def tiles_of(rows: int) -> HeadTiles:
    """Return tiles by rows: every tile normalises its rows anew, so that more rows want more tokens in a tile."""
    if rows <= 2:
        return HeadTiles(block_v=16, block_k=256, num_warps=1, num_stages=4, residents=5)
    if rows <= 4:
        return HeadTiles(block_v=32, block_k=256, num_warps=4, num_stages=4, residents=2)
    if rows <= 8:
        return HeadTiles(block_v=64, block_k=128, num_warps=4, num_stages=4, residents=2)
    return HeadTiles(block_v=128, block_k=64, num_warps=8, num_stages=4, residents=2)
