"""A really compiled artifact of a tiny checkpoint: the console script on it, padded batches, a process of its own."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from compiler.artifact import read_manifest
from drafts.batch import RowBatch
from drafts.cache import CachedSequence, DrafterCache
from drafts.compile_drafter import compile_drafter
from drafts.compiled_runner import CompiledRunner
from drafts.load_compiled import load_compiled
from drafts.proposer import DraftProposer
from drafts.runner import DraftRunner, state_tensors
from tests.drafts.command_line import circuit
from tests.drafts.tiny_checkpoint import write_tiny_checkpoint
from tests.support.shared_build import shared_build

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PROMPT = "def read(path):\n    return "
BOUND = 1e-5  # float32 sums in another order


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a whole `checkpoint`, and the `artifact` compiled of it: chains of two drafts, four rows."""

    def build(folder: Path) -> None:
        partial = folder.with_name("tiny.partial")
        write_tiny_checkpoint(partial / "checkpoint")
        compile_drafter(
            DraftProposer.from_checkpoint(partial / "checkpoint", dtype=torch.float32, max_seq_len=1),
            partial / "checkpoint",
            partial / "artifact",
            num_drafts=2,
            batches=(4,),
            contexts=(64,),
            context_rows=(4,),
        )
        partial.rename(folder)

    return shared_build(tmp_path_factory, "tiny", build)


@pytest.fixture(scope="session")
def runner(home: Path) -> CompiledRunner:
    return load_compiled(home / "artifact", num_sequences=4).runner


def test_run_takes_an_artifact_and_gives_the_eager_text(home: Path) -> None:
    arguments = ("--prompt", PROMPT, "--max-tokens", 9, "--json")
    compiled = circuit("run", home / "artifact", *arguments).record
    assert compiled["path"] == "circuit:inductor"
    assert compiled["artifact"] == str(home / "artifact")
    eager = circuit("run", home / "checkpoint", *arguments, "--drafts", 2, "--eager").record
    for name in ("text", "tokens", "num_rounds", "mean_accepted_length"):
        assert compiled[name] == eager[name]
    for options, path in ((("--eager",), "eager"), (("--backend", "reference"), "circuit:reference")):
        assert circuit("run", home / "artifact", *arguments, *options).record["path"] == path


def test_run_takes_the_checkpoint_that_it_is_given(home: Path) -> None:
    outcome = circuit(
        *("run", home / "artifact", "--checkpoint", home / "checkpoint", "--prompt", "a", "--max-tokens", 3, "--json")
    )
    assert outcome.record["path"] == "circuit:inductor"


def test_parity_of_an_artifact_compares_ids_and_cache(home: Path) -> None:
    outcome = circuit("parity", home / "artifact", "--prompt", PROMPT, "--json")
    assert outcome.code == 0
    record = outcome.record
    assert record["ids_equal"] is True
    assert {edge["name"] for edge in record["edges"]} == {"draft", "next_latent_cache", "next_index_keys", "next_tail"}
    assert record["worst_edge"]["relative_l2"] <= BOUND
    assert "eager against inductor" in circuit("parity", home / "artifact", "--prompt", PROMPT).out


def test_package_is_small(home: Path) -> None:
    manifest = read_manifest(home / "artifact")
    assert all((home / "artifact" / program.file).stat().st_size < 5_000_000 for program in manifest.programs)


def filled_cache(runner: CompiledRunner, lengths: list[int]) -> tuple[DrafterCache, list[CachedSequence]]:
    config = runner.binding.config
    generator = torch.Generator().manual_seed(len(lengths))
    cache = DrafterCache.for_rows(config, 64, num_sequences=len(lengths) + 1)
    cache.allocate(rows=16)
    sequences = [cache.allocate(rows=64) for _ in lengths]
    for tensor in state_tensors(cache).values():
        tensor.copy_(torch.randn(tensor.shape, generator=generator))
        # nobody owns block 0 and sequence 0, and what they hold must never matter
        tensor[0] = math.nan
    for sequence, length in zip(sequences, lengths, strict=True):
        cache.commit(sequence, length)
    return cache, sequences


