"""The draft-verify loop on a real hybrid target: KDA and indexed layers, sparse selection active."""

import random
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from drafts.decisions import Decisions
from drafts.generation import combine_metrics, compare_to_plain
from drafts.proposer import DraftProposer
from drafts.proposer_state import ProposerState
from drafts.sampling import Sampling
from drafts.speculate import generate
from tests.drafts.scripted_target import ScriptedDrafter
from tests.drafts.tiny_head import tiny_config, tiny_weights
from tests.drafts.tiny_target import VOCAB_SIZE, adapter, random_tokens, tiny_model

PROMPTS = [random_tokens(1, seed=20), random_tokens(13, seed=21), random_tokens(30, seed=22)]
NUM_TOKENS = 28


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    # the tensors are tiny: splitting them over threads costs more than it gives where the cores are busy
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="module")
def target():
    return adapter.TransformersTarget(tiny_model())


@pytest.fixture(scope="module")
def plain(target):
    got = [generate(target, None, prompt_tokens=prompt, max_new_tokens=NUM_TOKENS) for prompt in PROMPTS]
    assert all(len(set(generation.tokens)) > 6 for generation in got), "text too uniform to tell anything"
    return got


def drafter_for(prompt, generation, *, share_right: float, shortest: int, seed: int) -> ScriptedDrafter:
    """Drafts plain decoding's own tokens, each right with a given probability, `shortest` .. K at a time."""
    text, rng = [*prompt, *generation.tokens, *[0] * 9], random.Random(seed)

    def rule(tokens: list[int], num_drafts: int) -> list[int]:
        known = text[len(tokens) :][: rng.randint(min(shortest, num_drafts), num_drafts)]
        return [token if rng.random() < share_right else rng.randrange(VOCAB_SIZE) for token in known]

    return ScriptedDrafter(rule, prompt)


