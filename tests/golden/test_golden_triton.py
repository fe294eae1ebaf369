"""The launches of the Triton backend against the oracle: every operation of every golden case, on the CPU."""

from __future__ import annotations

import pytest
import torch

from drafts.binding import DraftBinding, bind_head
from drafts.cache import default_block_size
from drafts.runner import DraftRunner
from drafts.triton_runner import TritonRunner
from tests.golden.checks import is_excused, main_play
from tests.golden.circuit_head import circuit_head
from tests.golden.replay import GoldenCase, cache_contents, play_path
from tests.support.artifacts import GOLDEN_DECISIONS

pytestmark = [pytest.mark.slow, pytest.mark.interpreted]

# sums in another order, over a chain of four drafts; bf16 keeps 8 bits
CACHE_BOUND = {torch.float32: 1e-5, torch.bfloat16: 2**-6}


def test_launches_play_every_operation(golden_case: GoldenCase) -> None:
    binding = _binding(golden_case)
    runner = TritonRunner(binding)
    for index in range(len(golden_case.sequences)):
        play = play_path(golden_case, index, runner)
        interpreted = play_path(golden_case, index, DraftRunner(binding))
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


def _binding(case: GoldenCase) -> DraftBinding:
    config = case.config()
    return bind_head(
        config,
        case.weights(config),
        GOLDEN_DECISIONS,
        block_size=default_block_size(config.index_kpool),
        max_num_drafts=16,
    )
