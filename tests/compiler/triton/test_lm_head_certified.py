"""The certified head through its launches: always the token of the whole head, and few rows read to find it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from compiler.quantised_rows import int8_rows, row_errors, row_scales
from compiler.triton.emission import emit
from compiler.triton.lowering import lm_head as plain
from compiler.triton.program import run_launch
from drafts.levers import ModelLevers
from tests.support.launches import GuardedMemory, LaunchScene, _alone

pytestmark = pytest.mark.interpreted

RULE = "lm_head_certified"
LEVERS = ModelLevers(draft_head="int8_certified")
TRIMMED = ModelLevers(draft_head="int8_certified", draft_vocab=(3, 8, 17, 30, 31, 32, 45, 59))
ROWS_OF_16 = tuple(range(2, 18))


def scene_of(positions: tuple[int, ...] = (18, 3, 41), **changes: Any) -> tuple[LaunchScene, dict[str, Tensor]]:
    scene = LaunchScene(positions, **{"levers": LEVERS} | changes)
    return scene, scene.region_tensors(RULE)


def certified(tensors: dict[str, Tensor], name: str = "lm_head") -> dict[str, Tensor]:
    """Make the weights in eight bits again of rows that a test has changed."""
    weight = tensors[name]
    made = {"int8": int8_rows(weight), "scale": row_scales(weight), "error": row_errors(weight)}
    return tensors | {f"{name}.{part}": tensor for part, tensor in made.items()}


def drafted(scene: LaunchScene, tensors: dict[str, Tensor]) -> list[int]:
    """The tokens of the live rows, after all results were held to the reference."""
    got = scene.check_region(RULE, tensors=tensors)
    (tokens,) = (tensor for tensor in got.values() if tensor.dtype == torch.int64)
    return tokens[: scene.num_live].tolist()


def run(scene: LaunchScene, tensors: Mapping[str, Tensor]) -> tuple[list[int], int]:
    """Run the launches alone; return the tokens, and how many rows of the weight could win for any hidden."""
    plan = emit(_alone(scene.region(RULE))[0], name=RULE)
    memory = GuardedMemory(plan)
    memory.lend(tensors, plan.inputs)
    memory.lend(tensors, plan.weights)
    run_launch(plan.launches[0], memory)
    bounds = plan.launches[0].arguments
    upper, floor = memory.tensor(bounds["upper_ptr"]), memory.tensor(bounds["floor_ptr"])  # type: ignore[arg-type]
    could_win = int((upper.float() >= floor.amax(dim=0)).any(dim=1).sum())
    run_launch(plan.launches[1], memory)
    memory.check()
    (token,) = (memory.tensor(view) for view in plan.outputs.values() if view.dtype == torch.int64)
    return token[: scene.num_live].tolist(), could_win


@pytest.mark.parametrize("levers", [LEVERS, TRIMMED], ids=["all tokens", "some tokens"])
@pytest.mark.parametrize("has_grammar", [False, True])
@pytest.mark.parametrize("positions", [(3,), (18, 3, 41), ROWS_OF_16], ids=len)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
def test_certified_head_is_its_reference(
    positions: tuple[int, ...], has_grammar: bool, levers: ModelLevers, dtype: torch.dtype
) -> None:
    drafted(*scene_of(positions, padding=0, levers=levers, has_grammar=has_grammar, dtype=dtype))


@pytest.mark.parametrize("live", [1, 3, 16])
def test_certified_head_of_programs_of_several_tiles(live: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "MULTIPROCESSORS", 1)
    scene, tensors = scene_of(tuple(range(2, live + 2)), padding=0, vocab_size=607, hidden_size=21)
    drafted(scene, tensors)
    dim = int(tensors["shared_head.norm"].abs().argmax())
    tensors["block_out"][:, dim] = tensors["block_out"][:, dim].abs() + 1.0
    for best in (0, 121, 122, 606):
        row = tensors["lm_head"][best].clone()
        tensors["lm_head"][best] = 0.0
        tensors["lm_head"][best, dim] = 30.0
        assert drafted(scene, certified(tensors)) == [best] * live
        tensors["lm_head"][best] = row


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
def test_certified_head_reads_no_row_that_cannot_win(dtype: torch.dtype) -> None:
    scene, tensors = scene_of((18, 3), padding=0, vocab_size=607, hidden_size=129, dtype=dtype)
    normed = scene.region(RULE).node.reference(*tensors.values())[0].float()
    # two rows along the hiddens win by far
    tensors["lm_head"][[300, 71]] = (normed / normed.norm(dim=1, keepdim=True)).to(dtype) * 2
    tensors = certified(tensors)
    tokens, could_win = run(scene, tensors)
    assert tokens == [300, 71] == drafted(scene, tensors)
    assert could_win <= 4
    tensors["lm_head"][[row for row in range(607) if row not in (300, 71)]] = torch.nan
    if could_win == 2:
        assert run(scene, tensors) == ([300, 71], 2)


def test_certified_head_of_outlier_columns_is_the_whole_head() -> None:
    scene, tensors = scene_of(ROWS_OF_16, padding=0, vocab_size=257, hidden_size=63)
    tensors["lm_head"][:, 5] *= 300.0
    tensors = certified(tensors)
    # rows that are mostly one column leave eight bits nothing for the rest: all of them could win
    drafted(scene, tensors)
    assert run(scene, tensors)[1] > 20


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
def test_certified_head_of_equal_rows_drafts_the_lowest_and_reads_them_all(dtype: torch.dtype) -> None:
    scene, tensors = scene_of(vocab_size=257, dtype=dtype)
    tensors["lm_head"].copy_(tensors["lm_head"][:1].expand(257, -1))
    tensors = certified(tensors)
    assert drafted(scene, tensors) == [0, 0, 0]
    assert run(scene, tensors) == ([0, 0, 0], 257)


@pytest.mark.parametrize("later", [6, 19, 60])
def test_certified_head_drafts_the_lowest_of_two_equal_rows(later: int) -> None:
    scene, tensors = scene_of((18,))
    tensors["lm_head"][[5, later]] = 0.0
    tensors["lm_head"][[5, later], 11] = 30.0 * tensors["block_out"][0, 11].sign()
    assert drafted(scene, certified(tensors)) == [5]


def test_certified_head_in_bf16_ties_logits_that_rounding_made_equal() -> None:
    scene, tensors = scene_of(ROWS_OF_16, padding=0, dtype=torch.bfloat16)
    generator = torch.Generator().manual_seed(3)
    # few distinct weights: sums are exact in any order, and many of the rounded ones are equal
    tensors["lm_head"].copy_(torch.randint(0, 3, tensors["lm_head"].shape, generator=generator) + 12)
    tensors["block_out"].copy_(tensors["block_out"].abs() + 0.5)
    tensors["shared_head.norm"].fill_(1.0)
    (normed, *_) = scene.region(RULE).node.reference(*tensors.values())
    wide = normed.float() @ tensors["lm_head"].float().T
    logits = wide.to(torch.bfloat16)
    assert (wide.argmax(dim=1) != logits.argmax(dim=1)).any()
    assert drafted(scene, certified(tensors)) == logits.argmax(dim=1).tolist()


@pytest.mark.parametrize("seed", range(6))
def test_certified_head_of_near_ties_drafts_what_the_whole_head_drafts(seed: int) -> None:
    scene, tensors = scene_of(ROWS_OF_16, padding=0, dtype=torch.bfloat16, vocab_size=257, hidden_size=64)
    generator = torch.Generator().manual_seed(seed)
    base = torch.randint(-8, 9, (1, 64), generator=generator).float()
    steps = torch.randint(-1, 2, (257, 64), generator=generator).float() * (torch.rand(257, 64) < 0.05)
    # whole numbers: every sum is exact, whatever its order
    tensors["lm_head"].copy_(base + steps)
    tensors["shared_head.norm"].fill_(1.0)
    hidden = torch.randint(-2, 3, tensors["block_out"].shape, generator=generator).float()
    tensors["block_out"].copy_(torch.where(hidden == 0, 1.0, hidden.sign()))
    drafted(scene, certified(tensors))


@pytest.mark.parametrize("value", [torch.nan, -torch.nan, torch.inf, -torch.inf])
def test_certified_head_of_rows_that_are_not_finite(value: float) -> None:
    scene, tensors = scene_of((18,))
    tensors["lm_head"][[44, 23], 7] = value
    drafted(scene, certified(tensors))


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_certified_head_of_hiddens_that_are_not_finite(value: float) -> None:
    scene, tensors = scene_of()
    tensors["block_out"][1, 3] = value
    (before, *_) = scene.region(RULE).node.reference(*tensors.values())
    assert before[1].isnan().any()
    assert run(scene, tensors)[0][1] == 0
    assert run(scene, tensors)[1] == 61


@pytest.mark.parametrize("scale", [1e30, 1e18, 1e-18, 1e-24, 1e-30, 0.0], ids=str)
@pytest.mark.parametrize("port", ["lm_head", "shared_head.norm"])
def test_certified_head_of_magnitudes_at_the_ends_of_float32(port: str, scale: float) -> None:
    scene, tensors = scene_of(ROWS_OF_16, padding=0)
    tensors[port] *= scale
    drafted(scene, certified(tensors))


def test_certified_head_of_a_grammar_that_allows_little_and_nothing() -> None:
    scene, tensors = scene_of(has_grammar=True)
    mask = tensors["grammar_bitmask"]
    mask.zero_()
    mask[0, 0], mask[1, 1] = -(2**31), 1 << 28
    # what is forbidden sets no floor, by a large logit or by NaN
    tensors["lm_head"][9] *= 100.0
    tensors["lm_head"][7] = torch.nan
    assert drafted(scene, certified(tensors)) == [31, 60, 0]


def test_certified_head_keeps_nan_of_padding_to_padding() -> None:
    scene, tensors = scene_of(padding=2)
    tensors["block_out"][3:] = torch.nan
    drafted(scene, tensors)
