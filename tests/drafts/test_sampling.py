"""The decision of a verify pass: which drafts stand, and what follows them."""

from collections import Counter

import pytest
import torch
from torch import Tensor

from drafts.sampling import Acceptance, Sampling, accept_greedy, accept_sampled, target_probabilities
from tests.drafts.chi_square import chi_square, critical_value

P = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)
NUM_DRAWS = 4000


def one_hot_logits(*tokens: int, vocab_size: int = 5) -> Tensor:
    return torch.eye(vocab_size)[list(tokens)]


@pytest.mark.parametrize(
    "drafts, num_accepted, token",
    [([3, 1, 4], 3, 0), ([3, 1, 0], 2, 4), ([3, 0, 4], 1, 1), ([0, 1, 4], 0, 3)],
    ids=["all", "last wrong", "second wrong", "first wrong"],
)
def test_greedy_accepts_up_to_the_first_draft_that_is_not_the_argmax(drafts, num_accepted, token) -> None:
    assert accept_greedy(one_hot_logits(3, 1, 4, 0), drafts) == Acceptance(num_accepted, token)


def test_greedy_without_drafts_gives_the_argmax() -> None:
    assert accept_greedy(one_hot_logits(2), []) == Acceptance(0, 2)


def test_greedy_breaks_ties_by_the_lowest_id() -> None:
    logits = torch.zeros(2, 300, dtype=torch.bfloat16)
    logits[:, [17, 250]] = 8.0
    assert accept_greedy(logits, [17]) == Acceptance(1, 17)
    assert accept_greedy(logits, [250]) == Acceptance(0, 17)


def draws(drafts: list[int], *, q: Tensor | None = None) -> Counter[int]:
    """First tokens emitted by many decisions over P; draft i is judged in round i mod len(drafts)."""
    generator = torch.Generator().manual_seed(5)
    counts: Counter[int] = Counter()
    for index in range(NUM_DRAWS):
        draft = drafts[index % len(drafts)]
        rows = None if q is None else q[None]
        got = accept_sampled(P.repeat(2, 1), [draft], generator=generator, draft_probabilities=rows)
        counts[draft if got.num_accepted else got.token] += 1
    return counts


def assert_follows_p(counts: Counter[int]) -> None:
    statistic, freedom = chi_square(counts, {token: NUM_DRAWS * p for token, p in enumerate(P.tolist())})
    assert statistic < critical_value(freedom), counts


@pytest.mark.parametrize("drafts", [[0], [3], [0, 1, 2, 3], [2, 2, 0]], ids=str)
def test_a_chosen_draft_leaves_the_targets_distribution(drafts: list[int]) -> None:
    assert_follows_p(draws(drafts))


@pytest.mark.parametrize(
    "q",
    [[0.1, 0.2, 0.3, 0.4], [0.4, 0.3, 0.2, 0.1], [0.0, 0.0, 0.5, 0.5], [0.97, 0.01, 0.01, 0.01]],
    ids=["reversed", "equal", "missing tokens", "sure"],
)
def test_a_drawn_draft_leaves_the_targets_distribution(q: list[float]) -> None:
    proposal = torch.tensor(q, dtype=torch.float64)
    drafts = torch.multinomial(proposal, NUM_DRAWS, True, generator=torch.Generator().manual_seed(6)).tolist()
    assert_follows_p(draws(drafts, q=proposal))


def test_a_draft_drawn_from_the_targets_own_distribution_always_stands() -> None:
    generator = torch.Generator().manual_seed(0)
    for draft in (0, 1, 2, 3) * 20:
        got = accept_sampled(P.repeat(2, 1), [draft], generator=generator, draft_probabilities=P[None])
        assert got.num_accepted == 1


def test_a_draft_of_no_probability_never_stands_and_a_sure_one_always_does() -> None:
    p = torch.tensor([[0.0, 1.0, 0.0]] * 3, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        assert accept_sampled(p, [1, 0], generator=generator) == Acceptance(1, 1)
        assert accept_sampled(p, [1, 1], generator=generator) == Acceptance(2, 1)


def test_the_token_after_a_rejected_draft_is_another_one() -> None:
    generator = torch.Generator().manual_seed(0)
    for draft in (0, 1, 2, 3) * 50:
        got = accept_sampled(P.repeat(2, 1), [draft], generator=generator)
        assert got.num_accepted == 1 or got.token != draft


def test_later_drafts_are_judged_only_after_earlier_ones_stand() -> None:
    rows = torch.stack([torch.tensor([1.0, 0.0, 0.0, 0.0]).double(), P, P])
    generator = torch.Generator().manual_seed(0)
    lengths = Counter(accept_sampled(rows, [0, 1], generator=generator).num_accepted for _ in range(2000))
    assert lengths[0] == 0
    assert lengths[2] / 2000 == pytest.approx(0.3, abs=0.04)
    assert accept_sampled(rows, [1, 1], generator=generator) == Acceptance(0, 0)


def test_temperature_divides_the_logits() -> None:
    logits = torch.tensor([[1.0, 2.0, 0.5]])
    got = target_probabilities(logits, Sampling(temperature=0.5))
    assert got.dtype == torch.float64
    torch.testing.assert_close(got, torch.softmax(logits.double() * 2, dim=-1))


@pytest.mark.parametrize(
    "top_p, kept",
    [
        (0.05, [0]),
        (0.39, [0]),
        (0.41, [0, 1]),
        (0.69, [0, 1]),
        (0.71, [0, 1, 2]),
        (0.95, [0, 1, 2, 3]),
        (1.0, [0, 1, 2, 3]),
    ],
)
def test_top_p_keeps_the_fewest_tokens_that_reach_it(top_p: float, kept: list[int]) -> None:
    order = [2, 0, 3, 1]
    shuffled = torch.empty_like(P)
    shuffled[order] = P
    got = target_probabilities(shuffled.log()[None].float(), Sampling(temperature=1.0, top_p=top_p))[0, order]
    expected = torch.zeros_like(P)
    expected[kept] = P[kept] / P[kept].sum()
    torch.testing.assert_close(got, expected, atol=1e-6, rtol=0)


def test_top_p_prefers_the_lower_id_among_equals() -> None:
    got = target_probabilities(torch.zeros(1, 4), Sampling(temperature=1.0, top_p=0.5))
    assert got.tolist() == [[0.5, 0.5, 0.0, 0.0]]


@pytest.mark.parametrize(
    "options, name",
    [
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_p": float("nan")}, "top_p"),
    ],
    ids=str,
)
def test_sampling_out_of_range_is_refused(options: dict, name: str) -> None:
    with pytest.raises(ValueError, match=f"Sampling.{name}: expected"):
        Sampling(**options)


def test_greedy_sampling_has_no_distribution() -> None:
    with pytest.raises(ValueError, match="expected a temperature above 0"):
        target_probabilities(torch.zeros(1, 4), Sampling())


@pytest.mark.parametrize("drafts", [[], [0, 1], [4], [-1]], ids=str)
def test_rows_and_ids_that_do_not_fit_are_refused(drafts: list[int]) -> None:
    with pytest.raises(ValueError, match="accept: expected"):
        accept_greedy(torch.zeros(2, 4), drafts)
    with pytest.raises(ValueError, match="accept: expected"):
        accept_sampled(P.repeat(2, 1), drafts, generator=torch.Generator())


def test_draft_probabilities_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match=r"draft_probabilities: expected \[1, 4\], got \[2, 4\]"):
        accept_sampled(P.repeat(2, 1), [0], generator=torch.Generator(), draft_probabilities=P.repeat(2, 1))
