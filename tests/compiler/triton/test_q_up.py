"""q_up through its launch: both queries of any number of rows, and all that a drafted row writes into the caches."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.support.head_scene import DECISIONS
from tests.support.launches import LaunchScene

pytestmark = pytest.mark.interpreted

RULE = "q_up"
RESULTS = ("latent_cache'", "index_keys'", "tail'", "q_heads'", "idx_q_heads'", "next_position'")


@pytest.mark.parametrize(
    ("kpool", "positions"),
    [
        (1, (0, 18, 41)),
        (4, (3,)),
        (4, (16, 1, 2, 35)),
        (4, tuple(range(5, 21))),
        (16, (15,)),
        (16, tuple(range(32, 48))),
    ],
    ids=lambda value: f"pool of {value}" if isinstance(value, int) else f"{len(value)} rows",
)
@pytest.mark.parametrize("padding", [0, 2])
def test_rows_at_every_place_of_a_pool(kpool: int, positions: tuple[int, ...], padding: int) -> None:
    scene = LaunchScene(positions, padding=padding, index_kpool=kpool, index_topk=2 * kpool)
    assert set(scene.check_region(RULE)) == set(RESULTS)


@pytest.mark.parametrize("decisions", DECISIONS.values(), ids=list(DECISIONS))
@pytest.mark.parametrize("draft", [1, 2, 3])
def test_each_draft_of_a_chain(decisions: dict[str, str], draft: int) -> None:
    """Its query of the indexer is absent where a selection is shared, and its next position after the last draft."""
    scene = LaunchScene((18, 7, 41), program="chain", decisions=decisions)
    got = set(scene.check_region(RULE, draft=draft))
    assert any("next_position" in name for name in got) == (draft < 3)
    assert any("idx_q_heads" in name for name in got) == (draft == 1 or "index_share" not in decisions)


@pytest.mark.parametrize("rows", [1, 9], ids=["few rows", "many rows"])
def test_padding_reaches_no_live_row(rows: int) -> None:
    scene = LaunchScene(tuple(range(11, 11 + rows)), padding=3)
    tensors = scene.region_tensors(RULE)
    for name in ("q_a", "kv_a", "idx_k_raw", "idx_gate"):
        tensors[name][rows:] = torch.nan
    for name in ("latent_cache", "index_keys", "tail"):
        tensors[name][0] = torch.nan
    scene.check_region(RULE, tensors=tensors)


@pytest.mark.parametrize("kpool", [3, 4])
def test_only_the_rows_of_the_pool_are_read_from_the_ring(kpool: int) -> None:
    """A ring is deeper than a pool: the places between hold rows of older pools, and rejected ones."""
    scene = LaunchScene((kpool * 5 - 1, kpool * 9 - 1), index_kpool=kpool, index_topk=2 * kpool)
    tensors = scene.region_tensors(RULE)
    depth = tensors["tail"].shape[1]
    for position, sequence in zip(tensors["position"].tolist(), tensors["sequence"].tolist(), strict=True):
        of_pool = [(position - back) % depth for back in range(1, kpool)]
        others = [place for place in range(depth) if place not in of_pool]
        tensors["tail"][sequence, others] = torch.nan
    got = scene.check_region(RULE, tensors=tensors)
    block_size = tensors["latent_cache"].shape[1]
    block = tensors["block_table"][0, (kpool * 5 - 1) // block_size]
    assert got["index_keys'"][block].isfinite().any()


def test_wide_odd_sizes_large_and_empty_rows() -> None:
    """Sums past one tile, saturated gates, a key without variance, a row of zeros."""
    sizes: dict[str, Any] = {"q_lora_rank": 275, "kv_lora_rank": 67, "index_head_dim": 33, "num_attention_heads": 5}
    scene = LaunchScene((19, 3, 43, 11), num_key_value_heads=5, **sizes)
    tensors = scene.region_tensors(RULE)
    tensors["q_a"][0] *= 1e6
    tensors["q_a"][1] = 0
    tensors["kv_a"][1] *= 1e6
    tensors["kv_a"][2] = 0
    tensors["idx_k_raw"][0] = -2.5
    tensors["idx_gate"][1] *= 1e4
    tensors["idx_gate"][2] = 3e38
    scene.check_region(RULE, tensors=tensors)


@pytest.mark.parametrize("rows", [5, 13, 33])
def test_many_rows_over_odd_sizes(rows: int) -> None:
    """Up to one tile of rows and beyond it."""
    scene = LaunchScene(tuple(range(3, 3 + rows)), q_lora_rank=275, kv_lora_rank=67, index_head_dim=33)
    scene.check_region(RULE)


@pytest.mark.parametrize("kpool", [4, 16])
def test_bf16_caches_are_rounded_where_the_nodes_round(kpool: int) -> None:
    """Sums of float32 in another order leave all but a few bytes alike; a rounding left out changes one in three.

    The queries are sums of products whose norm is rounded once less, so they stay within a unit of the largest.
    """
    positions = tuple(kpool * number - 1 for number in range(1, 6))
    scene = LaunchScene(
        positions, dtype=torch.bfloat16, index_kpool=kpool, index_topk=2 * kpool, index_head_dim=61
    )  # fmt: skip
    tensors = scene.region_tensors(RULE)
    got = scene.check_region(RULE, tensors=tensors)
    node = scene.region(RULE).node
    expected = node.reference(*(tensors[port].clone() for port in node.ports))
    for name, wanted in zip(("latent_cache'", "tail'", "index_keys'"), expected, strict=False):
        before = tensors[name.rstrip("'")]
        changed = ((wanted != before) & ~(wanted.isnan() & before.isnan()))[1:]
        alike = (got[name][1:] == wanted[1:])[changed].float().mean()
        assert alike > 0.99, f"{name}: {alike:.3f} of {int(changed.sum())} bytes alike"
