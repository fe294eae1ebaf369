"""The draft-verify loop against a target and drafters whose every value is known."""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import product

import pytest
import torch

from circuit.errors import StateError
from drafts.generation import Generation, SpeculationMetrics, combine_metrics, compare_to_plain
from drafts.sampling import Sampling, target_probabilities
from drafts.speculate import generate
from tests.drafts.chi_square import chi_square, critical_value
from tests.drafts.scripted_target import NORMED, ScriptedDrafter, ScriptedTarget

PROMPT = [3, 1, 4, 1, 5]
Rule = Callable[[list[int], int], list[int]]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    # a softmax over four numbers split over threads costs milliseconds where the cores are busy
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


def right(target: ScriptedTarget) -> Rule:
    return lambda tokens, num_drafts: target.continuation(tokens, num_drafts)


def wrong(target: ScriptedTarget) -> Rule:
    return lambda tokens, num_drafts: [
        (token + 1) % target.vocab_size for token in target.continuation(tokens, num_drafts)
    ]


def at_random(target: ScriptedTarget) -> Rule:
    rng = random.Random(7)
    return lambda tokens, num_drafts: [rng.randrange(target.vocab_size) for _ in range(num_drafts)]


def often_right(target: ScriptedTarget) -> Rule:
    rng = random.Random(8)
    return lambda tokens, num_drafts: [
        token if rng.random() < 0.65 else rng.randrange(target.vocab_size)
        for token in target.continuation(tokens, num_drafts)
    ]


def of_any_length(target: ScriptedTarget) -> Rule:
    rng, rule = random.Random(9), often_right(target)
    return lambda tokens, num_drafts: rule(tokens, rng.randrange(num_drafts + 1))


def silent(target: ScriptedTarget) -> Rule:
    return lambda tokens, num_drafts: []


RULES = [right, wrong, at_random, often_right, of_any_length, silent]
each_rule = pytest.mark.parametrize("make_rule", RULES, ids=lambda rule: rule.__name__)


def speculate(target: ScriptedTarget, make_rule: Callable[[ScriptedTarget], Rule], **options) -> Generation:
    prompt = options.pop("prompt_tokens", PROMPT)
    drafter = ScriptedDrafter(make_rule(target), prompt)
    return generate(target, drafter, prompt_tokens=prompt, **options)


@each_rule
@pytest.mark.parametrize("num_drafts", [1, 3, 6])
@pytest.mark.parametrize("mtp_kv_exact", [True, False])
def test_greedy_output_equals_plain_decoding(make_rule, num_drafts: int, mtp_kv_exact: bool) -> None:
    target = ScriptedTarget()
    plain = generate(target, None, prompt_tokens=PROMPT, max_new_tokens=61)
    assert list(plain.tokens) == target.continuation(PROMPT, 61)
    got = speculate(target, make_rule, max_new_tokens=61, num_drafts=num_drafts, mtp_kv_exact=mtp_kv_exact)
    assert got.tokens == plain.tokens
    assert got.margins == plain.margins
    assert compare_to_plain(got, plain).is_identical


@each_rule
def test_greedy_output_equals_plain_decoding_after_a_prompt_of_one_token(make_rule) -> None:
    target = ScriptedTarget()
    got = speculate(target, make_rule, prompt_tokens=[7], max_new_tokens=23)
    assert list(got.tokens) == target.continuation([7], 23)


@each_rule
@pytest.mark.parametrize("form, offset", [("pre_norm", 0.0), ("post_norm", NORMED)])
def test_every_drafter_row_pairs_a_token_with_the_target_hidden_before_it(make_rule, form, offset: float) -> None:
    target = ScriptedTarget()
    drafter = ScriptedDrafter(make_rule(target), PROMPT)
    got = generate(target, drafter, prompt_tokens=PROMPT, max_new_tokens=40, num_drafts=4, supplied_hidden=form)
    text = [*PROMPT, *got.tokens]
    for rows in drafter.rows_at_propose:
        for row, (token, hidden) in enumerate(rows):
            assert token == text[row + 1]
            assert (hidden - offset).tolist() == [row, text[row]]


