"""absorb_index: queries into the latent space; beside them pool scores, the best pools, and newer rows."""

from dataclasses import dataclass

import torch

from circuit import LoweringError
from compiler.triton.emission import RegionEmission
from compiler.triton.launch import Argument, Constant, View
from compiler.triton.tiles import cdiv, power_of_two
from nodes import AbsorbQuery, ExtendSelection, SelectTopk

# programs of the index over all rows: where a context is short most of them leave at once, yet each takes a place that
# an absorbing one waits for, so few of them take several tiles each
INDEX_PROGRAMS = 256
PROGRAMS_OF_A_ROW = 32
# lanes of a choice that cost little; with more keys it goes down by levels, each of the largest of GROUP keys below
FEW_LANES = 1024
MOST_LANES = 32768
GROUP = 4


@dataclass(frozen=True, slots=True)
class IndexTiles:
    """Tiles of scoring and choosing: pools of a tile, programs of a row, levels of the choice and keys of each."""

    block_p: int
    programs: int
    levels: int
    tile: int

    @property
    def num_warps(self) -> int:
        """Warps that hold a level's keys in registers."""
        return min(16, max(4, self.tile // 1024))


def index_tiles(rows: int, num_pools: int, budget: int) -> IndexTiles:
    """Return tiles for `rows` rows of up to `num_pools` pools each, the best `budget` of them chosen.

    Raises LoweringError where one program would hold more keys than it can count.
    """
    block_p = min(64, max(16, power_of_two(num_pools)))
    most = max(INDEX_PROGRAMS // rows, PROGRAMS_OF_A_ROW)
    programs = min(cdiv(num_pools, block_p), most) if num_pools > budget else 1
    tile, levels = min(power_of_two(max(GROUP * budget, FEW_LANES)), power_of_two(num_pools)), 1
    # a tile of pools makes its part of every level
    while num_pools > tile * GROUP ** (levels - 1) and GROUP**levels <= block_p:
        levels += 1
    tile = max(tile, power_of_two(cdiv(num_pools, GROUP ** (levels - 1))))
    if tile > MOST_LANES:
        raise LoweringError(
            f"absorb_index: expected {MOST_LANES} keys or fewer of one level, got {tile} for the best {budget} of "
            f"{num_pools} pools; choose fewer, or another backend"
        )
    return IndexTiles(block_p, programs, levels, tile)


def lower_absorb_index(emit: RegionEmission) -> None:
    """One launch: absorbed = query @ W_UK of each head; selected = the best pools' tokens and the tail."""
    if emit.calls("chosen"):
        _lower_choice(emit)
    else:
        _lower_absorb(emit)


def _lower_absorb(emit: RegionEmission) -> None:
    """The selection is an earlier draft's: at most newer rows extend it."""
    absorb = _Absorb.of(emit)
    if extends := emit.calls("extended"):
        node, (selected, selected_at, position) = extends[0].node, (emit.view(value) for value in extends[0].args)
        assert isinstance(node, ExtendSelection)
        extended, extra = emit.view(extends[0].results[0]), node.rows
        programs = absorb.rows + absorb.programs
    else:
        # nothing is read or written through these
        extended = selected = selected_at = position = absorb.out
        extra, programs = 0, absorb.programs
    width = selected.shape[1] if extra else 0
    emit.launch(
        "absorb_index",
        "absorb_index.absorb_extend",
        grid=(programs,),
        arguments={
            "absorbed_ptr": absorb.out,
            "extended_ptr": extended,
            "query_ptr": absorb.query,
            "weight_ptr": absorb.weight,
            "selected_ptr": selected,
            "position_ptr": position,
            "selected_at_ptr": selected_at,
            "extended_stride": extended.row_stride,
            "selected_stride": selected.row_stride,
            **absorb.strides(),
        },
        constants={"WIDTH": width, "EXTRA": extra, "BLOCK_W": _block_w(width + extra), **absorb.constants()},
    )


def _lower_choice(emit: RegionEmission) -> None:
    """Scores, the choice of each row, and what extends it."""
    absorb = _Absorb.of(emit)
    scores, choice = emit.call("scores"), emit.call("chosen")
    assert isinstance(choice.node, SelectTopk)
    pool_keys, query, head_weights, position, block_table = (emit.view(value) for value in scores.args)
    selected = emit.view(choice.results[0])
    extended, selected_at, extra = _extension(emit) or (selected, position, 0)
    entries, budget = pool_keys.shape[1], choice.node.topk // choice.node.pool
    num_pools = block_table.shape[1] * entries if budget else 0
    tiles = index_tiles(absorb.rows, num_pools, budget)
    num_keys = max(1, cdiv(num_pools, tiles.block_p)) * tiles.block_p
    keys_of_levels = sum(num_keys // GROUP**level for level in range(tiles.levels))
    keys = emit.scratch("keys", torch.int32, absorb.rows, keys_of_levels)
    emit.launch(
        "absorb_index",
        "absorb_index.absorb_index",
        grid=(absorb.rows * tiles.programs + absorb.programs,),
        arguments={
            "absorbed_ptr": absorb.out,
            "selected_ptr": selected,
            "extended_ptr": extended,
            "keys_ptr": keys,
            "best_ptr": emit.scratch("best", torch.int32, absorb.rows, max(1, budget)),
            "arrived_ptr": emit.counter("arrived", absorb.rows),
            "query_ptr": absorb.query,
            "weight_ptr": absorb.weight,
            "pool_keys_ptr": pool_keys,
            "index_query_ptr": query,
            "head_weights_ptr": head_weights,
            "position_ptr": position,
            "selected_at_ptr": selected_at,
            "block_table_ptr": block_table,
            **absorb.strides(),
            "selected_stride": selected.row_stride,
            "extended_stride": extended.row_stride,
            "keys_stride": keys.row_stride,
            "index_query_stride": query.row_stride,
            "index_query_head_stride": query.strides[1],
            "head_weights_stride": head_weights.row_stride,
            "block_table_stride": block_table.row_stride,
        },
        constants={
            **absorb.constants(),
            "INDEX_HEADS": query.shape[1],
            "INDEX_WIDTH": query.shape[2],
            "NUM_POOLS": num_pools,
            "ENTRIES": entries,
            "KPOOL": choice.node.pool,
            "BUDGET": budget,
            "EXTRA": extra,
            "PROGRAMS": tiles.programs,
            "LEVELS": tiles.levels,
            "TILE": tiles.tile,
            "BLOCK_P": tiles.block_p,
            "BLOCK_H": max(16, power_of_two(query.shape[1])),
            "BLOCK_D": max(16, power_of_two(query.shape[2])),
            "INDEX_STAGES": 3,
            "BLOCK_W": _block_w(selected.shape[1] + extra),
        },
        num_warps=tiles.num_warps,
    )


def _extension(emit: RegionEmission) -> tuple[View, View, int] | None:
    """The extended selection, the positions that selected, and how many newer rows fit; None without one."""
    calls = emit.calls("extended")
    if not calls:
        return None
    assert isinstance(calls[0].node, ExtendSelection)
    return emit.view(calls[0].results[0]), emit.view(calls[0].args[1]), calls[0].node.rows


def _block_w(width: int) -> int:
    """Columns of a selection that are written at once."""
    return min(1024, max(16, power_of_two(width)))


@dataclass(frozen=True, slots=True)
class _Absorb:
    """What the absorbing programs of either kernel take."""

    out: View
    query: View
    weight: View
    head_rows: int
    block_n: int

    @staticmethod
    def of(emit: RegionEmission) -> "_Absorb":
        call = emit.call("absorbed")
        assert isinstance(call.node, AbsorbQuery)
        query, weight = (emit.view(value) for value in call.args)
        head_rows = query.shape[2] + call.node.v_head_dim
        block_n = min(64, max(16, power_of_two(weight.shape[1])))
        return _Absorb(emit.view(call.results[0]), query, weight, head_rows, block_n)

    @property
    def rows(self) -> int:
        return self.query.shape[0]

    @property
    def programs(self) -> int:
        return self.query.shape[1] * cdiv(self.weight.shape[1], self.block_n)

    def strides(self) -> dict[str, Argument]:
        return {
            "absorbed_stride": self.out.row_stride,
            "absorbed_head_stride": self.out.strides[1],
            "query_stride": self.query.row_stride,
            "query_head_stride": self.query.strides[1],
        }

    def constants(self) -> dict[str, Constant]:
        return {
            "ROWS": self.rows,
            "NOPE": self.query.shape[2],
            "LATENT": self.weight.shape[1],
            "HEAD_ROWS": self.head_rows,
            "BLOCK_M": power_of_two(self.rows),
            "BLOCK_N": self.block_n,
            "BLOCK_K": min(64, max(16, power_of_two(self.query.shape[2]))),
            "NUM_STAGES": 4,
        }
