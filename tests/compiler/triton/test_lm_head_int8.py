"""lm_head in eight bits through its launch: the token that the nodes draft of it, ties, NaN, grammars and all."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from compiler.triton.lowering import lm_head as plain
from compiler.triton.lowering import lm_head_int8 as lowering
from drafts.levers import ModelLevers
from tests.support.launches import LaunchScene

pytestmark = pytest.mark.interpreted

LEVERS = ModelLevers(draft_head="int8")
TRIMMED = ModelLevers(draft_head="int8", draft_vocab=(3, 8, 17, 30, 31, 32, 45, 59))


def scene_of(positions: tuple[int, ...] = (18, 3, 41), **changes: Any) -> tuple[LaunchScene, dict[str, Tensor]]:
    scene = LaunchScene(positions, **{"has_grammar": True, "has_confidence": True, "levers": LEVERS} | changes)
    return scene, scene.region_tensors("lm_head_int8")


def drafted(scene: LaunchScene, tensors: dict[str, Tensor]) -> list[int]:
    """The tokens of the live rows, after all results were held to the reference."""
    got = scene.check_region("lm_head_int8", tensors=tensors)
    (tokens,) = (tensor for tensor in got.values() if tensor.dtype == torch.int64)
    return tokens[: scene.num_live].tolist()


@pytest.mark.parametrize("levers", [LEVERS, TRIMMED], ids=["all tokens", "some tokens"])
@pytest.mark.parametrize("parts", [{}, {"has_grammar": False}, {"has_confidence": False}], ids=str)
@pytest.mark.parametrize("positions", [(3,), (18, 3, 41), tuple(range(2, 18))], ids=len)
def test_int8_head_is_its_reference(positions: tuple[int, ...], parts: dict[str, bool], levers: ModelLevers) -> None:
    drafted(*scene_of(positions, padding=0, levers=levers, **parts))


@pytest.mark.parametrize("live", [1, 3, 7, 16])
def test_int8_head_of_programs_of_several_tiles(live: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "MULTIPROCESSORS", 1)
    scene, tensors = scene_of(tuple(range(2, live + 2)), padding=0, vocab_size=607, hidden_size=21)
    drafted(scene, tensors)
    share = lowering.int8_tiles_of(live).share(607)
    assert lowering.int8_tiles_of(live).block_v < share < 607
    dim = int(tensors["shared_head.norm"].abs().argmax())
    tensors["block_out"][:, dim] = tensors["block_out"][:, dim].abs() + 1.0
    tensors["grammar_bitmask"].fill_(-1)
    for best in (share - 1, share, 606):
        tensors["lm_head.int8"][best] = 0
        tensors["lm_head.int8"][best, dim] = 127
        tensors["lm_head.scale"][best] = 30.0
        assert drafted(scene, tensors) == [best] * live
        tensors["lm_head.scale"][best] = 0.0


def test_int8_head_drafts_the_lowest_of_equals_and_the_nan() -> None:
    scene, tensors = scene_of(has_grammar=False)
    steps, scales = tensors["lm_head.int8"], tensors["lm_head.scale"]
    steps.copy_(steps[:1].expand(61, -1))
    scales.fill_(0.25)
    assert drafted(scene, tensors) == [0, 0, 0]
    scales[[44, 23]] = torch.nan
    assert drafted(scene, tensors) == [23, 23, 23]


def test_int8_head_takes_the_lowest_step_there_is() -> None:
    scene, tensors = scene_of(has_grammar=False)
    # no quantised row has it; the byte is a number all the same
    tensors["lm_head.int8"][7] = -128
    drafted(scene, tensors)


def test_int8_head_in_bf16_is_its_reference_where_sums_are_exact() -> None:
    scene, tensors = scene_of(tuple(range(2, 18)), padding=0, dtype=torch.bfloat16, has_grammar=False)
    generator = torch.Generator().manual_seed(3)
    tensors["lm_head.int8"].copy_(torch.randint(100, 104, tensors["lm_head.int8"].shape, generator=generator))
    tensors["lm_head.scale"].fill_(0.125)
    tensors["shared_head.norm"].fill_(1.0)
    tensors["block_out"].copy_(tensors["block_out"].abs() + 0.5)
    (normed, *_) = scene.region("lm_head_int8").node.reference(*tensors.values())
    wide = normed.float() @ tensors["lm_head.int8"].float().T * 0.125
    logits = wide.to(torch.bfloat16)
    assert ((logits == logits.max(dim=1, keepdim=True).values).sum(dim=1) > 1).any()
    assert drafted(scene, tensors) == logits.argmax(dim=1).tolist()
