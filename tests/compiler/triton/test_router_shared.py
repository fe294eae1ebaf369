"""router_shared through its launch: the norm, an exact choice whatever ties, and the shared expert's products."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.launches import LaunchScene

pytestmark = pytest.mark.interpreted

SIXTEEN = tuple(range(2, 18))
BIAS = "mlp.gate.e_score_correction_bias"
ROUTER = "mlp.gate.weight"


def check(scene: LaunchScene, tensors: dict[str, Tensor] | None = None) -> Tensor:
    """Hold the launch to its reference; return the ids."""
    return scene.check_region("router_shared", tensors=tensors)["router_ids'"]


def with_logits(scene: LaunchScene, logits: list[list[float]]) -> dict[str, Tensor]:
    """What the region reads, changed so that row r has these logits: its input is a unit vector of its own."""
    tensors = scene.region_tensors("router_shared")
    x, router = torch.zeros_like(tensors["x1"]), torch.zeros_like(tensors[ROUTER])
    tensors["post_attention_layernorm"] = torch.ones_like(tensors["post_attention_layernorm"])
    for row, wanted in enumerate(logits):
        x[row, row] = 1.0
        normed = (x.shape[1] ** -1 + 1e-5) ** -0.5
        router[:, row] = torch.tensor(wanted) / normed
    return tensors | {"x1": x, ROUTER: router, BIAS: torch.zeros_like(tensors[BIAS])}


@pytest.mark.parametrize("positions", [(3,), (18, 3, 41), SIXTEEN], ids=len)
def test_router_and_shared_expert_are_their_reference(positions: tuple[int, ...]) -> None:
    check(LaunchScene(positions, padding=0))


@pytest.mark.parametrize(
    "changes",
    [
        {"n_shared_experts": 3, "moe_intermediate_size": 7},
        {"hidden_size": 131, "n_routed_experts": 21, "num_experts_per_tok": 5},
        {"n_routed_experts": 1, "num_experts_per_tok": 1},
        {"num_experts_per_tok": 6},
        {"norm_topk_prob": False, "routed_scaling_factor": 1.0},
    ],
    ids=str,
)
def test_router_of_odd_sizes(changes: dict[str, Any]) -> None:
    check(LaunchScene((18, 3, 41, 5, 6), **changes))


@pytest.mark.parametrize("groups", [(2, 1), (3, 2), (5, 3), (5, 5)], ids=str)
def test_only_the_best_groups_take_part(groups: tuple[int, int]) -> None:
    n_group, topk_group = groups
    check(LaunchScene(SIXTEEN[:5], n_routed_experts=30, num_experts_per_tok=4, n_group=n_group, topk_group=topk_group))


def test_lowest_index_wins_among_equal_experts() -> None:
    scene = LaunchScene((18, 3, 41), padding=0, n_routed_experts=7, num_experts_per_tok=3)
    equal = [[0.0] * 7, [1.0, 2.0, 1.0, 2.0, 1.0, 1.0, 2.0], [-3.0, -3.0, -1.0, -3.0, -3.0, -3.0, -3.0]]
    ids = check(scene, with_logits(scene, equal))
    assert ids.tolist() == [[0, 1, 2], [1, 3, 6], [0, 1, 2]]


def test_saturated_scores_are_equal_however_large_the_logits() -> None:
    scene = LaunchScene((18, 3), padding=0, n_routed_experts=5, num_experts_per_tok=2)
    saturated = [[50.0, 900.0, 1e6, 40.0, 60.0], [-1e6, -500.0, -1e30, -200.0, -150.0]]
    assert check(scene, with_logits(scene, saturated)).tolist() == [[0, 1], [0, 1]]


def test_lowest_index_wins_among_equal_groups() -> None:
    sizes: dict[str, Any] = {"n_routed_experts": 9, "num_experts_per_tok": 2, "n_group": 3, "topk_group": 1}
    scene = LaunchScene((18, 3, 41), padding=0, **sizes)
    # a group scores by its two best: 2 + 0 and 1 + 1 differ by sigmoid, the best expert of all may lose
    logits = [
        [0.0] * 9,
        [9.0, -9.0, -9.0, 2.0, 2.0, -9.0, 2.0, 2.0, 2.0],
        [-9.0, 1.0, 1.0, 1.0, -9.0, 1.0, 1.0, 1.0, -9.0],
    ]
    assert check(scene, with_logits(scene, logits)).tolist() == [[0, 1], [3, 4], [1, 2]]


def test_bias_chooses_and_does_not_weigh() -> None:
    scene = LaunchScene((18, 3), padding=0)
    tensors = scene.region_tensors("router_shared")
    tensors[BIAS] = torch.tensor([0.0, 0.0, 0.0, 5.0, 0.0, 2.0])
    assert check(scene, tensors).tolist() == [[3, 5]] * 2
    tensors[BIAS] = torch.tensor([-4.0, -7.0, -3.0, -9.0, -8.0, -torch.inf])
    assert check(scene, tensors).tolist() == [[0, 2]] * 2


def test_near_ties_are_told_apart_in_float32() -> None:
    # 1 + 2**-20 is 1 in bf16 and in tf32
    scene = LaunchScene((18,), padding=0, n_routed_experts=6, num_experts_per_tok=1)
    near = 0.25
    tensors = with_logits(scene, [[near, near, near, near * (1 + 2**-20), near, near]])
    assert check(scene, tensors).tolist() == [[3]]


@pytest.mark.parametrize("changes", [{}, {"n_group": 3, "topk_group": 1}], ids=str)
def test_nan_in_padding_rows_reaches_no_live_row(changes: dict[str, Any]) -> None:
    scene = LaunchScene((18, 3), padding=3, **changes)
    tensors = scene.region_tensors("router_shared")
    tensors["x1"][2:] = torch.nan
    check(scene, tensors)


def test_large_values_are_clamped() -> None:
    scene = LaunchScene((18, 3, 41), swiglu_limit=7.0)
    tensors = scene.region_tensors("router_shared")
    tensors["x1"] = tensors["x1"] * 1e4
    weight = next(name for name in tensors if "gate_proj" in name)
    tensors[weight] = tensors[weight] * 300
    check(scene, tensors)


def test_in_bf16_the_router_reads_the_rounded_norm() -> None:
    # logits of experts that differ by less than rounding the norm moves them would choose otherwise
    scene = LaunchScene((18, 3, 41), dtype=torch.bfloat16, n_routed_experts=24, num_experts_per_tok=4)
    check(scene)