def test_recycled_rows_stay_without_mtp_kv_exact() -> None:
    target = ScriptedTarget()
    drafter = ScriptedDrafter(right(target), PROMPT)
    generate(target, drafter, prompt_tokens=PROMPT, max_new_tokens=20, num_drafts=3, mtp_kv_exact=False)
    # of the four rows a full round adds, the first is true, two were recycled, and the one no draft wrote is caught up
    second = drafter.rows_at_propose[1][len(PROMPT) - 1 :]
    assert [hidden is None for _, hidden in second] == [False, True, True, False]


@each_rule
def test_a_stop_token_ends_the_output_where_plain_decoding_ends_it(make_rule) -> None:
    target = ScriptedTarget()
    text = target.continuation(PROMPT, 40)
    for stop in sorted(set(text)):
        expected = text[: text.index(stop) + 1]
        seen: list[int] = []
        got = speculate(target, make_rule, max_new_tokens=40, stop_tokens={stop}, on_token=seen.append)
        assert list(got.tokens) == expected == seen
        assert got.finish_reason == ("stop" if stop in expected else "length")


@each_rule
@pytest.mark.parametrize("max_new_tokens", [1, 2, 3, 4, 5, 6, 7])
def test_max_new_tokens_cuts_a_round(make_rule, max_new_tokens: int) -> None:
    target, seen = ScriptedTarget(), []
    got = speculate(target, make_rule, max_new_tokens=max_new_tokens, num_drafts=3, on_token=seen.append)
    assert list(got.tokens) == target.continuation(PROMPT, max_new_tokens) == seen
    assert got.finish_reason == "length"


def test_the_first_token_alone_needs_no_round_and_no_drafter() -> None:
    target = ScriptedTarget()
    drafter = ScriptedDrafter(right(target), PROMPT)
    got = generate(target, drafter, prompt_tokens=PROMPT, max_new_tokens=1)
    assert got.metrics.num_rounds == 0
    assert got.metrics.mean_accepted_length == 0.0
    assert drafter.states[0].rows == []
    assert drafter.states[0].is_freed


@each_rule
def test_drafts_fit_the_positions_of_the_target(make_rule) -> None:
    target = ScriptedTarget(max_positions=len(PROMPT) + 19)
    got = speculate(target, make_rule, max_new_tokens=20, num_drafts=5)
    assert list(got.tokens) == target.continuation(PROMPT, 20)
    assert target.longest <= target.max_positions


def test_every_round_asks_for_the_same_number_of_drafts() -> None:
    target = ScriptedTarget()
    drafter = ScriptedDrafter(often_right(target), PROMPT)
    generate(target, drafter, prompt_tokens=PROMPT, max_new_tokens=30, num_drafts=4)
    assert set(drafter.num_asked) == {4}


def test_no_drafts_is_plain_decoding() -> None:
    target = ScriptedTarget()
    drafter = ScriptedDrafter(right(target), PROMPT)
    got = generate(target, drafter, prompt_tokens=PROMPT, max_new_tokens=9, num_drafts=0)
    assert list(got.tokens) == target.continuation(PROMPT, 9)
    assert drafter.states == []
    assert got.metrics.mean_accepted_length == 1.0


def test_metrics_count_each_position_whole() -> None:
    target, accepted = ScriptedTarget(), iter([2, 0, 3, 1, 3])

    def rule(tokens: list[int], num_drafts: int) -> list[int]:
        num_right = next(accepted)
        drafts = target.continuation(tokens, num_drafts)
        if num_right < num_drafts:
            drafts[num_right] = (drafts[num_right] + 1) % target.vocab_size
        return drafts

    # 1 + 3 + 1 + 4 + 2 tokens, then one of the last round's four
    got = speculate(target, lambda _: rule, max_new_tokens=12, num_drafts=3)
    metrics = got.metrics
    assert (metrics.num_rounds, metrics.num_tokens) == (5, 12)
    assert metrics.offered == (5, 5, 5)
    assert metrics.reached == (5, 4, 3)
    assert metrics.accepted == (4, 3, 2)
    assert metrics.cumulative_acceptance == (4 / 5, 3 / 5, 2 / 5)
    assert metrics.conditional_acceptance == (4 / 5, 3 / 4, 2 / 3)
    assert metrics.mean_accepted_length == (2 + 0 + 3 + 1 + 3 + 5) / 5
    assert metrics.tokens_per_second > 0