def rows_of(runner: CompiledRunner, cache: DrafterCache, sequences: list[CachedSequence]) -> RowBatch:
    config = runner.binding.config
    generator = torch.Generator().manual_seed(9)
    count = len(sequences)
    return RowBatch(
        token=torch.randint(config.vocab_size, (count,), generator=generator),
        hidden=torch.randn(count, config.hidden_size, generator=generator),
        position=torch.tensor([sequence.rows for sequence in sequences]),
        sequence=torch.tensor([sequence.slot for sequence in sequences]),
        block_table=cache.block_table(sequences),
    )


def owned(cache: DrafterCache) -> dict[str, Tensor]:
    return {name: tensor[1:].clone() for name, tensor in state_tensors(cache).items()}


@pytest.mark.parametrize("num_drafts", [1, 2])
@pytest.mark.parametrize("lengths", [[5], [0, 17], [30, 3, 61], [7, 8, 33, 62]], ids=str)
def test_padding_rows_disturb_nothing(runner: CompiledRunner, lengths: list[int], num_drafts: int) -> None:
    """One to four rows in a bucket of four, beside NaN in the null block: as each alone, interpreted."""
    cache, sequences = filled_cache(runner, lengths)
    rows = rows_of(runner, cache, sequences)
    twin, twins = filled_cache(runner, lengths)
    fallbacks = runner.fallbacks.copy()
    ids = runner.draft(rows, cache, num_drafts=num_drafts).ids
    assert runner.fallbacks == fallbacks
    for row in range(len(lengths)):
        alone = RowBatch(*(getattr(rows, name)[row : row + 1] for name in RowBatch.__slots__))
        expected = DraftRunner(runner.binding).draft(alone, twin, num_drafts=num_drafts).ids
        assert torch.equal(ids[row : row + 1], expected)
    for sequence, length in zip([*sequences, *twins], lengths * 2, strict=True):
        (cache if sequence in sequences else twin).commit(sequence, length + num_drafts)
    for ours, theirs in zip(sequences, twins, strict=True):
        for part, other in zip(live_rows(cache, ours), live_rows(twin, theirs), strict=True):
            assert not part.isnan().any()
            assert (part.double() - other.double()).norm() <= BOUND * other.double().norm()


def test_batch_through_a_program_for_several_rows_is_each_propose_alone(home: Path) -> None:
    """Five sequences of mixed lengths and one of NaN, in parts of four; ids and every live byte as proposed alone."""
    manifest = read_manifest(home / "artifact")
    assert [program.is_row_exact for program in manifest.programs if program.kind == "chain"] == [True]
    lengths = [0, 1, 15, 33, 17]

    def drafted(together: bool) -> tuple[list[list[int] | None], list[list[Tensor]]]:
        drafter = load_compiled(home / "artifact", num_sequences=len(lengths))
        proposer = drafter.proposer
        assert drafter.runner.is_batch_invariant
        generator = torch.Generator().manual_seed(4)
        hiddens = torch.randn(len(lengths), 40, proposer.config.hidden_size, generator=generator)
        tokens = torch.randint(proposer.config.vocab_size, (len(lengths), 40), generator=generator)
        hiddens[2] = math.nan
        states = [proposer.alloc_state() for _ in lengths]
        for row, length in enumerate(lengths):
            proposer.prefill_drafter(tokens[row, : length + 1], hiddens[row, : length + 1], states[row])
        newest = [hiddens[row, length] for row, length in enumerate(lengths)]
        if together:
            ids = proposer.propose_batch([7] * len(lengths), torch.stack(newest), lengths, 2, states)
        else:
            ids = [proposer.propose(7, newest[row], lengths[row], 2, states[row]) for row in range(len(lengths))]
        assert not drafter.runner.fallbacks
        return ids, [live_rows(proposer.cache, state.sequence) for state in states]

    (ids, held), (alone, apart) = drafted(together=True), drafted(together=False)
    assert ids == alone
    for ours, theirs in zip(held, apart, strict=True):
        for part, other in zip(ours, theirs, strict=True):
            assert torch.equal(part.view(torch.uint8), other.view(torch.uint8))


