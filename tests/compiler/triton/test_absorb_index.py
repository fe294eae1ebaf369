"""absorb_index through its launch: absorbed queries, and selections that are exactly the reference's."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from circuit import LoweringError
from compiler.kernels.top_pools import choose_pools, score_keys
from compiler.region import Region
from compiler.triton.emission import emit
from compiler.triton.launch import View
from compiler.triton.lowering.absorb_index import GROUP, index_tiles
from compiler.triton.program import run_launch
from nodes import IndexerScores
from tests.support.launches import GuardedMemory, LaunchScene, _alone

pytestmark = pytest.mark.interpreted

# sizes whose scores of whole numbers are exact sums in any order: the roots of width and heads are powers of two
EXACT = {"index_n_heads": 4, "index_head_dim": 16}
NEW_ROWS = {"index_share": "pools_and_new_rows"}


def index_ports(scene: LaunchScene) -> dict[str, str]:
    """The region's ports by the names of IndexerScores."""
    region = scene.region("absorb_index").node
    assert isinstance(region, Region)
    (scores,) = [call for call in region.circuit.calls if isinstance(call.node, IndexerScores)]
    return {port: arg.name for port, arg in zip(scores.node.ports, scores.args, strict=True)}


def whole(tensor: Tensor, generator: torch.Generator, top: int = 3) -> Tensor:
    """Small whole numbers of a tensor's shape."""
    return torch.randint(-top, top + 1, tensor.shape, generator=generator).to(tensor.dtype)


