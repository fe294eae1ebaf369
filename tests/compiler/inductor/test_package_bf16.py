"""bf16 programs against truth in float64: no farther from it than the eager head is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from compiler.inductor import PackagedProgram, bf16_products, build_driver, build_package
from drafts.batch import RowBatch
from drafts.binding import DraftBinding, bind_head
from drafts.cache import DrafterCache, default_block_size
from drafts.compile_drafter import compile_drafter
from drafts.config import DraftConfig, read_config
from drafts.decisions import Decisions
from drafts.eager_glm5_next import EagerGlm5NextHead
from drafts.proposer import DraftProposer
from drafts.runner import row_inputs, state_tensors
from drafts.weights import head_weight_specs, load_weights
from tests.support.artifacts import GOLDEN_VECTORS
from tests.support.shared_build import shared_build

pytestmark = pytest.mark.slow

DEMO = Path(__file__).parents[3] / "examples" / "demo_model" / "model"
DECISIONS = Decisions(supplied_hidden="post_norm")
NUM_ROWS, NUM_RUNS = 128, 200
# rows of context per checkpoint: some runs drop pools, some do not
CHECKPOINTS = {"golden": GOLDEN_VECTORS / "ckpt_a_bf16", "demo": DEMO}


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_step_is_no_farther_from_truth_than_eager(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Each run takes random cache rows and a random hidden, the same for all three; medians over the runs."""
    checkpoint = CHECKPOINTS[name]
    if not (checkpoint / "config.json").is_file():
        pytest.skip(f"{checkpoint}: the demo's checkpoint is not there")
    config = read_config(checkpoint, dtype=torch.bfloat16)
    weights = load_weights(checkpoint, head_weight_specs(config))
    binding = bind_head(config, weights, DECISIONS, block_size=default_block_size(config.index_kpool), max_num_drafts=4)
    program = _program(binding, tmp_path_factory, name)
    eager = EagerGlm5NextHead(config, weights, DECISIONS)
    wide_config = config.model_copy(update={"dtype": torch.float64})
    wide = {spec.name: weights[spec.name].to(spec.dtype) for spec in head_weight_specs(wide_config)}
    truth = EagerGlm5NextHead(wide_config, wide, DECISIONS)
    ours, theirs, equal = [], [], 0
    for seed in range(NUM_RUNS):
        cache, rows = _random_run(config, seed)
        states = {key: tensor.clone() for key, tensor in state_tensors(cache).items()}
        outputs = program.run(inputs=row_inputs(rows), states=states, weights=weights)
        eager_step = _eager(eager, rows, cache, torch.bfloat16)
        exact = _eager(truth, rows, cache, torch.float64)
        ours.append(_distance(outputs["hidden"][0], exact[1]))
        theirs.append(_distance(eager_step[1], exact[1]))
        equal += int(outputs["token"]) == int(eager_step[0])
    medians = [float(torch.tensor(errors).median()) for errors in (ours, theirs)]
    assert medians[0] <= 1.1 * medians[1], medians
    assert equal >= 0.98 * NUM_RUNS


@pytest.mark.parametrize("native_products", [True, False])
def test_rows_of_a_chain_have_the_bits_that_each_has_alone(native_products: bool, tmp_path: Path) -> None:
    """Both ways to multiply bf16, where this machine has both; native code stands in the packages that were let."""
    checkpoint = CHECKPOINTS["golden"]
    manifest = compile_drafter(
        DraftProposer.from_checkpoint(checkpoint, dtype=torch.bfloat16, decisions=DECISIONS, max_seq_len=1),
        checkpoint,
        tmp_path / "artifact",
        num_drafts=2,
        batches=(1, 3),
        contexts=(16,),
        context_rows=(),
        native_products=native_products,
    )
    assert [program.num_rows for program in manifest.programs if program.is_row_exact] == [1, 3]
    assert manifest.native_products == native_products
    for program in manifest.programs:
        has_native = b"draft_bf16_products" in (tmp_path / "artifact" / program.file).read_bytes()
        assert has_native == (native_products and bf16_products.are_available())


def _program(binding: DraftBinding, tmp_path_factory: pytest.TempPathFactory, name: str) -> PackagedProgram:
    circuit = binding.step(is_first=True)
    size = binding.state_layout.block_size
    dims = {"n": 1, "max_blocks": NUM_ROWS // size, **binding.dims}

    def build(path: Path) -> None:
        partial = path.with_name(f"{path.name}.partial")
        partial.mkdir()
        build_package(circuit, {**dims, "num_blocks": 7, "num_sequences": 3}, partial / "step.so", num_threads=1)
        build_driver(partial)
        partial.rename(path)

    return PackagedProgram(circuit, dims, shared_build(tmp_path_factory, f"step_{name}", build) / "step.so")


def _random_run(config: DraftConfig, seed: int) -> tuple[DrafterCache, RowBatch]:
    generator = torch.Generator().manual_seed(seed)
    cache = DrafterCache.for_rows(config, NUM_ROWS, max_num_drafts=4)
    sequence = cache.allocate(rows=NUM_ROWS)
    for tensor in state_tensors(cache).values():
        tensor.copy_(torch.randn(tensor.shape, generator=generator))
    num_rows = int(torch.randint(NUM_ROWS - 1, (1,), generator=generator))
    rows = RowBatch(
        token=torch.randint(config.vocab_size, (1,), generator=generator),
        hidden=torch.randn(1, config.hidden_size, generator=generator).to(config.dtype),
        position=torch.tensor([num_rows]),
        sequence=torch.tensor([sequence.slot]),
        block_table=cache.block_table([sequence]),
    )
    return cache, rows


def _eager(head: EagerGlm5NextHead, rows: RowBatch, cache: DrafterCache, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    step = head.step(
        rows.token,
        rows.hidden.to(dtype),
        rows.position,
        rows.sequence,
        rows.block_table,
        *(tensor.to(dtype, copy=True) for tensor in state_tensors(cache).values()),
        recycled=False,
    )
    return step.token, step.hidden_out


def _distance(ours: Tensor, exact: Tensor) -> float:
    return float((ours.double() - exact).norm() / exact.norm())
