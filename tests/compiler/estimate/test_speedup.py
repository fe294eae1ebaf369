"""The model of a round: tokens, times, and the best K."""

import random

import pytest

from compiler import RoundModel, expected_tokens
from nodes import RoutedExperts


def test_expected_tokens_of_certain_and_hopeless_drafts() -> None:
    assert expected_tokens(()) == 1
    assert expected_tokens((1, 1, 1)) == 4
    assert expected_tokens((0, 1, 1)) == 1
    assert expected_tokens((0.5, 0.5)) == pytest.approx(1.75)


def test_expected_tokens_are_what_simulated_rounds_emit() -> None:
    chance, acceptance, rounds = random.Random(0), (0.7, 0.4, 0.9), 20000
    emitted = 0
    for _ in range(rounds):
        emitted += 1
        for share in acceptance:
            if chance.random() >= share:
                break
            emitted += 1
    assert expected_tokens(acceptance) == pytest.approx(emitted / rounds, rel=0.02)


def test_gain_is_tokens_a_round_against_plain_steps() -> None:
    model = RoundModel(acceptance=(0.5, 0.5), draft_us=(10.0, 25.0), verify_us=(100.0, 110.0, 115.0))
    one, two = model.predictions()
    assert one.speedup == pytest.approx(1.5 * 100 / (10 + 110))
    assert two.speedup == pytest.approx(1.75 * 100 / (25 + 115))
    assert model.best() == one  # both gain 1.25: the fewer drafts


def test_times_go_on_past_their_end() -> None:
    model = RoundModel(acceptance=(0.5,) * 4, draft_us=(10.0,), verify_us=(100.0, 110.0))
    assert [one.draft_us for one in model.predictions()] == [10, 20, 30, 40]
    assert [one.verify_us for one in model.predictions()] == [110] * 4
    stepped = RoundModel(acceptance=(0.5,) * 4, draft_us=(10.0, 14.0), verify_us=(100.0,))
    assert [one.draft_us for one in stepped.predictions()] == [10, 14, 18, 22]


def test_best_k_stops_where_a_draft_costs_more_than_it_brings() -> None:
    model = RoundModel(acceptance=(0.9, 0.9, 0.01, 0.01), draft_us=(10.0,), verify_us=(100.0,))
    assert model.best().num_drafts == 2
    free = RoundModel(acceptance=(0.9,) * 4, draft_us=(1e-9,), verify_us=(100.0,))
    assert free.best().num_drafts == 4
    hopeless = RoundModel(acceptance=(0.0, 0.0), draft_us=(10.0,), verify_us=(100.0,))
    assert hopeless.best().num_drafts == 1
    assert hopeless.best().speedup < 1


@pytest.mark.parametrize(
    "fields, fault",
    [
        ({"acceptance": ()}, "acceptance: expected shares from 0 to 1"),
        ({"acceptance": (1.1,)}, "acceptance: expected shares from 0 to 1"),
        ({"acceptance": (float("nan"),)}, "acceptance: expected shares from 0 to 1"),
        ({"draft_us": (0.0,)}, "draft_us: expected times above 0"),
        ({"draft_us": (900.0, 400.0)}, "draft_us: expected that a longer chain takes no less"),
        ({"verify_us": ()}, "verify_us: expected times above 0"),
    ],
)
def test_impossible_numbers_are_refused(fields: dict[str, tuple[float, ...]], fault: str) -> None:
    whole = {"acceptance": (0.5,), "draft_us": (1.0,), "verify_us": (1.0,)}
    with pytest.raises(ValueError, match=fault):
        RoundModel(**{**whole, **fields})


@pytest.mark.parametrize("num_rows", [1, 4, 16, 300])
def test_distinct_experts_are_what_uniform_draws_touch(num_rows: int) -> None:
    chance, rounds = random.Random(1), 200
    touched = 0
    for _ in range(rounds):
        touched += len({expert for _ in range(num_rows) for expert in chance.sample(range(288), 8)})
    assert RoutedExperts.expected_distinct(288, 8, num_rows) == pytest.approx(touched / rounds, rel=0.01)
