"""The acceptance gate: parity cannot see an error that eager head and circuit share, an accepted length can.

Every second held-out prompt of examples/demo_model, 128 tokens, greedy, float32, three drafts a round. Over all of them
the model card gives 2.53; 2.20 when recycle is wired to the wrong side of the norm, 1.83 when hidden_source is.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from drafts.decisions import Decisions
from drafts.generation import Generation, combine_metrics
from drafts.proposer import DraftProposer
from drafts.runner import DraftRunner
from drafts.speculate import generate

pytest.importorskip("transformers", reason="the demo's target runs on transformers: install the extra `hf`")

from drafts.targets.tokenizer import load_tokenizer
from drafts.targets.transformers_target import TransformersTarget, load_target

DEMO = Path(__file__).parents[2] / "examples" / "demo_model"
NUM_TOKENS = 128
REQUIRED_LENGTH = 2.3  # accepted drafts + 1 per verify


@pytest.fixture(scope="module")
def target() -> TransformersTarget:
    return load_target(DEMO / "model", dtype=torch.float32)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    texts = [prompt["text"] for prompt in json.loads((DEMO / "prompts.json").read_text())["prompts"]]
    tokenizer = load_tokenizer(DEMO / "model")
    return [tokenizer.encode(text) for text in texts[::2]]


@pytest.fixture(scope="module")
def plain(target: TransformersTarget, prompts: list[list[int]]) -> list[Generation]:
    return _decode(target, None, prompts)


@pytest.fixture(scope="module")
def eager(target: TransformersTarget, prompts: list[list[int]]) -> list[Generation]:
    return _decode(target, _drafter(Decisions()), prompts)


def test_eager_head_is_accepted_as_the_model_card_says(eager: list[Generation], plain: list[Generation]) -> None:
    assert [one.tokens for one in eager] == [one.tokens for one in plain]
    assert _mean_length(eager) >= REQUIRED_LENGTH


def test_circuit_is_accepted_exactly_as_the_eager_head(
    target: TransformersTarget, prompts: list[list[int]], eager: list[Generation]
) -> None:
    proposer = _drafter(Decisions())
    binding = proposer.circuit_draft()
    assert binding is not None
    proposer.set_circuit_draft(DraftRunner(binding))
    circuit = _decode(target, proposer, prompts)
    assert [one.tokens for one in circuit] == [one.tokens for one in eager]
    assert (
        combine_metrics([one.metrics for one in circuit]).accepted
        == combine_metrics([one.metrics for one in eager]).accepted
    )
    assert set(proposer.path_counters) == {"context.circuit:reference", "propose.circuit:reference"}


@pytest.mark.parametrize(
    ("wrong", "loses"),
    [
        (Decisions(recycle="block_output"), 0.2),
        (Decisions(hidden_source="pre_norm"), 0.45),
    ],
    ids=["recycle", "hidden_source"],
)
def test_a_wrong_decision_drafts_worse_and_harms_nothing(
    wrong: Decisions,
    loses: float,
    target: TransformersTarget,
    prompts: list[list[int]],
    plain: list[Generation],
    eager: list[Generation],
) -> None:
    drafted = _decode(target, _drafter(wrong), prompts)
    assert [one.tokens for one in drafted] == [one.tokens for one in plain]
    assert _mean_length(drafted) <= _mean_length(eager) - loses


def _drafter(decisions: Decisions) -> DraftProposer:
    return DraftProposer.from_checkpoint(DEMO / "model", dtype=torch.float32, decisions=decisions, max_seq_len=512)


def _decode(
    target: TransformersTarget, proposer: DraftProposer | None, prompts: Sequence[Sequence[int]]
) -> list[Generation]:
    return [
        generate(target, proposer, prompt_tokens=prompt, max_new_tokens=NUM_TOKENS, num_drafts=3) for prompt in prompts
    ]


def _mean_length(generations: Sequence[Generation]) -> float:
    return combine_metrics([one.metrics for one in generations]).mean_accepted_length
