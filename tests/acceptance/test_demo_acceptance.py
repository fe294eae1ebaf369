"""The acceptance gate: parity cannot see an error that eager head and circuit share, an accepted length can.

Every second held-out prompt of examples/demo_model, 128 tokens, greedy, three drafts a round. Over all of them the
model card gives 2.53; 2.20 when recycle is wired to the wrong side of the norm, 1.83 when hidden_source is.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from drafts.compile_drafter import compile_drafter
from drafts.decisions import Decisions
from drafts.generation import Generation, combine_metrics
from drafts.load_compiled import load_compiled
from drafts.proposer import DraftProposer
from drafts.runner import DraftRunner
from drafts.speculate import generate
from tests.support.shared_build import shared_build

pytest.importorskip("transformers", reason="the demo's target runs on transformers: install the extra `hf`")

from drafts.targets.tokenizer import load_tokenizer
from drafts.targets.transformers_target import TransformersTarget, load_target

pytestmark = pytest.mark.slow

DEMO = Path(__file__).parents[2] / "examples" / "demo_model"
NUM_TOKENS, NUM_DRAFTS, CONTEXT = 128, 3, 512
REQUIRED_LENGTH = 2.3  # accepted drafts + 1 per verify
# bf16 sums in another order round otherwise, and a draft in a near-tie falls otherwise: that costs or gains its round
# three drafts at most. 0.1 is one round in thirty, half of what the lesser wrong wiring loses. Measured on these
# prompts: no round of 514 differs between eager head and circuit, interpreted or compiled
BF16_BOUND = 0.1
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


@dataclass
class Desk:
    """The demo's target in one dtype, its prompts, and what was decoded of them so far, by the drafter's name."""

    dtype: torch.dtype
    target: TransformersTarget
    prompts: list[list[int]]
    decoded: dict[str, list[Generation]] = field(default_factory=dict)

    def drafter(self, decisions: Decisions) -> DraftProposer:
        checkpoint = DEMO / "model"
        return DraftProposer.from_checkpoint(checkpoint, dtype=self.dtype, decisions=decisions, max_seq_len=CONTEXT)

    def decode(self, proposer: DraftProposer | None) -> list[Generation]:
        asked = {"max_new_tokens": NUM_TOKENS, "num_drafts": NUM_DRAFTS}
        return [generate(self.target, proposer, prompt_tokens=prompt, **asked) for prompt in self.prompts]

    @property
    def eager(self) -> list[Generation]:
        if "eager" not in self.decoded:
            self.decoded["eager"] = self.decode(self.drafter(Decisions()))
        return self.decoded["eager"]

    @property
    def plain(self) -> list[Generation]:
        if "plain" not in self.decoded:
            self.decoded["plain"] = self.decode(None)
        return self.decoded["plain"]

    def interpreted(self, decisions: Decisions) -> list[Generation]:
        """What the circuit of these decisions drafts, swapped in for the eager head."""
        proposer = self.drafter(decisions)
        binding = proposer.circuit_draft()
        assert binding is not None
        proposer.set_circuit_draft(DraftRunner(binding))
        decoded = self.decode(proposer)
        assert set(proposer.path_counters) == {"context.circuit:reference", "propose.circuit:reference"}
        return decoded


@pytest.fixture(scope="module")
def desks() -> dict[str, Desk]:
    texts = [prompt["text"] for prompt in json.loads((DEMO / "prompts.json").read_text())["prompts"]]
    tokenizer = load_tokenizer(DEMO / "model")
    prompts = [tokenizer.encode(text) for text in texts[::2]]
    return {name: Desk(dtype, load_target(DEMO / "model", dtype=dtype), prompts) for name, dtype in DTYPES.items()}


def hold(drafted: Sequence[Generation], eager: Sequence[Generation], dtype: torch.dtype) -> None:
    """The gate: in f32 every draft is accepted as the eager head's, in bf16 the mean length is within its bound."""
    if dtype == torch.float32:
        ours, theirs = (combine_metrics([one.metrics for one in side]).accepted for side in (drafted, eager))
        assert ours == theirs, f"accepted {ours} per position, the eager head's are {theirs}"
    lengths = mean_length(drafted), mean_length(eager)
    assert abs(lengths[0] - lengths[1]) <= BF16_BOUND, f"mean accepted length {lengths[0]:.3f}, eager {lengths[1]:.3f}"


def mean_length(generations: Sequence[Generation]) -> float:
    return combine_metrics([one.metrics for one in generations]).mean_accepted_length


@pytest.mark.parametrize("dtype", DTYPES)
def test_eager_head_is_accepted_as_the_model_card_says(desks: dict[str, Desk], dtype: str) -> None:
    desk = desks[dtype]
    assert mean_length(desk.eager) >= REQUIRED_LENGTH
    if dtype == "f32":
        # in bf16 a verify of four rows may round the target's own choice otherwise than a row alone
        assert [one.tokens for one in desk.eager] == [one.tokens for one in desk.plain]


@pytest.mark.parametrize("dtype", DTYPES)
def test_circuit_is_accepted_as_the_eager_head(desks: dict[str, Desk], dtype: str) -> None:
    desk = desks[dtype]
    circuit = desk.interpreted(Decisions())
    hold(circuit, desk.eager, desk.dtype)
    if dtype == "f32":
        assert [one.tokens for one in circuit] == [one.tokens for one in desk.eager]


@pytest.mark.parametrize("dtype", DTYPES)
def test_compiled_circuit_is_accepted_as_the_eager_head(
    desks: dict[str, Desk], dtype: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    desk = desks[dtype]

    def build(folder: Path) -> None:
        drafter = desk.drafter(Decisions())
        asked = {"num_drafts": NUM_DRAFTS, "batches": (1,), "contexts": (CONTEXT,)}
        compile_drafter(drafter, DEMO / "model", folder, **asked)

    artifact = shared_build(tmp_path_factory, f"demo_acceptance_{dtype}", build)
    compiled = load_compiled(artifact, checkpoint=DEMO / "model")
    decoded = desk.decode(compiled.proposer)
    assert set(compiled.proposer.path_counters) == {"context.circuit:inductor", "propose.circuit:inductor"}
    hold(decoded, desk.eager, desk.dtype)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize(
    "wrong", [Decisions(recycle="block_output"), Decisions(hidden_source="pre_norm")], ids=["recycle", "hidden_source"]
)
def test_circuit_wired_to_the_wrong_side_fails_the_gate_and_harms_nothing(
    wrong: Decisions, dtype: torch.dtype, desks: dict[str, Desk], wrongly_drafted: dict[str, list[Generation]]
) -> None:
    desk = desks["f32"]
    name = f"{wrong.recycle}, {wrong.hidden_source}"
    if name not in wrongly_drafted:
        wrongly_drafted[name] = desk.interpreted(wrong)
    drafted = wrongly_drafted[name]
    assert [one.tokens for one in drafted] == [one.tokens for one in desk.plain]
    # the bound of bf16 is the loose one, and must not let it through either
    with pytest.raises(AssertionError, match="accepted"):
        hold(drafted, desk.eager, dtype)


@pytest.fixture(scope="module")
def wrongly_drafted() -> dict[str, list[Generation]]:
    return {}
