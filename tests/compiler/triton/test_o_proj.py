"""o_proj through its launch: product and residual of any number of rows."""

from __future__ import annotations

import pytest
import torch

from tests.support.launches import LaunchScene

pytestmark = pytest.mark.interpreted


@pytest.mark.parametrize("positions", [(3,), (18, 3, 41), tuple(range(2, 18)), tuple(range(2, 21))], ids=len)
def test_o_proj_is_its_reference(positions: tuple[int, ...]) -> None:
    LaunchScene(positions, padding=0).check_region("o_proj")


def test_o_proj_over_wide_odd_sizes_and_large_values() -> None:
    scene = LaunchScene((18, 3, 41), hidden_size=68, num_attention_heads=5, num_key_value_heads=5, v_head_dim=61)
    tensors = scene.region_tensors("o_proj")
    tensors = {name: tensor * 1e3 if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
    scene.check_region("o_proj", tensors=tensors)


def test_o_proj_in_bf16_rounds_where_the_nodes_do() -> None:
    LaunchScene((18, 3), dtype=torch.bfloat16).check_region("o_proj")
