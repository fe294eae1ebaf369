"""The compiled programs against the oracle: every operation of every golden case."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from drafts.binding import DraftBinding, bind_head
from drafts.cache import default_block_size
from drafts.compiled_runner import CompiledRunner
from drafts.load_compiled import load_compiled
from drafts.proposer import DraftProposer
from drafts.runner import DraftRunner
from tests.golden.checks import is_excused, main_play
from tests.golden.circuit_head import circuit_head
from tests.golden.replay import GoldenCase, cache_contents, play_path
from tests.support.artifacts import GOLDEN_CONTEXT, GOLDEN_DECISIONS, golden_artifact

pytestmark = pytest.mark.slow

# sums in another order, over a chain of four drafts; bf16 keeps 8 bits
CACHE_BOUND = {torch.float32: 1e-5, torch.bfloat16: 2**-6}


class _Runners(dict[str, CompiledRunner]):
    def __init__(self, tmp_path_factory: pytest.TempPathFactory) -> None:
        super().__init__()
        self._tmp_path_factory = tmp_path_factory

    def __missing__(self, checkpoint: str) -> CompiledRunner:
        context_rows = (4,) if checkpoint == "ckpt_a" else ()
        folder = golden_artifact(self._tmp_path_factory, checkpoint, num_drafts=4, context_rows=context_rows)
        self[checkpoint] = load_compiled(folder).runner
        return self[checkpoint]


@pytest.fixture(scope="session")
def runners(tmp_path_factory: pytest.TempPathFactory) -> dict[str, CompiledRunner]:
    """Runners by checkpoint, made when asked for. All but ckpt_a write context rows interpreted, not their subject."""
    return _Runners(tmp_path_factory)


def test_compiled_programs_play_every_operation(golden_case: GoldenCase, runners: dict[str, CompiledRunner]) -> None:
    checkpoint = Path(golden_case.document["checkpoint"]).name
    runner = runners[checkpoint]
    fallbacks = runner.fallbacks.copy()
    for index in range(len(golden_case.sequences)):
        play = play_path(golden_case, index, runner)
        interpreted = play_path(golden_case, index, DraftRunner(_binding(golden_case)))
        is_tied = False
        for step in main_play(golden_case, index, circuit_head).steps:
            got = play.drafts[step.propose][step.index]
            if got != golden_case.drafts(index)[step.propose][step.index]:
                assert is_excused(golden_case, step, got)
                is_tied = True
                break
        assert is_tied or play.drafts == golden_case.drafts(index)
        if golden_case.is_float32:
            assert play.drafts == interpreted.drafts
        if play.drafts != interpreted.drafts:
            continue  # a near tie in bf16: other tokens write other rows
        theirs = cache_contents(interpreted.cache, interpreted.state)
        for edge, ours in cache_contents(play.cache, play.state).items():
            assert not ours.isnan().any(), edge
            distance = (ours.double() - theirs[edge].double()).norm()
            assert distance <= CACHE_BOUND[ours.dtype] * theirs[edge].double().norm(), (
                f"{golden_case.name} {edge}: {distance}"
            )
    new = runner.fallbacks - fallbacks
    assert not [what for what in new if what.startswith("chain") or checkpoint == "ckpt_a"]


def _binding(case: GoldenCase) -> DraftBinding:
    config = case.config()
    return bind_head(
        config,
        case.weights(config),
        GOLDEN_DECISIONS,
        block_size=default_block_size(config.index_kpool),
        max_num_drafts=16,
    )


def test_rewind_into_a_pool_after_fewer_drafts_than_compiled(runners: dict[str, CompiledRunner]) -> None:
    """A chain runs to its compiled end whatever is asked; what lies over live rows of the ring must be put back."""
    runner = runners["ckpt_a"]
    config, binding = runner.binding.config, runner.binding
    generator = torch.Generator().manual_seed(5)
    prompt = torch.randint(config.vocab_size, (39,), generator=generator)
    hiddens = torch.randn(39, config.hidden_size, generator=generator)
    kept = {}
    for path in (runner, DraftRunner(binding)):
        proposer = load_proposer(binding)
        proposer.set_circuit_draft(path)
        state = proposer.alloc_state()
        proposer.prefill_drafter(prompt, hiddens, state)
        ids = [proposer.propose(7, hiddens[0], 38, 1, state)]
        # as deep as the ring allows, then on: pools are made again of raw rows that the surplus drafts lay over
        assert proposer.rewind(21, state) == 21
        proposer.catchup_drafter(prompt[:9], hiddens[:9], 21, 21, state)
        ids.append(proposer.propose(3, hiddens[3], 30, 3, state))
        proposer.after_verify(1, state)
        ids.append(proposer.propose(5, hiddens[5], 32, 2, state))
        kept[path.name] = (ids, proposer.drafter_rows(state))
    assert kept["circuit:inductor"] == kept["circuit:reference"]


def load_proposer(binding: DraftBinding) -> DraftProposer:
    return DraftProposer(binding.config, binding.weights, binding.decisions, max_seq_len=GOLDEN_CONTEXT)
