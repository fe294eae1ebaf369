"""What a draft path must match of a golden case: its drafts, and what it leaves in the cache."""

from __future__ import annotations

import torch

from drafts.binding import DraftBinding, bind_head
from drafts.cache import default_block_size
from drafts.path import DraftPath
from drafts.runner import DraftRunner
from tests.golden.checks import is_excused, main_play
from tests.golden.circuit_head import circuit_head
from tests.golden.replay import GoldenCase, cache_contents, play_path
from tests.support.artifacts import GOLDEN_DECISIONS

# sums in another order, over a chain of four drafts; bf16 keeps 8 bits
CACHE_BOUND = {torch.float32: 1e-5, torch.bfloat16: 2**-6}


def check_path(case: GoldenCase, path: DraftPath) -> None:
    """Every operation of every sequence: the oracle's drafts, but for near ties in bf16; the interpreter's cache."""
    for index in range(len(case.sequences)):
        play = play_path(case, index, path)
        interpreted = play_path(case, index, DraftRunner(bind_case(case)))
        is_tied = False
        for step in main_play(case, index, circuit_head).steps:
            got = play.drafts[step.propose][step.index]
            if got != case.drafts(index)[step.propose][step.index]:
                assert is_excused(case, step, got)
                is_tied = True
                break
        assert is_tied or play.drafts == case.drafts(index)
        if case.is_float32:
            assert play.drafts == interpreted.drafts
        if play.drafts != interpreted.drafts:
            continue  # a near tie in bf16: other tokens write other rows
        theirs = cache_contents(interpreted.cache, interpreted.state)
        for edge, ours in cache_contents(play.cache, play.state).items():
            assert not ours.isnan().any(), edge
            distance = (ours.double() - theirs[edge].double()).norm()
            assert distance <= CACHE_BOUND[ours.dtype] * theirs[edge].double().norm(), f"{case.name} {edge}: {distance}"


def bind_case(case: GoldenCase) -> DraftBinding:
    """The head's circuit over the weights of a case."""
    config = case.config()
    return bind_head(
        config,
        case.weights(config),
        GOLDEN_DECISIONS,
        block_size=default_block_size(config.index_kpool),
        max_num_drafts=16,
    )
