"""lm_head: the head norm, the product with lm_head and the argmax, with a grammar and a confidence where asked for."""

from dataclasses import dataclass

import torch

from compiler.triton.emission import RegionEmission
from compiler.triton.launch import Constant, View
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


@dataclass(frozen=True, slots=True)
class HeadViews:
    """What every form of the head reads beside its weight, and what it leaves; a part that is absent is the token."""

    token: View
    normed: View
    probability: View
    x: View
    gain: View
    bitmask: View
    token_ids: View
    eps: float
    has_grammar: bool
    has_confidence: bool
    is_trimmed: bool

    @staticmethod
    def of(emit: RegionEmission) -> "HeadViews":
        """Return those of a region whose steps have the names of the rule lm_head."""
        norm, choices = emit.call("norm"), (*emit.calls("token"), emit.call("draft"))
        assert isinstance(norm.node, RmsNorm)
        # the row of a trimmed weight is kept inside, the token that it stands for leaves
        token = emit.view(choices[0].results[0])
        masks = (*emit.calls("allowed"), *emit.calls("allowed_rows"))
        # a rule that certifies takes no confidence
        has_step = any(step.name == "confidence" for step in emit.rule.pattern)
        tokens, confidences = emit.calls("token"), emit.calls("confidence") if has_step else ()
        return HeadViews(
            token=token,
            normed=emit.view(norm.results[0]),
            probability=emit.view(confidences[0].results[0]) if confidences else token,
            x=emit.view(norm.args[0]),
            gain=emit.view(norm.args[1]),
            bitmask=emit.view(masks[0].args[1]) if masks else token,
            token_ids=emit.view(tokens[0].args[1]) if tokens else token,
            eps=norm.node.eps,
            has_grammar=bool(masks),
            has_confidence=bool(confidences),
            is_trimmed=bool(tokens),
        )

    def constants(self, vocab: int) -> dict[str, Constant]:
        """Return the sizes and flags of a kernel over a weight of so many rows."""
        rows, hidden = self.x.shape
        return {
            "ROWS": rows,
            "VOCAB": vocab,
            "HIDDEN": hidden,
            "MASK_WORDS": self.bitmask.shape[-1],
            "EPS": self.eps,
            "HAS_GRAMMAR": self.has_grammar,
            "HAS_CONFIDENCE": self.has_confidence,
            "IS_TRIMMED": self.is_trimmed,
        }

    def sums(self, emit: RegionEmission, programs: int) -> dict[str, View]:
        """Return work memory for the sum of a confidence, the token where there is none."""
        names = ("logit_ptr", "maximum_ptr", "sum_ptr")
        if not self.has_confidence:
            return dict.fromkeys(names, self.token)
        return {name: emit.scratch(name, torch.float32, programs, self.x.shape[0]) for name in names}


def lower_lm_head(emit: RegionEmission) -> None:
    """One launch: token = argmax of norm(x) @ weight^T."""
    head, weight = HeadViews.of(emit), emit.view(emit.call("logits").args[1])
    launch_head(emit, head, weight, tiles_of(head.x.shape[0]))


def launch_head(
    emit: RegionEmission, head: HeadViews, weight: View, tiles: HeadTiles, *, scale: View | None = None
) -> None:
    """Add the launch that drafts of the rows of `weight` [rows, hidden]; one of eight bits has a `scale` per row."""
    rows, vocab = head.x.shape[0], weight.shape[0]
    programs = cdiv(vocab, tiles.share(vocab))
    emit.launch(
        "lm_head",
        "lm_head.lm_head",
        grid=(programs,),
        arguments={
            "token_ptr": head.token,
            "normed_ptr": head.normed,
            "probability_ptr": head.probability,
            "best_ptr": emit.scratch("best_keys", torch.uint64, programs, rows),
            **head.sums(emit, programs),
            "arrived_ptr": emit.counter("arrived"),
            "x_ptr": head.x,
            "gain_ptr": head.gain,
            "weight_ptr": weight,
            # no pointer is absent: a weight of whole rows has no scale to read
            "scale_ptr": weight if scale is None else scale,
            "bitmask_ptr": head.bitmask,
            "token_ids_ptr": head.token_ids,
            "x_stride": head.x.row_stride,
            "normed_stride": head.normed.row_stride,
            "bitmask_stride": head.bitmask.row_stride,
        },
        constants={
            **head.constants(vocab),
            "IS_QUANTISED": scale is not None,
            "NUM_PROGRAMS": programs,
            **tile_constants(tiles, vocab, head.x.shape, has_confidence=head.has_confidence),
            "NUM_STAGES": tiles.num_stages,
        },
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
    )


def tile_constants(tiles: HeadTiles, vocab: int, shape: tuple[int, ...], *, has_confidence: bool) -> dict[str, int]:
    """Return the tiles of a kernel of the head as its constexprs; `shape` is that of the rows it normalises."""
    rows, hidden = shape
    share = tiles.share(vocab)
    programs = cdiv(vocab, share)
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
