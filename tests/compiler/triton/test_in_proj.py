"""in_proj through its launch: a norm and one product, of few rows and of a context's many."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from compiler.region import Region
from tests.support.launches import LaunchScene

pytestmark = pytest.mark.interpreted


def scaled(tensors: dict[str, Tensor], port: str, factor: float) -> dict[str, Tensor]:
    return tensors | {port: tensors[port] * factor}


def ports(scene: LaunchScene) -> dict[str, str]:
    """What the region calls its input, gain and weight."""
    region = scene.region("in_proj").node
    assert isinstance(region, Region)
    norm, product = region.circuit.calls[:2]
    return {"x": norm.args[0].name, "gain": norm.args[1].name, "weight": product.args[1].name}


@pytest.mark.parametrize("positions", [(3,), (18, 3, 41), tuple(range(2, 18))], ids=len)
@pytest.mark.parametrize("padding", [0, 1])
def test_in_proj_is_its_reference(positions: tuple[int, ...], padding: int) -> None:
    # sixteen rows and one of padding are two tiles
    LaunchScene(positions, padding=padding).check_region("in_proj")


@pytest.mark.parametrize("hidden_size", [1, 63, 260])
@pytest.mark.parametrize("rows", [3, 19, 65])
def test_in_proj_over_odd_widths(hidden_size: int, rows: int) -> None:
    scene = LaunchScene((5,), program="context", context_rows=rows, hidden_size=hidden_size, q_lora_rank=131)
    scene.check_region("in_proj")


@pytest.mark.parametrize("rows", [17, 129])
def test_in_proj_of_more_rows_than_a_tile(rows: int) -> None:
    scene = LaunchScene((5,), program="context", context_rows=rows, max_seq_len=160)
    scene.check_region("in_proj")


@pytest.mark.parametrize("rows", [3, 19, 65])
@pytest.mark.parametrize("factor", [0.0, 1e-6, 1e15], ids=str)
def test_in_proj_keeps_the_scale_of_rows_that_are_tiny_or_large(rows: int, factor: float) -> None:
    scene = LaunchScene((5,), program="context", context_rows=rows)
    scene.check_region("in_proj", tensors=scaled(scene.region_tensors("in_proj"), ports(scene)["x"], factor))


@pytest.mark.parametrize("count", [2, 16])
def test_rows_that_are_not_live_reach_no_other(count: int) -> None:
    scene = LaunchScene(tuple(range(2, 2 + count)), padding=2)
    tensors = scene.region_tensors("in_proj")
    tensors[ports(scene)["x"]][scene.num_live :] = torch.nan
    scene.check_region("in_proj", tensors=tensors)


@pytest.mark.parametrize("rows", [3, 19, 65])
def test_in_proj_in_bf16(rows: int) -> None:
    # x * gain is rounded once where the nodes round twice before the product: each within half a unit of bf16
    LaunchScene((5,), program="context", context_rows=rows, dtype=torch.bfloat16).check_region("in_proj")
