"""Every region's launches on a GPU, in guarded and poisoned memory, against its reference on the CPU: float32 and bf16.

The bounds are those of tests/support/launches.py: the rule's tag in float32, one unit of bf16 of the largest value.
"""

from __future__ import annotations

import pytest
import torch

from tests.support.launches import LaunchScene

pytestmark = pytest.mark.gpu

REGIONS = (
    "entry",
    "in_proj",
    "q_up",
    "absorb_index",
    "sparse_mla",
    "o_proj",
    "router_shared",
    "experts",
    "lm_head",
)
CONTEXT_REGIONS = ("entry", "in_proj", "context_writes")
SIXTEEN = tuple(range(2, 18))
DTYPES = [torch.float32, torch.bfloat16]
POOLS = [{"index_kpool": 1, "index_topk": 3}, {}, {"index_kpool": 16, "index_topk": 32}]

each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=["f32", "bf16"])
each_pool = pytest.mark.parametrize("sizes", POOLS, ids=["kpool 1", "kpool 4", "kpool 16"])


@each_dtype
@each_pool
@pytest.mark.parametrize("positions", [(5,), (18, 3, 41), SIXTEEN], ids=len)
@pytest.mark.parametrize("region", REGIONS)
def test_region_of_a_first_draft(
    region: str, positions: tuple[int, ...], sizes: dict[str, int], dtype: torch.dtype
) -> None:
    LaunchScene(positions, dtype=dtype, **sizes).check_region(region)


@each_dtype
@pytest.mark.parametrize("share", ["off", "pools_and_new_rows", "exact_set"])
@pytest.mark.parametrize("region", REGIONS)
def test_region_of_a_later_draft(region: str, share: str, dtype: torch.dtype) -> None:
    scene = LaunchScene((18, 3, 41), program="chain", num_drafts=2, decisions={"index_share": share}, dtype=dtype)
    scene.check_region(region, draft=2)


@each_dtype
@each_pool
@pytest.mark.parametrize("region", CONTEXT_REGIONS)
def test_region_of_context_rows(region: str, sizes: dict[str, int], dtype: torch.dtype) -> None:
    LaunchScene((18, 3, 41), program="context", context_rows=20, dtype=dtype, **sizes).check_region(region)


@each_dtype
def test_head_with_a_mask_and_confidences(dtype: torch.dtype) -> None:
    LaunchScene((18, 3, 41), has_grammar=True, has_confidence=True, dtype=dtype).check_region("lm_head")


@pytest.mark.parametrize("program", ["step", "chain", "context"])
def test_whole_program_in_float32(program: str) -> None:
    """Results of every launch feed the next ones; ids are equal, caches within the bound of a chain."""
    scene = LaunchScene((18, 3, 41), program=program)  # type: ignore[arg-type]
    outputs, states = scene.run_program()
    circuit = scene.compiled.circuit
    for name, value in circuit.outputs.items():
        if not value.type.dtype.is_floating_point:  # type: ignore[union-attr]
            assert torch.equal(outputs[name][: scene.num_live], scene.edges[value][: scene.num_live]), name
    for name, value in circuit.state_outputs.items():
        torch.testing.assert_close(states[name][1:], scene.edges[value][1:], atol=1e-5, rtol=1e-5, equal_nan=True)