@pytest.mark.parametrize("num_drafts", [1, 4])
@pytest.mark.parametrize(
    "share_right, shortest",
    [(1.0, 9), (0.65, 9), (0.0, 9), (0.65, 0)],
    ids=["right", "35 percent wrong", "random", "any length"],
)
def test_greedy_output_equals_plain_decoding(target, plain, num_drafts: int, share_right, shortest: int) -> None:
    metrics = []
    for seed, (prompt, expected) in enumerate(zip(PROMPTS, plain, strict=True)):
        drafter = drafter_for(prompt, expected, share_right=share_right, shortest=shortest, seed=seed)
        got = generate(target, drafter, prompt_tokens=prompt, max_new_tokens=NUM_TOKENS, num_drafts=num_drafts)
        assert compare_to_plain(got, expected).is_identical, compare_to_plain(got, expected)
        assert got.margins == pytest.approx(expected.margins, abs=1e-4)
        metrics.append(got.metrics)
    if share_right == 1.0:
        rounds = [-(-(NUM_TOKENS - 1) // (num_drafts + 1))] * len(PROMPTS)
        assert [part.num_rounds for part in metrics] == rounds
        # the last round may draft past what plain decoding told the drafter
        assert combine_metrics(metrics).mean_accepted_length > num_drafts + 1 - 0.7


def test_without_recurrent_rollback_the_output_would_differ(target, plain, monkeypatch) -> None:
    """What the comparison above is worth: the same run with KDA states left where the verify put them."""
    monkeypatch.setattr("drafts.targets.rollback.KdaUndo.keep", lambda self, num_kept, num_run: None)
    drafter = drafter_for(PROMPTS[1], plain[1], share_right=0.65, shortest=9, seed=1)
    got = generate(target, drafter, prompt_tokens=PROMPTS[1], max_new_tokens=NUM_TOKENS)
    assert not compare_to_plain(got, plain[1]).is_identical


def test_a_stop_token_inside_accepted_drafts_ends_the_output(target, plain) -> None:
    tokens = plain[2].tokens
    stop = next(token for index, token in enumerate(tokens) if index > 5 and token not in tokens[:index])
    drafter = drafter_for(PROMPTS[2], plain[2], share_right=1.0, shortest=9, seed=2)
    got = generate(
        target, drafter, prompt_tokens=PROMPTS[2], max_new_tokens=NUM_TOKENS, num_drafts=6, stop_tokens={stop}
    )
    assert got.tokens == tokens[: tokens.index(stop) + 1]
    assert got.finish_reason == "stop"


def test_generation_may_fill_every_position(target) -> None:
    prompt = random_tokens(110, seed=23)
    expected = generate(target, None, prompt_tokens=prompt, max_new_tokens=19)
    drafter = drafter_for(prompt, expected, share_right=0.8, shortest=9, seed=3)
    got = generate(target, drafter, prompt_tokens=prompt, max_new_tokens=19, num_drafts=5)
    assert got.tokens == expected.tokens
    with pytest.raises(ValueError, match="fit 128 positions"):
        generate(target, None, prompt_tokens=prompt, max_new_tokens=20)


def test_sampling_on_a_sharp_target_follows_its_argmax(target, plain) -> None:
    drafter = drafter_for(PROMPTS[1], plain[1], share_right=0.65, shortest=9, seed=4)
    sampling = Sampling(temperature=1e-6, seed=5)
    got = generate(target, drafter, prompt_tokens=PROMPTS[1], max_new_tokens=NUM_TOKENS, sampling=sampling)
    assert min(plain[1].margins) > 1e-4
    assert got.tokens == plain[1].tokens


@pytest.mark.parametrize("num_drafts", [1, 4])
def test_drafter_cache_after_rounds_equals_a_prefill_of_the_text(target, num_drafts: int, monkeypatch) -> None:
    """With mtp_kv_exact every row pairs a token with the target's own hidden, so a fresh drafter holds the same."""
    config = tiny_config(hidden_size=32, vocab_size=VOCAB_SIZE, max_position_embeddings=128)
    proposer = DraftProposer(config, tiny_weights(config), Decisions(), max_seq_len=100, num_sequences=2)
    prompt = random_tokens(18, seed=24)
    plain = generate(target, None, prompt_tokens=prompt, max_new_tokens=30)
    text, propose, rng = [*prompt, *plain.tokens, *[0] * 9], proposer.propose, random.Random(0)
    freed: list[ProposerState] = []

    def propose_well(
        last_token: int, hidden: Tensor, position: int, num_drafts: int, state: ProposerState
    ) -> list[int]:
        # an untrained drafter is never right: it writes its rows, and the drafts are plain decoding's in its stead
        propose(last_token, hidden, position, num_drafts, state)
        known = text[position + 2 : position + 2 + num_drafts]
        return [token if rng.random() < 0.7 else rng.randrange(VOCAB_SIZE) for token in known]

    monkeypatch.setattr(proposer, "propose", propose_well)
    monkeypatch.setattr(proposer, "free_state", freed.append)  # keep what the drafter held at the end
    got = generate(target, proposer, prompt_tokens=prompt, max_new_tokens=30, num_drafts=num_drafts)
    assert got.tokens == plain.tokens
    assert 1.3 < got.metrics.mean_accepted_length < num_drafts + 1
    # the last round is not settled: the rows known to be true end where its propose began
    rows = proposer.drafter_rows(freed[0]) - freed[0].num_drafted
    assert rows >= len(prompt) + 30 - 2 - (num_drafts + 1)

    fresh = proposer.alloc_state()
    run = target.open_sequence().prefill(text[: rows + 1])
    assert proposer.prefill_drafter(text[: rows + 1], run.hiddens, fresh) == rows
    for name, count in (("latent", rows), ("index_keys", rows // config.index_kpool)):
        tensor = getattr(proposer.cache, name)
        held, expected = (tensor[one.sequence.blocks].flatten(0, 1)[:count] for one in (freed[0], fresh))
        torch.testing.assert_close(held, expected, atol=2e-5, rtol=1e-4)