def test_metrics_tell_a_missing_draft_from_a_rejected_one() -> None:
    target, lengths = ScriptedTarget(), iter([1, 0, 2, 3])
    got = speculate(
        target, lambda _: lambda tokens, _: target.continuation(tokens, next(lengths)), max_new_tokens=11, num_drafts=3
    )
    assert got.metrics.offered == got.metrics.reached == got.metrics.accepted == (3, 2, 1)
    assert got.metrics.num_rounds == 4
    assert got.metrics.conditional_acceptance == (1.0, 1.0, 1.0)


def test_combined_metrics_weigh_every_round_equally() -> None:
    first = SpeculationMetrics(
        num_tokens=8, num_rounds=2, offered=(2, 2), reached=(2, 2), accepted=(2, 2), decode_s=2.0
    )
    second = SpeculationMetrics(num_tokens=4, num_rounds=3, offered=(3,), reached=(3,), accepted=(0,), decode_s=3.0)
    both = combine_metrics([first, second])
    assert (both.num_generations, both.num_tokens, both.num_rounds) == (2, 12, 5)
    assert both.accepted == (2, 2)
    assert both.reached == (5, 2)
    assert both.mean_accepted_length == 9 / 5
    assert both.tokens_per_second == 10 / 5.0
    assert combine_metrics([]).mean_accepted_length == 0.0


def test_a_mismatch_is_reported_with_position_and_margin() -> None:
    metrics = SpeculationMetrics()
    plain = Generation((5, 6, 7), (1.0, 0.25, 2.0), "length", metrics)
    other = Generation((5, 9, 7), (1.0, 0.2, 2.0), "length", metrics)
    got = compare_to_plain(other, plain)
    assert (got.is_identical, got.position, got.margin, got.token, got.plain_token) == (False, 1, 0.25, 9, 6)
    longer = Generation((5, 6, 7, 8), (1.0, 0.25, 2.0, 3.0), "length", metrics)
    got = compare_to_plain(longer, plain)
    assert (got.is_identical, got.position, got.margin, got.token, got.plain_token) == (False, 3, None, 8, None)


def test_margins_are_the_gap_of_the_row_that_decided_the_token() -> None:
    target = ScriptedTarget()
    got = speculate(target, often_right, max_new_tokens=15)
    text = [*PROMPT, *got.tokens]
    for index, margin in enumerate(got.margins):
        largest = target.logits_after(text[: len(PROMPT) + index]).sort(descending=True).values
        assert margin == pytest.approx((largest[0] - largest[1]).item())


class Broken(RuntimeError):
    pass


def test_an_exception_of_the_drafter_passes_and_its_state_is_freed() -> None:
    target, num_calls = ScriptedTarget(), iter(range(9))

    def rule(tokens: list[int], num_drafts: int) -> list[int]:
        if next(num_calls) == 2:
            raise Broken
        return target.continuation(tokens, num_drafts)

    drafter = ScriptedDrafter(rule, PROMPT)
    with pytest.raises(Broken):
        generate(target, drafter, prompt_tokens=PROMPT, max_new_tokens=40)
    assert [state.is_freed for state in drafter.states] == [True]


def test_an_exception_of_the_callback_passes_and_the_state_is_freed() -> None:
    target, seen = ScriptedTarget(), []

    def on_token(token: int) -> None:
        seen.append(token)
        if len(seen) == 7:
            raise Broken

    drafter = ScriptedDrafter(right(target), PROMPT)
    with pytest.raises(Broken):
        generate(target, drafter, prompt_tokens=PROMPT, max_new_tokens=40, on_token=on_token)
    assert seen == target.continuation(PROMPT, 7)
    assert drafter.states[0].is_freed


