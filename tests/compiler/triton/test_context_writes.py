"""context_writes through its launches: latents, pooled keys and the ring, of runs of any length at any position."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from compiler.triton.emission import LaunchPlan, emit
from compiler.triton.program import run_launch
from tests.support.launches import GuardedMemory, LaunchScene, _alone

pytestmark = pytest.mark.interpreted

RULE = "context_writes"


def scene_of(positions: tuple[int, ...], rows: int, *, padding: int = 2, **config: object) -> LaunchScene:
    return LaunchScene(positions, program="context", context_rows=rows, padding=padding, **config)  # type: ignore[arg-type]


def cut(tensors: dict[str, Tensor], lengths: tuple[int, ...]) -> dict[str, Tensor]:
    """Keep the first `lengths` rows of each run; what is left over becomes padding, whose rows hold NaN."""
    runs = [torch.nonzero(tensors["sequence"] == s).flatten() for s in tensors["sequence"].unique() if s]
    runs.sort(key=lambda rows: int(rows[0]))
    kept = torch.cat([rows[:length] for rows, length in zip(runs, lengths, strict=True)])
    changed = dict(tensors)
    for name in ("kv_a", "idx_k_raw", "idx_gate", "position", "sequence", "block_table"):
        of_padding = torch.nan if tensors[name].is_floating_point() else 0
        changed[name] = torch.full_like(tensors[name], of_padding)
        changed[name][: len(kept)] = tensors[name][kept]
    return changed


def emitted(scene: LaunchScene) -> tuple[list[str], dict[str, Tensor], GuardedMemory, LaunchPlan]:
    """The names of the region's launches, what it reads, the memory that holds it, and the plan."""
    tensors = scene.region_tensors(RULE)
    plan = emit(_alone(scene.region(RULE))[0], name=RULE)
    memory = GuardedMemory(plan)
    for declared in (plan.inputs, plan.weights, plan.states):
        memory.lend(tensors, declared)
    return [launch.name for launch in plan.launches], tensors, memory, plan


def same(left: Tensor, right: Tensor) -> bool:
    """Equal, NaN where the other is."""
    return torch.equal(left.nan_to_num(7.0), right.nan_to_num(7.0))


@pytest.mark.parametrize(
    ("kpool", "positions"),
    [(1, (5, 18)), (4, (4, 17, 34, 7)), (16, tuple(range(16, 32)))],
    ids=["pool of 1", "pool of 4", "pool of 16"],
)
@pytest.mark.parametrize("rows", [1, 6])
def test_rows_from_every_place_of_a_pool(kpool: int, positions: tuple[int, ...], rows: int) -> None:
    """Their pools take rows from the ring, from the run, or from both."""
    assert {position % kpool for position in positions} == set(range(kpool))
    topk = {"index_topk": 2 * kpool}
    got = scene_of(positions, rows, index_kpool=kpool, **topk).check_region(RULE)
    assert set(got) == {"latent_cache'", "index_keys'", "tail'"}


@pytest.mark.filterwarnings("ignore:All-NaN slice")
@pytest.mark.parametrize("kpool", [1, 4, 16])
@pytest.mark.parametrize("lengths", [(1, 27, 7), (27, 1, 26), (13, 14, 15)], ids=str)
def test_runs_of_unlike_lengths_overtake_the_ring(kpool: int, lengths: tuple[int, ...]) -> None:
    """Rings are 5, 8 and 20 rows deep: of rows that share a place the newest stays."""
    scene = scene_of((3, 18, 40), 27, padding=0, index_kpool=kpool, index_topk=2 * kpool)
    assert scene.states["tail"].shape[1] == kpool + 4
    scene.check_region(RULE, tensors=cut(scene.region_tensors(RULE), lengths))


@pytest.mark.parametrize("rows", [8, 9], ids=["as deep as the ring", "one row more"])
def test_a_run_around_the_ring_replaces_all_of_it(rows: int) -> None:
    scene = scene_of((13,), rows)
    tensors = scene.region_tensors(RULE)
    got = scene.check_region(RULE, tensors=tensors)
    live = got["tail'"][scene.rows.sequence[0]]
    kept = torch.arange(rows - 8, rows)
    assert torch.equal(live[(13 + kept) % 8, 1], tensors["idx_gate"][kept])


def test_rows_that_a_newer_one_overtakes_do_not_write_the_ring() -> None:
    """Programs of one launch run in any order, so the last to run must not be who decides."""
    scene = scene_of((13,), 11, padding=0)
    _, tensors, memory, plan = emitted(scene)
    run_launch(replace(plan.launches[1], grid=(3,)), memory)
    assert same(memory.tensor(plan.states["tail"]), tensors["tail"])
    run_launch(replace(plan.launches[1], grid=(4,)), memory)
    assert not same(memory.tensor(plan.states["tail"]), tensors["tail"])


def test_first_rows_of_a_sequence_need_nothing_of_the_ring() -> None:
    """Whatever a sequence before left in it: here NaN, for every one."""
    scene = scene_of((1, 2), 7)
    tensors = scene.region_tensors(RULE)
    tensors["position"] = torch.where(tensors["sequence"] > 0, torch.arange(16) % 7, 0)
    tensors["tail"].fill_(torch.nan)
    got = scene.check_region(RULE, tensors=tensors)
    slot = tensors["block_table"][0, 0]
    assert got["index_keys'"][slot, 0].isfinite().all()


def test_the_first_launch_reads_the_ring_and_leaves_it() -> None:
    """Programs of one launch run in any order, so none may write what another reads."""
    names, tensors, memory, plan = emitted(scene_of((6, 18), 9))
    assert names == ["context_writes", "context_tail"]
    run_launch(plan.launches[0], memory)
    assert same(memory.tensor(plan.states["tail"]), tensors["tail"])
    assert not same(memory.tensor(plan.states["latent_cache"])[1:], tensors["latent_cache"][1:])


def test_wide_odd_sizes_a_constant_key_and_gates_that_decide_alone() -> None:
    scene = scene_of((18, 3, 41), 9, kv_lora_rank=67, index_head_dim=33, index_kpool=3, index_topk=9)
    tensors = scene.region_tensors(RULE)
    tensors["idx_k_raw"][:4] = 2.5
    tensors["idx_gate"][4:8] *= 1e4
    tensors["idx_gate"][8:12] = 3e38
    tensors["kv_a"][:5] *= 1e6
    tensors["kv_a"][5] = 0
    scene.check_region(RULE, tensors=tensors)


@pytest.mark.parametrize("kpool", [4, 16])
def test_bf16_keys_are_rounded_where_the_nodes_round(kpool: int) -> None:
    """Sums of float32 in another order leave all but a few bytes alike; a rounding left out changes one in three."""
    scene = scene_of(
        (18, 3, 41), 20, dtype=torch.bfloat16, index_kpool=kpool, index_topk=2 * kpool, index_head_dim=61
    )  # fmt: skip
    tensors = scene.region_tensors(RULE)
    got = scene.check_region(RULE, tensors=tensors)
    node = scene.region(RULE).node
    expected = node.reference(*(tensors[port].clone() for port in node.ports))
    for name, wanted in zip(("latent_cache'", "tail'", "index_keys'"), expected, strict=True):
        before = tensors[name.rstrip("'")]
        # rows that the run wrote, and NaN only where both hold it
        changed = ((wanted != before) & ~(wanted.isnan() & before.isnan()))[1:]
        alike = (got[name][1:] == wanted[1:])[changed].float().mean()
        assert alike > 0.99, f"{name}: {alike:.3f} of {int(changed.sum())} bytes alike"
