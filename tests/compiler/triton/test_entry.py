"""entry through its launch: embedding and hidden, their norms and one product, of few rows and of a context's many."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from circuit import Call, Value
from compiler.region import Region
from tests.support.launches import LaunchScene

pytestmark = pytest.mark.interpreted

TARGET_NORMS = {
    "through_the_target_norm": {"hidden_source": "post_norm", "supplied_hidden": "pre_norm"},
    "as_supplied": {"hidden_source": "post_norm", "supplied_hidden": "post_norm"},
}


@pytest.fixture(params=TARGET_NORMS, ids=list(TARGET_NORMS))
def decisions(request: pytest.FixtureRequest) -> dict[str, str]:
    return TARGET_NORMS[request.param]


def context(rows: int, **changes: Any) -> LaunchScene:
    return LaunchScene((5,), program="context", context_rows=rows, **changes)


def inner_calls(scene: LaunchScene) -> tuple[Call, ...]:
    region = scene.region("entry").node
    assert isinstance(region, Region)
    return tuple(region.circuit.calls)


def args_of(scene: LaunchScene, node_type: str) -> tuple[Value, ...]:
    """The arguments of the first call of a type in the region; a source's name is the region's port."""
    return next(call.args for call in inner_calls(scene) if type(call.node).__name__ == node_type)


@pytest.mark.parametrize("positions", [(3,), (18, 3, 41), tuple(range(2, 18))], ids=len)
@pytest.mark.parametrize("padding", [0, 1])
def test_entry_is_its_reference(positions: tuple[int, ...], padding: int, decisions: dict[str, str]) -> None:
    # sixteen rows and one of padding are a tile of many rows
    scene = LaunchScene(positions, padding=padding, decisions=decisions)
    norms = [call for call in inner_calls(scene) if type(call.node).__name__ == "RmsNorm"]
    assert len(norms) == (3 if decisions["supplied_hidden"] == "pre_norm" else 2)
    scene.check_region("entry")


@pytest.mark.parametrize("hidden_size", [1, 63, 260])
@pytest.mark.parametrize("rows", [3, 19])
def test_entry_over_odd_widths(hidden_size: int, rows: int, decisions: dict[str, str]) -> None:
    context(rows, hidden_size=hidden_size, decisions=decisions).check_region("entry")


@pytest.mark.parametrize("rows", [65, 129])
def test_entry_of_more_rows_than_a_tile(rows: int, decisions: dict[str, str]) -> None:
    context(rows, max_seq_len=160, decisions=decisions).check_region("entry")


@pytest.mark.parametrize("rows", [3, 19])
@pytest.mark.parametrize("factor", [0.0, 1e-6, 1e15], ids=str)
def test_entry_scales_each_half_by_itself(rows: int, factor: float, decisions: dict[str, str]) -> None:
    scene = context(rows, decisions=decisions)
    tensors = scene.region_tensors("entry")
    tensors["target_hidden"] *= factor
    table = args_of(scene, "Embedding")[1].name
    scene.check_region("entry", tensors=tensors | {table: tensors[table] * 1e3})


@pytest.mark.parametrize("rows", [3, 19])
def test_entry_reads_the_first_and_the_last_token_and_no_other(rows: int, decisions: dict[str, str]) -> None:
    scene = context(rows, decisions=decisions)
    tensors = scene.region_tensors("entry")
    token, table = (value.name for value in args_of(scene, "Embedding"))
    last = tensors[table].shape[0] - 1
    tensors[token] = torch.where(torch.arange(len(tensors[token])) % 2 == 1, last, 0)
    tensors[table][1:last] = torch.nan
    scene.check_region("entry", tensors=tensors)


@pytest.mark.parametrize("count", [2, 16])
def test_rows_that_are_not_live_reach_no_other(count: int, decisions: dict[str, str]) -> None:
    scene = LaunchScene(tuple(range(2, 2 + count)), padding=2, decisions=decisions)
    tensors = scene.region_tensors("entry")
    tensors["target_hidden"][scene.num_live :] = torch.nan
    scene.check_region("entry", tensors=tensors)


@pytest.mark.parametrize("rows", [3, 19])
def test_entry_in_bf16(rows: int, decisions: dict[str, str]) -> None:
    # x * gain is rounded once where the nodes round two to four times before the product, each by half a unit of bf16
    context(rows, dtype=torch.bfloat16, decisions=decisions).check_region("entry")


@pytest.mark.parametrize("draft", [1, 2, 3])
def test_entry_of_each_draft_of_a_chain(draft: int, decisions: dict[str, str]) -> None:
    scene = LaunchScene((18, 3), program="chain", decisions=decisions)
    scene.check_region("entry", draft=draft)
