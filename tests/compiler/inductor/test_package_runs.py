"""A compiled program of a golden checkpoint: other caches, other weights, and tensors that do not fit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from circuit import BindingError, interpret
from compiler.inductor import PackagedProgram
from drafts.batch import RowBatch
from drafts.cache import DrafterCache
from drafts.compiled_runner import CompiledRunner
from drafts.load_compiled import load_compiled
from drafts.programs import ProgramKey, program_circuit
from drafts.runner import DraftRunner, row_inputs, state_tensors
from tests.support.artifacts import GOLDEN_CONTEXT, golden_artifact

pytestmark = pytest.mark.slow

NUM_DRAFTS = 4
KEY = ProgramKey("chain", NUM_DRAFTS, 1, GOLDEN_CONTEXT)
BOUND = 1e-5  # float32 sums in another order


@pytest.fixture(scope="session")
def runner(tmp_path_factory: pytest.TempPathFactory) -> CompiledRunner:
    return load_compiled(golden_artifact(tmp_path_factory, "ckpt_a", num_drafts=NUM_DRAFTS, context_rows=(4,))).runner


@pytest.fixture
def program(runner: CompiledRunner) -> PackagedProgram:
    found = runner._programs[KEY]
    assert isinstance(found, PackagedProgram)
    return found


def random_run(runner: CompiledRunner, *, seed: int, num_rows: int) -> tuple[DrafterCache, RowBatch]:
    """A cache of random contents, `num_rows` of them valid, and the row that a draft starts from."""
    config = runner.binding.config
    generator = torch.Generator().manual_seed(seed)
    # extents that no program was traced with
    cache = DrafterCache.for_rows(config, GOLDEN_CONTEXT, num_sequences=2 + seed % 3)
    cache.allocate(rows=16)
    sequence = cache.allocate(rows=GOLDEN_CONTEXT)
    for tensor in state_tensors(cache).values():
        tensor.copy_(torch.randn(tensor.shape, generator=generator))
    cache.commit(sequence, num_rows)
    rows = RowBatch(
        token=torch.randint(config.vocab_size, (1,), generator=generator),
        hidden=torch.randn(1, config.hidden_size, generator=generator),
        position=torch.tensor([num_rows]),
        sequence=torch.tensor([sequence.slot]),
        block_table=cache.block_table([sequence]),
    )
    return cache, rows


def assert_as_interpreted(
    runner: CompiledRunner, program: PackagedProgram, cache: DrafterCache, rows: RowBatch, weights: dict[str, Tensor]
) -> None:
    """Run both from the same cache: the step over and over, and the chain as it is declared.

    Ids are equal, and every live entry of every state within the bound.
    """
    chain = program_circuit(runner.binding, KEY)
    inputs = row_inputs(rows)
    states = {name: tensor.clone() for name, tensor in state_tensors(cache).items()}
    outputs = program.run(inputs=inputs, states=states, weights=weights, num_steps=NUM_DRAFTS)
    expected = interpret(
        chain,
        inputs={name: inputs[name] for name in chain.inputs},
        weights=weights,
        states=state_tensors(cache),
    )
    for number in range(NUM_DRAFTS):
        assert torch.equal(outputs["token"][number], expected.outputs[f"token.{number + 1}"]), number
    for name, tensor in expected.states.items():
        ours, theirs = states[name][1:], tensor[1:]  # block 0 and sequence 0 are nobody's
        assert (ours.double() - theirs.double()).norm() <= BOUND * theirs.double().norm(), name
        untouched = theirs == state_tensors(cache)[name][1:]
        assert torch.equal(ours[untouched], theirs[untouched]), name


@pytest.mark.parametrize("num_rows", [0, 1, 3, 15, 16, 33, 62, GOLDEN_CONTEXT - NUM_DRAFTS])
def test_program_is_right_on_contents_that_it_was_not_compiled_with(
    runner: CompiledRunner, program: PackagedProgram, num_rows: int
) -> None:
    for seed in range(3):
        cache, rows = random_run(runner, seed=seed, num_rows=num_rows)
        assert_as_interpreted(runner, program, cache, rows, dict(runner.binding.weights))


def test_weights_copied_into_are_seen(runner: CompiledRunner, program: PackagedProgram) -> None:
    weights = {name: weight.clone() for name, weight in runner.binding.weights.items()}
    cache, rows = random_run(runner, seed=1, num_rows=40)
    before = program.run(inputs=row_inputs(rows), states=_clones(cache), weights=weights)
    weights["lm_head"].copy_(weights["lm_head"].flip(0))
    weights["eh_proj"].mul_(0.5)
    after = program.run(inputs=row_inputs(rows), states=_clones(cache), weights=weights)
    assert int(after["token"][0]) != int(before["token"][0])
    assert_as_interpreted(runner, program, cache, rows, weights)


def test_weights_bound_anew_are_seen(runner: CompiledRunner, program: PackagedProgram) -> None:
    cache, rows = random_run(runner, seed=2, num_rows=40)
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        weights = dict(runner.binding.weights)
        for name in ("lm_head", "embed_tokens", "self_attn.kv_b_proj", "mlp.experts.down_proj"):
            weights[name] = torch.randn(weights[name].shape, generator=generator) * 0.1
        assert_as_interpreted(runner, program, cache, rows, weights)


def _clones(cache: DrafterCache) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in state_tensors(cache).items()}


Tables = dict[str, dict[str, Tensor]]
UNFIT: dict[str, tuple[str, str, Callable[[Tensor], Tensor]]] = {
    "another row": ("inputs", "token", lambda tensor: tensor.repeat(2)),
    "hiddens of two rows": ("inputs", "target_hidden", lambda tensor: tensor.repeat(2, 1)),
    "narrow hidden": ("inputs", "target_hidden", lambda tensor: tensor[:, :-1].contiguous()),
    "double hidden": ("inputs", "target_hidden", lambda tensor: tensor.double()),
    "strided hidden": ("inputs", "target_hidden", lambda tensor: tensor.repeat(1, 2)[:, ::2]),
    "short positions": ("inputs", "position", lambda tensor: tensor.int()),
    "wide table": ("inputs", "block_table", lambda tensor: tensor.repeat(1, 2)),
    "flat table": ("inputs", "block_table", lambda tensor: tensor.flatten()),
    "cache of another dtype": ("states", "latent_cache", lambda tensor: tensor.bfloat16()),
    "cache with other blocks": ("states", "latent_cache", lambda tensor: tensor.repeat(1, 2, 1)),
    "transposed cache": ("states", "latent_cache", lambda tensor: tensor.mT.contiguous().mT),
    "shallow tail": ("states", "tail", lambda tensor: tensor[:, :-1].contiguous()),
    "transposed weight": ("weights", "lm_head", lambda tensor: tensor.T.contiguous().T),
    "half weight": ("weights", "lm_head", lambda tensor: tensor.half()),
    "short weight": ("weights", "embed_tokens", lambda tensor: tensor[:-1]),
    "weight elsewhere": ("weights", "eh_proj", lambda tensor: tensor.to("meta")),
}


@pytest.mark.parametrize("fault", UNFIT)
def test_tensor_that_does_not_fit_raises_before_anything_is_written(
    runner: CompiledRunner, program: PackagedProgram, fault: str
) -> None:
    table, name, change = UNFIT[fault]
    cache, rows = random_run(runner, seed=0, num_rows=30)
    tables: Tables = {"inputs": row_inputs(rows), "states": _clones(cache), "weights": dict(runner.binding.weights)}
    before = {key: tensor.clone() for key, tensor in tables["states"].items()}
    held = tables["states"]
    tables[table] = tables[table] | {name: change(tables[table][name])}
    with pytest.raises(BindingError, match=name):
        program.run(**tables)
    assert all(torch.equal(held[key], before[key]) for key in before)


@pytest.mark.parametrize("table", ["inputs", "states", "weights"])
def test_missing_tensor_raises_by_name(runner: CompiledRunner, program: PackagedProgram, table: str) -> None:
    cache, rows = random_run(runner, seed=0, num_rows=30)
    tables: Tables = {"inputs": row_inputs(rows), "states": _clones(cache), "weights": dict(runner.binding.weights)}
    for name in {"inputs": ["token"], "states": ["tail"], "weights": ["lm_head", "mlp.gate.weight"]}[table]:
        lacking = tables | {table: {key: held for key, held in tables[table].items() if key != name}}
        with pytest.raises(BindingError, match=f"{name}.*missing"):
            program.run(**lacking)


def test_caches_of_unequal_extent_raise(runner: CompiledRunner, program: PackagedProgram) -> None:
    """Both are indexed by one block table, and the shorter would be read beyond its end."""
    cache, rows = random_run(runner, seed=0, num_rows=30)
    states = _clones(cache)
    states["index_keys"] = states["index_keys"][:-1].clone()
    with pytest.raises(BindingError, match="num_blocks"):
        program.run(inputs=row_inputs(rows), states=states, weights=runner.binding.weights)


def test_runner_refuses_rows_beyond_the_cache_before_native_code(runner: CompiledRunner) -> None:
    cache, rows = random_run(runner, seed=0, num_rows=30)
    before = _clones(cache)
    beyond = {
        "position": RowBatch(rows.token, rows.hidden, rows.position + 1000, rows.sequence, rows.block_table),
        "token": RowBatch(rows.token + 100_000, rows.hidden, rows.position, rows.sequence, rows.block_table),
        "sequence": RowBatch(rows.token, rows.hidden, rows.position, rows.sequence + 100, rows.block_table),
        "block_table": RowBatch(rows.token, rows.hidden, rows.position, rows.sequence, rows.block_table + 100),
    }
    for name, batch in beyond.items():
        with pytest.raises(ValueError, match=name):
            runner.draft(batch, cache, num_drafts=1)
    for num_drafts in (0, -1, 17):
        with pytest.raises(ValueError, match="drafts"):
            runner.draft(rows, cache, num_drafts=num_drafts)
    assert all(torch.equal(tensor, before[name]) for name, tensor in state_tensors(cache).items())


def test_context_beyond_the_largest_bucket_runs_interpreted_said_once_and_counted(
    runner: CompiledRunner, caplog: pytest.LogCaptureFixture
) -> None:
    fresh = CompiledRunner(runner.binding, runner._programs, backend="inductor")
    config = runner.binding.config
    generator = torch.Generator().manual_seed(3)
    for _ in range(2):
        cache = DrafterCache.for_rows(config, 200)
        sequence = cache.allocate(rows=200)
        for tensor in state_tensors(cache).values():
            tensor.copy_(torch.randn(tensor.shape, generator=generator))
        rows = RowBatch(
            token=torch.tensor([4]),
            hidden=torch.randn(1, config.hidden_size, generator=generator),
            position=torch.tensor([150]),
            sequence=torch.tensor([sequence.slot]),
            block_table=cache.block_table([sequence]),
        )
        twin = DrafterCache.for_rows(config, 200)
        for ours, theirs in zip(state_tensors(twin).values(), state_tensors(cache).values(), strict=True):
            ours.copy_(theirs)
        expected = DraftRunner(runner.binding).draft(rows, twin, num_drafts=2).ids
        assert torch.equal(fresh.draft(rows, cache, num_drafts=2).ids, expected)
    assert list(fresh.fallbacks.values()) == [2]
    assert "chain of 1 rows" in next(iter(fresh.fallbacks))
    assert len([record for record in caplog.records if "no compiled program" in record.getMessage()]) == 1
