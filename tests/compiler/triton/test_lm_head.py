"""lm_head through its launch: the token that the nodes draft, ties, NaN, grammars and all, and how sure of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from compiler.triton.lowering import lm_head as lowering
from drafts.levers import ModelLevers
from tests.support.launches import LaunchScene

pytestmark = pytest.mark.interpreted


def scene_of(positions: tuple[int, ...] = (18, 3, 41), **changes: Any) -> tuple[LaunchScene, dict[str, Tensor]]:
    """A scene with a grammar and a confidence, and what its lm_head reads."""
    scene = LaunchScene(positions, **{"has_grammar": True, "has_confidence": True} | changes)
    return scene, scene.region_tensors("lm_head")


def drafted(scene: LaunchScene, tensors: dict[str, Tensor]) -> list[int]:
    """The tokens of the live rows, after all results were held to the reference."""
    got = scene.check_region("lm_head", tensors=tensors)
    (tokens,) = (tensor for tensor in got.values() if tensor.dtype == torch.int64)
    return tokens[: scene.num_live].tolist()


@pytest.mark.parametrize("has_grammar", [True, False])
@pytest.mark.parametrize("has_confidence", [True, False])
@pytest.mark.parametrize("positions", [(3,), (18, 3, 41), tuple(range(2, 18))], ids=len)
def test_lm_head_is_its_reference(positions: tuple[int, ...], has_grammar: bool, has_confidence: bool) -> None:
    scene = LaunchScene(positions, padding=0, has_grammar=has_grammar, has_confidence=has_confidence)
    scene.check_region("lm_head")


@pytest.mark.parametrize("live", [1, 3, 7, 16])
def test_lm_head_of_programs_of_several_tiles(live: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # a vocabulary of the released size on 132 multiprocessors, cut down: the last tile of a program is not full
    monkeypatch.setattr(lowering, "MULTIPROCESSORS", 1)
    scene, tensors = scene_of(tuple(range(2, live + 2)), padding=0, vocab_size=607, hidden_size=21)
    tokens = drafted(scene, tensors)
    share = lowering.tiles_of(live).share(607)
    assert share > lowering.tiles_of(live).block_v
    assert share < 607
    # wherever the best token lies, it is found
    weight = tensors["lm_head"]
    for best in (share - 1, share):
        dim = int(tensors["shared_head.norm"].abs().argmax())
        weight[best] = 0.0
        weight[best, dim] = 30.0
        tensors["block_out"][:, dim] = tensors["block_out"][:, dim].abs() + 1.0
        tensors["grammar_bitmask"].fill_(-1)
        assert drafted(scene, tensors) == [best] * live
        weight[best] = 0.0
    assert len(tokens) == live


@pytest.mark.parametrize("later", [6, 19, 60], ids=["in its tile", "in another program", "last"])
def test_lm_head_drafts_the_lowest_of_equals(later: int) -> None:
    scene, tensors = scene_of((18,), has_grammar=False)
    weight = tensors["lm_head"]
    # one product each: the sum is the same in any order
    weight[[5, later]] = 0.0
    weight[[5, later], 11] = 30.0 * tensors["block_out"][0, 11].sign()
    assert drafted(scene, tensors) == [5]
    weight[5] = 0.0
    assert drafted(scene, tensors) == [later]


def test_lm_head_of_equal_logits_drafts_token_0() -> None:
    scene, tensors = scene_of(has_grammar=False)
    tensors["lm_head"].copy_(tensors["lm_head"][:1].expand(61, -1))
    assert drafted(scene, tensors) == [0, 0, 0]


def test_lm_head_in_bf16_ties_logits_that_rounding_made_equal() -> None:
    scene, tensors = scene_of(tuple(range(2, 18)), padding=0, dtype=torch.bfloat16, has_grammar=False)
    generator = torch.Generator().manual_seed(3)
    # few distinct weights: sums are exact in any order, and many of the rounded ones are equal
    weight = torch.randint(0, 3, tensors["lm_head"].shape, generator=generator)
    tensors["lm_head"].copy_(weight + 12)
    tensors["block_out"].copy_(tensors["block_out"].abs() + 0.5)
    tensors["shared_head.norm"].fill_(1.0)
    (normed, *_) = scene.region("lm_head").node.reference(*tensors.values())
    wide = normed.float() @ tensors["lm_head"].float().T
    logits = wide.to(torch.bfloat16)
    is_tie = (logits == logits.max(dim=1, keepdim=True).values).sum(dim=1) > 1
    assert is_tie.sum() > 3
    assert (wide.argmax(dim=1) != logits.argmax(dim=1)).any()
    assert drafted(scene, tensors) == logits.argmax(dim=1).tolist()


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_lm_head_takes_nan_for_the_largest(sign: float) -> None:
    scene, tensors = scene_of(has_grammar=False)
    tensors["lm_head"][[44, 23]] = torch.copysign(torch.tensor(torch.nan), torch.tensor(sign))
    tensors["lm_head"][50] = 1e30
    assert drafted(scene, tensors) == [23, 23, 23]


def test_lm_head_with_a_grammar_drafts_what_it_allows() -> None:
    scene, tensors = scene_of()
    mask = tensors["grammar_bitmask"]
    mask.zero_()
    # token 31 is the sign of its word, which must not spread; bits beyond the vocabulary mean nothing
    mask[0, 0], mask[1, 1], mask[2, 1] = -(2**31), 1 << 28, -(2**29)
    # what a grammar forbids does not win by being NaN, but the probability is over it too
    tensors["lm_head"][7] = torch.nan
    assert drafted(scene, tensors) == [31, 60, 0]


def test_lm_head_of_a_grammar_that_allows_nothing_drafts_token_0_and_its_probability() -> None:
    scene, tensors = scene_of()
    tensors["grammar_bitmask"].zero_()
    assert drafted(scene, tensors) == [0, 0, 0]


def test_lm_head_with_fewer_mask_words_than_tokens_allows_none_beyond_them() -> None:
    scene, tensors = scene_of(mask_words=1)
    tensors["grammar_bitmask"].fill_(-1)
    weight = tensors["lm_head"]
    weight[[31, 32]] = 0.0
    weight[31, 11] = weight[32, 11] = 30.0
    tensors["block_out"][:, 11] = tensors["block_out"][:, 11].abs() + 1.0
    assert drafted(scene, tensors) == [31, 31, 31]
    weight[31] = 0.0
    assert all(token < 32 for token in drafted(scene, tensors))


def test_lm_head_of_large_logits_has_a_finite_probability() -> None:
    scene, tensors = scene_of(has_grammar=False)
    tensors["lm_head"] *= 1e3
    drafted(scene, tensors)


def test_lm_head_keeps_nan_of_padding_to_padding() -> None:
    scene, tensors = scene_of(padding=2)
    tensors["block_out"][3:] = torch.nan
    drafted(scene, tensors)


def test_lm_head_in_bf16_is_its_reference() -> None:
    scene, tensors = scene_of(dtype=torch.bfloat16)
    drafted(scene, tensors)


# crosses words of a mask, holds bit 31 of one, and leaves out the first and the last token
TRIMMED = (3, 8, 17, 30, 31, 32, 45, 59)


def trimmed_scene(positions: tuple[int, ...] = (18, 3, 41), **changes: Any) -> tuple[LaunchScene, dict[str, Tensor]]:
    return scene_of(positions, **{"levers": ModelLevers(draft_vocab=TRIMMED)} | changes)


@pytest.mark.parametrize("parts", [{}, {"has_grammar": False}, {"has_confidence": False}], ids=str)
@pytest.mark.parametrize("positions", [(3,), (18, 3, 41), tuple(range(2, 18))], ids=len)
def test_trimmed_lm_head_is_its_reference(positions: tuple[int, ...], parts: dict[str, bool]) -> None:
    scene, tensors = trimmed_scene(positions, padding=0, **parts)
    assert set(drafted(scene, tensors)) <= set(TRIMMED)


def test_trimmed_lm_head_with_a_grammar_drafts_what_it_allows_by_token_ids() -> None:
    scene, tensors = trimmed_scene()
    mask = tensors["grammar_bitmask"]
    mask.zero_()
    # bits 0 and 5 are those of rows, and of no listed token
    mask[0, 0], mask[1, 1], mask[2, 1] = -(2**31) + 33, 1 << 27, (1 << 13) + 33
    assert drafted(scene, tensors) == [31, 59, 45 if _is_above(tensors, 6, 5) else 32]


def _is_above(tensors: dict[str, Tensor], row: int, other: int) -> bool:
    """Whether the third hidden has a larger product with one row than with another."""
    x = tensors["block_out"][2] * tensors["shared_head.norm"]
    logits = tensors["lm_head.draft_rows"] @ x
    return bool(logits[row] > logits[other])


def test_trimmed_lm_head_drafts_the_lowest_token_of_equals_in_several_programs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lowering, "MULTIPROCESSORS", 1)
    listed = tuple(range(4, 1200, 2))
    scene, tensors = trimmed_scene(vocab_size=1201, levers=ModelLevers(draft_vocab=listed), has_grammar=False)
    tensors["lm_head.draft_rows"].copy_(tensors["lm_head.draft_rows"][:1].expand(len(listed), -1))
    assert drafted(scene, tensors) == [4, 4, 4]
    tensors["lm_head.draft_rows"][:400] *= -1.0
    assert all(token in (4, 804) for token in drafted(scene, tensors))