@pytest.mark.parametrize(
    "drafts, message",
    [
        ([0, 12], r"propose: expected draft ids in 0 \.\. 11, got 12"),
        ([-1], r"propose: expected draft ids in 0 \.\. 11, got -1"),
        ([1.0], r"propose: expected draft ids in 0 \.\. 11, got 1\.0"),
        ([0, 1, 2, 3], "propose: expected at most 3 drafts, got 4"),
    ],
)
def test_bad_drafts_are_refused(drafts: list[int], message: str) -> None:
    target = ScriptedTarget()
    drafter = ScriptedDrafter(lambda tokens, num_drafts: drafts, PROMPT)
    with pytest.raises(ValueError, match=message):
        generate(target, drafter, prompt_tokens=PROMPT, max_new_tokens=9)
    assert drafter.states[0].is_freed
    assert target.longest == len(PROMPT)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"prompt_tokens": []}, "at least one token"),
        ({"prompt_tokens": [3, 12]}, "got 12"),
        ({"prompt_tokens": [-1]}, "got -1"),
        ({"prompt_tokens": [2.0]}, "got 2.0"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"num_drafts": -1}, "num_drafts"),
        ({"max_new_tokens": 397}, r"fit 400 positions, got 5 \+ 397"),
    ],
)
def test_bad_arguments_are_refused(options: dict, message: str) -> None:
    arguments = {"prompt_tokens": PROMPT, "max_new_tokens": 5, **options}
    with pytest.raises(ValueError, match=message):
        generate(ScriptedTarget(), None, **arguments)


def test_a_drafter_that_loses_rows_is_refused() -> None:
    class Forgetful(ScriptedDrafter):
        def rewind(self, rows, state):
            return super().rewind(rows - 2, state)

    target = ScriptedTarget()
    with pytest.raises(StateError, match=r"after_verify: expected the drafter to hold 4 \.\. 8 rows, got 3"):
        generate(target, Forgetful(right(target), PROMPT), prompt_tokens=PROMPT, max_new_tokens=20)


def test_a_catch_up_that_writes_nothing_is_refused() -> None:
    class Refusing(ScriptedDrafter):
        def catchup_drafter(self, tokens, hiddens, row_base, pos_base, state):
            return 0

    target = ScriptedTarget()
    with pytest.raises(StateError, match="catchup_drafter: expected 3 rows written at 5, got 0"):
        generate(target, Refusing(right(target), PROMPT), prompt_tokens=PROMPT, max_new_tokens=20)


def test_temperature_zero_is_greedy_and_a_seed_repeats() -> None:
    target = ScriptedTarget()
    greedy = speculate(target, at_random, max_new_tokens=20, sampling=Sampling())
    assert list(greedy.tokens) == target.continuation(PROMPT, 20)
    first, again, other = (
        speculate(target, often_right, max_new_tokens=20, sampling=Sampling(temperature=1.0, seed=seed))
        for seed in (1, 1, 2)
    )
    assert first.tokens == again.tokens
    assert first.tokens != other.tokens


@pytest.mark.parametrize("make_rule", [right, wrong, at_random, of_any_length, None], ids=lambda r: r and r.__name__)
def test_sampled_output_has_the_targets_distribution(make_rule) -> None:
    """Three tokens over a vocabulary of three: all 27 sequences against their exact probabilities."""
    target, num_samples, num_tokens, prompt = ScriptedTarget(vocab_size=3, spread=1.0, seed=3), 800, 3, [1, 2]
    sampling = Sampling(temperature=0.8)
    expected = {}
    for tokens in product(range(3), repeat=num_tokens):
        probability, text = 1.0, list(prompt)
        for token in tokens:
            probability *= target_probabilities(target.logits_after(text)[None], sampling)[0, token].item()
            text.append(token)
        expected[tokens] = probability * num_samples
    rule = make_rule(target) if make_rule else None
    counts: Counter[tuple[int, ...]] = Counter()
    for seed in range(num_samples):
        drafter = ScriptedDrafter(rule, prompt) if rule else None
        got = generate(
            target,
            drafter,
            prompt_tokens=prompt,
            max_new_tokens=num_tokens,
            num_drafts=2,
            sampling=Sampling(temperature=0.8, seed=seed),
        )
        counts[got.tokens] += 1
    statistic, freedom = chi_square(counts, expected)
    assert statistic < critical_value(freedom), f"{statistic:.1f} with {freedom} degrees of freedom"


def test_plain_decoding_runs_one_token_at_a_time() -> None:
    target = ScriptedTarget()
    got = generate(target, None, prompt_tokens=PROMPT, max_new_tokens=10)
    assert got.metrics.num_rounds == 9
    assert got.metrics.offered == ()
    assert got.metrics.mean_accepted_length == 1.0
    assert torch.tensor(got.margins).min() >= 0
