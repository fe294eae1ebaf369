"""experts through its two launches: ids read on the device, sums in their order, experts nobody chose left alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.launches import LaunchScene

pytestmark = pytest.mark.interpreted

SIXTEEN = tuple(range(2, 18))


def chosen(ids: list[list[int]], *, num_rows: int) -> Tensor:
    """Ids of the live rows, the first row's for what is padding."""
    return torch.tensor([*ids, *ids[:1] * (num_rows - len(ids))])


@pytest.mark.parametrize("positions", [(3,), (18, 3, 41), SIXTEEN], ids=len)
def test_experts_are_their_reference(positions: tuple[int, ...]) -> None:
    LaunchScene(positions, padding=0).check_region("experts")


@pytest.mark.parametrize(
    "changes",
    [
        {"n_shared_experts": 2, "moe_intermediate_size": 11},
        {"hidden_size": 37, "moe_intermediate_size": 70, "n_routed_experts": 7, "num_experts_per_tok": 3},
        {"n_routed_experts": 1, "num_experts_per_tok": 1},
        {"num_experts_per_tok": 6},
    ],
    ids=str,
)
def test_experts_of_odd_sizes(changes: dict[str, Any]) -> None:
    LaunchScene((18, 3), **changes).check_region("experts")


def test_experts_that_no_row_chose_may_hold_nan() -> None:
    scene = LaunchScene((18, 3, 41), n_routed_experts=9)
    tensors = scene.region_tensors("experts")
    tensors["router_ids"] = chosen([[1, 7], [1, 4], [4, 7]], num_rows=4)
    for name in ("mlp.experts.gate_up_proj", "mlp.experts.down_proj"):
        tensors[name][[0, 2, 3, 5, 6, 8]] = torch.nan
    out = scene.check_region("experts", tensors=tensors)
    assert not out["block_out'"].isnan().any()


def test_nan_of_a_chosen_expert_stays_in_the_rows_that_chose_it() -> None:
    scene = LaunchScene((18, 3, 41), padding=0)
    tensors = scene.region_tensors("experts")
    tensors["router_ids"] = chosen([[0, 1], [1, 3], [0, 5]], num_rows=3)
    tensors["mlp.experts.gate_up_proj"][3, 2] = torch.nan
    tensors["mlp.experts.down_proj"][3, 0] = torch.inf
    out = scene.check_region("experts", tensors=tensors)["block_out'"]
    assert out.isnan().any(1).tolist() == [False, True, False]


def test_nan_in_padding_rows_reaches_no_live_row() -> None:
    scene = LaunchScene((18, 3), padding=2)
    tensors = scene.region_tensors("experts")
    for name in ("moe_in", "shared_active", "x1"):
        tensors[name][2:] = torch.nan
    scene.check_region("experts", tensors=tensors)


@pytest.mark.parametrize("absent", [-1, 6, 2**31 + 1], ids=str)
def test_ids_that_are_no_expert_of_this_rank_add_exactly_nothing(absent: int) -> None:
    scene = LaunchScene((18, 3, 41), padding=0)
    tensors = scene.region_tensors("experts")
    held = torch.tensor([[0, 4], [2, 4], [1, 3]])
    tensors["router_weights"][0], tensors["router_weights"][1, 1] = 0.0, 0.0
    tensors["router_ids"] = held
    expected = scene.check_region("experts", tensors=tensors)["block_out'"]
    # the same rows where what weighed nothing lies on another rank, whatever it weighs there
    tensors = tensors | {"router_ids": torch.tensor([[absent, absent], [2, absent], [1, 3]])}
    tensors["router_weights"] = tensors["router_weights"].clone()
    tensors["router_weights"][0], tensors["router_weights"][1, 1] = torch.nan, 3.0
    got = run_alone(scene, tensors)
    assert torch.equal(got, expected)


def run_alone(scene: LaunchScene, tensors: dict[str, Tensor]) -> Tensor:
    """What the launches make of tensors that the reference cannot index with."""
    held = tensors["router_ids"]
    in_range = (held >= 0) & (held < tensors["mlp.experts.down_proj"].shape[0])
    region = scene.region("experts").node
    reference = type(region).reference

    def local_only(self: object, *given: Tensor) -> object:
        named = dict(zip(region.ports, given, strict=True))
        named["router_ids"] = torch.where(in_range, held, 0)
        named["router_weights"] = torch.where(in_range, named["router_weights"], 0.0)
        return reference(region, *(named[port] for port in region.ports))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(region), "reference", local_only)
        return scene.check_region("experts", tensors=tensors)["block_out'"]


def test_experts_of_large_values_are_clamped() -> None:
    scene = LaunchScene((18, 3, 41), swiglu_limit=7.0)
    tensors = scene.region_tensors("experts")
    tensors["mlp.experts.gate_up_proj"] *= 300
    scene.check_region("experts", tensors=tensors)


def test_weighted_sum_runs_in_the_order_of_ids() -> None:
    # y + 2**24 y - 2**24 y is what rounding left of y; in another order it is y itself
    scene = LaunchScene((18,), padding=0, num_experts_per_tok=3, n_routed_experts=5)
    tensors = scene.region_tensors("experts")
    tensors["router_ids"] = torch.tensor([[1, 2, 4]])
    tensors["router_weights"] = torch.tensor([[1.0, 2.0**24, -(2.0**24)]])
    tensors |= {name: torch.zeros_like(tensors[name]) for name in ("x1", "shared_active")}
    tensors["moe_in"] = torch.ones_like(tensors["moe_in"])
    tensors["mlp.experts.gate_up_proj"] = torch.full_like(tensors["mlp.experts.gate_up_proj"], 0.5)
    tensors["mlp.experts.down_proj"] = torch.full_like(tensors["mlp.experts.down_proj"], 0.4)
    scene.check_region("experts", tensors=tensors)


def test_rows_without_an_expert_of_this_rank_keep_residual_and_shared_expert() -> None:
    scene = LaunchScene((18, 3), padding=0)
    tensors = scene.region_tensors("experts")
    tensors["router_ids"] = torch.full((2, 2), -1)
    got = run_alone(scene, tensors)
    shared = tensors["shared_active"] @ tensors["mlp.shared_experts.down_proj"].T
    torch.testing.assert_close(got, tensors["x1"] + shared)


def test_experts_in_bf16_round_where_the_nodes_do() -> None:
    # sums in another order move a product by one unit before its next rounding
    LaunchScene((18, 3, 41), dtype=torch.bfloat16).check_region("experts")
