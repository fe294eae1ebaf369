"""sparse_mla through its two launches: any selection, whatever lies in the rows that it left out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.head_scene import DECISIONS
from tests.support.launches import LaunchScene

pytestmark = pytest.mark.interpreted

# six tiles of a selection, which four splits of three rows share out unevenly; sizes that are no multiple of any tile
WIDE: dict[str, Any] = {
    "index_topk": 160,
    "max_seq_len": 224,
    "num_attention_heads": 19,
    "num_key_value_heads": 19,
    "kv_lora_rank": 37,
    "v_head_dim": 35,
}


def wide_scene(**changes: Any) -> tuple[LaunchScene, dict[str, Tensor]]:
    scene = LaunchScene((200, 3, 77), padding=0, **WIDE, **changes)
    return scene, scene.region_tensors("sparse_mla")


@pytest.mark.parametrize("positions", [(3,), (18, 3, 41), tuple(range(2, 18))], ids=len)
def test_sparse_mla_is_its_reference(positions: tuple[int, ...]) -> None:
    LaunchScene(positions, padding=0 if len(positions) == 16 else 1).check_region("sparse_mla")


@pytest.mark.parametrize("changes", [{"index_kpool": 1}, {"index_kpool": 16, "index_topk": 32}], ids=str)
def test_sparse_mla_of_other_pools(changes: dict[str, Any]) -> None:
    LaunchScene((33, 16, 47), **changes).check_region("sparse_mla")


@pytest.mark.parametrize("decisions", DECISIONS.values(), ids=list(DECISIONS))
def test_sparse_mla_of_a_later_draft(decisions: dict[str, str]) -> None:
    LaunchScene((18, 3), program="chain", decisions=decisions, num_drafts=2).check_region("sparse_mla", draft=2)


def test_sparse_mla_takes_slots_without_a_token_anywhere() -> None:
    scene, tensors = wide_scene()
    selected = tensors["selected"]
    order = torch.randperm(selected.shape[1], generator=torch.Generator().manual_seed(1))
    assert (selected == -1).any(dim=1).all()
    scene.check_region("sparse_mla", tensors=tensors | {"selected": selected[:, order].contiguous()})


def test_sparse_mla_reads_nothing_that_was_not_selected() -> None:
    scene, tensors = wide_scene()
    cache = tensors["next_latent_cache"]
    is_read = torch.zeros(cache.shape[:2], dtype=torch.bool)
    for selected, table in zip(tensors["selected"], tensors["block_table"], strict=True):
        token = selected[selected >= 0]
        is_read[table[token // 16], token % 16] = True
    assert is_read.any()
    assert not is_read.all()
    cache[~is_read] = torch.nan
    got = scene.check_region("sparse_mla", tensors=tensors)
    assert all(tensor.isfinite().all() for name, tensor in got.items() if "latent" not in name)


def test_sparse_mla_of_empty_and_nearly_empty_selections() -> None:
    scene, tensors = wide_scene()
    selected = torch.full_like(tensors["selected"], -1)
    # one token in the last slot, so that all splits but one are empty; the row between them selects nothing
    selected[0, -1], selected[2, 40] = 199, 5
    got = scene.check_region("sparse_mla", tensors=tensors | {"selected": selected})
    (values,) = (tensor for tensor in got.values() if tensor.shape == (3, 19 * 35))
    assert values[0].abs().sum() > 0
    assert (values[1] == 0).all()


@pytest.mark.parametrize("sign", [1, -1])
def test_sparse_mla_of_scores_that_overflow_or_vanish_without_their_maximum(sign: int) -> None:
    scene, tensors = wide_scene()
    cache, query = tensors["next_latent_cache"], tensors["q_latent"]
    query.copy_(query.abs() * 120 * sign)
    cache.copy_(cache.abs())
    scores = query[0] @ cache[1:4].flatten(0, 1).T * 6**-0.5
    assert scores.abs().min() > 100
    # an exponent of some hundreds, and so its power, is known to some hundreds of units of float32
    scene.check_region("sparse_mla", tensors=tensors, rtol=1e-3)


def test_sparse_mla_keeps_what_padding_meets_to_padding() -> None:
    scene = LaunchScene((18, 41), padding=3)
    tensors = scene.region_tensors("sparse_mla")
    tensors["next_latent_cache"][0] = torch.nan
    tensors["q_latent"][2:] = torch.nan
    scene.check_region("sparse_mla", tensors=tensors)


def test_sparse_mla_in_bf16_stays_within_a_unit() -> None:
    # probabilities are rounded before their sum is known, the node rounds them after
    scene, _ = wide_scene(dtype=torch.bfloat16)
    scene.check_region("sparse_mla")
