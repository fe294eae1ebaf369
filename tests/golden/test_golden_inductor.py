"""The compiled programs against the oracle: every operation of every golden case."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from drafts.binding import DraftBinding
from drafts.compiled_runner import CompiledRunner
from drafts.load_compiled import load_compiled
from drafts.proposer import DraftProposer
from drafts.runner import DraftRunner
from tests.golden.path_checks import check_path
from tests.golden.replay import GoldenCase
from tests.support.artifacts import GOLDEN_CONTEXT, golden_artifact

pytestmark = pytest.mark.slow


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
    check_path(golden_case, runner)
    new = runner.fallbacks - fallbacks
    assert not [what for what in new if what.startswith("chain") or checkpoint == "ckpt_a"]


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