def live_rows(cache: DrafterCache, sequence: CachedSequence) -> list[Tensor]:
    """Latent rows, keys of complete pools, and the raw rows that the ring still holds."""
    raw = torch.arange(max(sequence.raw_from, sequence.rows - cache.tail_depth), sequence.rows)
    return [
        cache.latent[sequence.blocks].flatten(0, 1)[: sequence.rows],
        cache.index_keys[sequence.blocks].flatten(0, 1)[: cache.complete_pools(sequence)],
        cache.tail[sequence.slot, raw % cache.tail_depth],
    ]


def test_other_sequences_stay_bit_for_bit(runner: CompiledRunner) -> None:
    cache, sequences = filled_cache(runner, [30, 3, 61])
    before = owned(cache)
    runner.draft(rows_of(runner, cache, sequences[:1]), cache, num_drafts=1)
    runner.write_rows(rows_of(runner, cache, sequences[1:2]), cache)
    last = sequences[2]
    held = [block - 1 for block in last.blocks]
    for name in ("latent_cache", "index_keys"):
        assert torch.equal(owned(cache)[name][held], before[name][held])
    assert torch.equal(owned(cache)["tail"][last.slot - 1], before["tail"][last.slot - 1])


IN_A_FRESH_PROCESS = """
import json, shutil, sys, time
began = time.perf_counter()
import torch
from pathlib import Path
from drafts.load_compiled import load_compiled
drafter = load_compiled(Path(sys.argv[1]))
loaded = time.perf_counter() - began
generator = torch.Generator().manual_seed(0)
hiddens = torch.randn(20, drafter.proposer.config.hidden_size, generator=generator)
state = drafter.proposer.alloc_state()
drafter.proposer.prefill_drafter(list(range(3, 23)), hiddens, state)
ids = drafter.proposer.propose(5, hiddens[19], 19, 2, state)
compilers = [shutil.which(name) for name in ("g++", "gcc", "c++", "clang++")]
counters, fallbacks = drafter.proposer.path_counters, list(drafter.runner.fallbacks)
print(json.dumps({"ids": ids, "compilers": compilers, "counters": counters, "fallbacks": fallbacks}))
print(f"loaded in {loaded:.2f} s", file=sys.stderr)
"""


def test_fresh_process_without_a_compiler_loads_and_drafts(home: Path, tmp_path: Path) -> None:
    environment = {"PATH": str(tmp_path), "HOME": str(tmp_path), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", IN_A_FRESH_PROCESS, str(home / "artifact")],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["compilers"] == [None] * 4
    assert record["fallbacks"] == []
    assert set(record["counters"]) == {"context.circuit:inductor", "propose.circuit:inductor"}
    here = load_compiled(home / "artifact")
    hiddens = torch.randn(20, here.proposer.config.hidden_size, generator=torch.Generator().manual_seed(0))
    state = here.proposer.alloc_state()
    here.proposer.set_circuit_draft(None)
    here.proposer.prefill_drafter(list(range(3, 23)), hiddens, state)
    assert record["ids"] == here.proposer.propose(5, hiddens[19], 19, 2, state)


def test_console_script_runs_an_artifact_without_a_compiler(home: Path, tmp_path: Path) -> None:
    argv = [
        sys.executable,
        "-m",
        "drafts",
        "run",
        str(home / "artifact"),
        "--prompt",
        "a",
        "--max-tokens",
        "3",
        "--json",
    ]
    environment = {"PATH": str(tmp_path), "HOME": str(tmp_path), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(argv, capture_output=True, text=True, cwd=ROOT, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["path"] == "circuit:inductor"
    assert not list((tmp_path / "cache").rglob("*.so"))