def whole_tensors(scene: LaunchScene, positions: tuple[int, ...], *, seed: int = 0, top: int = 3) -> dict[str, Tensor]:
    """The region's tensors for other positions: pools of whole numbers, block tables permuted, NaN where none may read.

    Every row has blocks of its own, as many as its visible rows fill; the last, partial one holds NaN where its pools
    are not complete.
    """
    generator = torch.Generator().manual_seed(seed)
    tensors, ports = scene.region_tensors("absorb_index"), index_ports(scene)
    keys = tensors[ports["pool_keys"]]
    num_blocks, entries = keys.shape[:2]
    pool = scene.binding.config.index_kpool
    table = tensors[ports["block_table"]]
    keys.fill_(math.nan)
    free = (torch.randperm(num_blocks - 1, generator=generator) + 1).tolist()
    table.zero_()
    for row, position in enumerate(positions):
        complete = (position + 1) // pool
        for index in range(-(-complete // entries)):
            block = free.pop()
            table[row, index] = block
            count = min(entries, complete - index * entries)
            keys[block, :count] = whole(keys[block, :count], generator, top)
    tensors[ports["position"]][: len(positions)] = torch.tensor(positions)
    for port in ("query", "head_weights"):
        tensors[ports[port]] = whole(tensors[ports[port]], generator, top)
    return tensors


def scene_of(positions: tuple[int, ...], **config: Any) -> LaunchScene:
    """A scene whose tables have room for these positions; the prefilled rows are few."""
    return LaunchScene(
        tuple(2 for _ in positions), max_seq_len=max(positions) + 8, max_position_embeddings=20000, **config
    )


@pytest.mark.parametrize("decisions", [None, NEW_ROWS, {"index_share": "exact_set"}], ids=str)
@pytest.mark.parametrize("draft", [1, 2])
def test_region_is_its_reference_whatever_is_shared(decisions: dict[str, str] | None, draft: int) -> None:
    LaunchScene((18, 3, 41), program="chain", num_drafts=2, decisions=decisions).check_region(
        "absorb_index", draft=draft
    )


@pytest.mark.parametrize("pool, topk", [(1, 5), (4, 8), (16, 32)], ids=str)
@pytest.mark.parametrize("positions", [(90,), (3, 15, 16), tuple(range(30, 46))], ids=len)
def test_region_of_any_pool_and_number_of_rows(pool: int, topk: int, positions: tuple[int, ...]) -> None:
    LaunchScene(positions, index_kpool=pool, index_topk=topk).check_region("absorb_index")


def test_absorbed_over_odd_wide_sizes_and_large_values() -> None:
    scene = LaunchScene((18, 3, 41), kv_lora_rank=67, qk_nope_head_dim=71, qk_head_dim=71, padding=0)
    tensors = scene.region_tensors("absorb_index")
    scaled = {name: tensor * 1e3 if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
    scene.check_region("absorb_index", tensors=scaled)


def test_bf16_rounds_the_absorbed_query_once_and_chooses_alike() -> None:
    # whole numbers are exact in bf16, and sums of their products in float32: no near tie can flip
    positions = (77, 40, 2)
    scene = scene_of(positions, dtype=torch.bfloat16, **EXACT)
    scene.check_region("absorb_index", tensors=whole_tensors(scene, positions))


@pytest.mark.parametrize("pool, topk", [(1, 6), (4, 8), (16, 32)], ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_ties_go_to_the_lowest_pool_and_what_is_not_visible_is_not_read(pool: int, topk: int, seed: int) -> None:
    # one value per channel: many pools are equal, and many scores are zero
    positions = (250, 63, 64, 65, 0)
    scene = scene_of(positions, index_kpool=pool, index_topk=topk, **EXACT)
    got = scene.check_region("absorb_index", tensors=whole_tensors(scene, positions, seed=seed, top=1))
    chosen = next(tensor for name, tensor in got.items() if name.startswith("selected"))
    assert (chosen[0] >= 0).sum() == topk + 251 % pool


@pytest.mark.parametrize("sign", [1.0, -1.0, 0.0])
def test_equal_scores_of_any_sign_choose_the_first_pools(sign: float) -> None:
    positions = (150, 47)
    scene = scene_of(positions, **EXACT)
    tensors, ports = whole_tensors(scene, positions), index_ports(scene)
    keys = tensors[ports["pool_keys"]]
    tensors[ports["pool_keys"]] = torch.where(keys.isnan(), keys, 1.0)
    tensors[ports["query"]].fill_(1.0)
    tensors[ports["head_weights"]].fill_(sign)
    got = scene.check_region("absorb_index", tensors=tensors)
    chosen = next(tensor for name, tensor in got.items() if name.startswith("selected"))
    assert chosen[0].tolist() == [*range(8), 148, 149, 150]


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
def test_pools_of_infinite_scores_and_nan_are_chosen_as_the_reference_does() -> None:
    positions = (150, 150, 150)
    scene = scene_of(positions, padding=0, **EXACT)
    tensors, ports = whole_tensors(scene, positions), index_ports(scene)
    keys, table = tensors[ports["pool_keys"]], tensors[ports["block_table"]]
    tensors[ports["query"]].fill_(1.0)
    tensors[ports["head_weights"]].copy_(torch.tensor([[-1.0], [1.0], [1.0]]).expand(3, 4))
    # one pool that may be chosen where two are wanted, the others score -inf
    keys[table[0, :10]] = math.inf
    keys[table[0, 3], 1] = 2.0
    keys[table[1, 2], 1] = math.inf
    keys[table[2, 3], 2] = math.nan
    got = scene.check_region("absorb_index", tensors=tensors)
    chosen = next(tensor for name, tensor in got.items() if name.startswith("selected"))
    assert chosen[0].tolist() == [52, 53, 54, 55, -1, -1, -1, -1, 148, 149, 150]


@pytest.mark.parametrize("position", [*range(10), 30, 31, 32, 33, 34, 35, 36])
def test_rows_at_a_pool_edge_and_around_the_budget(position: int) -> None:
    positions = (position, 35)
    scene = scene_of(positions, decisions=NEW_ROWS, **EXACT)
    tensors = whole_tensors(scene, positions)
    tensors["selected_at"] = torch.tensor([position - 1, 33, 0])
    scene.check_region("absorb_index", tensors=tensors)


@pytest.mark.parametrize("has_negative_scores", [False, True])
def test_rows_of_very_different_lengths_choose_by_as_many_levels_as_they_need(has_negative_scores: bool) -> None:
    positions = (17500, 5, 8000, 63)
    scene = scene_of(positions, index_topk=52, **EXACT)
    ports = index_ports(scene)
    tensors = whole_tensors(scene, positions, top=9 if has_negative_scores else 1)
    if has_negative_scores:
        # memory of pools that are not there, zero or poison, would beat all of these
        for port, sign in (("pool_keys", 1), ("query", 1), ("head_weights", -1)):
            tensors[ports[port]] = sign * (tensors[ports[port]].abs() + 1)
    num_pools = tensors[ports["block_table"]].shape[1] * 4
    tiles = index_tiles(len(positions) + 1, num_pools, 13)
    assert (tiles.levels, tiles.tile) == (3, 1024)
    assert tiles.tile < 8000 // 4
    scene.check_region("absorb_index", tensors=tensors)


def test_tiles_that_are_not_visible_and_rows_that_keep_all_pools_are_not_scored() -> None:
    positions = (700, 35, 10)
    scene = scene_of(positions, padding=0, **EXACT)
    tensors = whole_tensors(scene, positions)
    alone, _ = _alone(scene.region("absorb_index"))
    plan = emit(alone, name="absorb_index")
    memory = GuardedMemory(plan)
    for declared in (plan.inputs, plan.weights, plan.states):
        memory.lend(tensors, declared)
    launch = plan.launches[0]
    keys, tile = launch.arguments["keys_ptr"], int(launch.constants["BLOCK_P"])
    assert isinstance(keys, View)
    # the bits of no score's key: poison has those of a score of 0
    untouched = 12345
    memory.tensor(keys).fill_(untouched)
    run_launch(launch, memory)
    scored = memory.tensor(keys) != untouched
    assert scored[0, : 701 // 4].all()
    # 9 pools of which 2 are chosen: one tile; 2 pools: none
    assert scored[1].nonzero().max() < tile
    assert not scored[2].any()


@pytest.mark.parametrize("rows", [1, 4, 16])
@pytest.mark.parametrize("pool", [1, 4, 16])
def test_released_contexts_choose_from_what_registers_hold(rows: int, pool: int) -> None:
    num_pools, budget = 131072 // pool, 2048 // pool
    tiles = index_tiles(rows, num_pools, budget)
    assert tiles.tile <= 8192
    assert tiles.tile >= GROUP * budget
    assert num_pools <= tiles.tile * GROUP ** (tiles.levels - 1)
    assert tiles.programs * rows <= 512
    # as many pools as a row may choose: nothing to score
    assert index_tiles(rows, budget, budget).programs == 1


def test_more_chosen_pools_than_one_program_counts_are_refused() -> None:
    assert index_tiles(1, 2**20, 8192).tile == 32768
    with pytest.raises(LoweringError, match="expected 32768 keys or fewer of one level, got 65536 for the best 8193"):
        index_tiles(1, 2**20, 8193)


@triton.jit
def keys_of(keys, scores, is_pool):
    lane = tl.arange(0, 8)
    made = score_keys(tl.load(scores + lane), tl.load(is_pool + lane) != 0)
    tl.store(keys + lane, made.to(tl.int32, bitcast=True))


def test_keys_sort_like_scores_and_zero_is_no_pool() -> None:
    scores = torch.tensor([-math.inf, -3.0, -1e-45, -0.0, 0.0, 2.0, math.nan, 7.0])
    made = torch.zeros(8, dtype=torch.int32)
    keys_of[(1,)](made, scores, torch.tensor([1, 1, 1, 1, 1, 1, 1, 0], dtype=torch.int32))
    keys = [key % 2**32 for key in made.tolist()]
    assert keys[0] == keys[7] == 0
    assert 0 < keys[1] < keys[2] < keys[3] == keys[4] < keys[5] < keys[6]


@triton.jit
def choose(best, number, keys, num_pools, NUM_KEYS: tl.constexpr, BUDGET: tl.constexpr, LEVELS: tl.constexpr,
           TILE: tl.constexpr):  # fmt: skip
    chosen = choose_pools(best, keys, tl.load(num_pools), NUM_KEYS, BUDGET, LEVELS, TILE)
    tl.store(number, chosen)


@pytest.mark.parametrize("num_pools", [15, 65, 255, 256])
@pytest.mark.parametrize("levels, budget", [(1, 1), (1, 9), (2, 9), (2, 16), (3, 3), (3, 4), (4, 1)], ids=str)
@pytest.mark.parametrize("spread", [1, 7, 2**32 - 1], ids=lambda spread: f"to {spread}")
def test_choice_is_exact_with_ties_on_any_level(num_pools: int, levels: int, budget: int, spread: int) -> None:
    generator = torch.Generator().manual_seed(num_pools + spread)
    # 0 is no pool; the top keys meet the border of the unsigned range
    drawn = torch.randint(0, spread + 1, (256,), generator=generator)
    keys = (2**32 - 1 - drawn) * (torch.rand(256, generator=generator) < 0.9)
    keys[num_pools:] = 0
    above = [keys.view(-1, GROUP**level).amax(1) for level in range(levels)]
    best, number = torch.full((budget,), -1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    sizes = {"NUM_KEYS": 256, "BUDGET": budget, "LEVELS": levels, "TILE": 256 // GROUP ** (levels - 1)}
    choose[(1,)](best, number, as_int32(torch.cat(above)), torch.tensor([num_pools], dtype=torch.int32), **sizes)
    order = torch.sort(keys, descending=True, stable=True).indices[:budget]
    expected = order[keys[order] > 0].sort().values.tolist()
    assert best[: int(number)].tolist() == expected


def as_int32(keys: Tensor) -> Tensor:
    """Unsigned 32 bit numbers as they lie in int32 memory."""
    return torch.where(keys >= 2**31, keys - 2**32, keys).to(torch.int32)
