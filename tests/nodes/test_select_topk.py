import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nodes import SelectTopk

INF = float("inf")


def select(scores: list[float], position: int, *, topk: int, pool: int) -> list[int]:
    rows = SelectTopk(topk=topk, pool=pool).reference(torch.tensor([scores]).reshape(1, -1), torch.tensor([position]))
    return rows[0].tolist()


def brute_force(scores: list[float], position: int, *, topk: int, pool: int) -> list[int]:
    ranked = sorted((number for number, score in enumerate(scores) if score > -INF), key=lambda p: (-scores[p], p))
    budget = topk // pool
    tokens = [p * pool + slot for p in sorted(ranked[:budget]) for slot in range(pool)]
    newest = list(range((position + 1) // pool * pool, position + 1))
    return tokens + [-1] * (budget * pool - len(tokens)) + newest + [-1] * (pool - 1 - len(newest))


@st.composite
def selections(draw: st.DrawFn) -> tuple[list[float], int, int, int]:
    pool = draw(st.integers(1, 5))
    num_pools = draw(st.integers(0, 9))
    position = draw(st.integers(0, num_pools * pool + pool - 1))
    complete = min((position + 1) // pool, num_pools)
    few_values = st.sampled_from([-2.0, -0.0, 0.0, 1.5, -INF])
    scores = draw(st.lists(few_values | st.floats(-1, 1, width=32), min_size=complete, max_size=complete))
    return scores + [-INF] * (num_pools - complete), position, draw(st.integers(1, 23)), pool


@settings(max_examples=300, deadline=None, derandomize=True)
@given(selections())
def test_select_topk_equals_brute_force(selection: tuple[list[float], int, int, int]) -> None:
    scores, position, topk, pool = selection
    assert select(scores, position, topk=topk, pool=pool) == brute_force(scores, position, topk=topk, pool=pool)


@pytest.mark.parametrize("pool", [1, 2, 3, 4])
@pytest.mark.parametrize("topk", [1, 4, 6, 11])
def test_select_topk_has_the_count_of_the_formula(topk: int, pool: int) -> None:
    for position in range(5 * pool):
        visible = position + 1
        scores = [-1.0 if (p + 1) * pool <= visible else -INF for p in range(5)]
        ids = select(scores, position, topk=topk, pool=pool)
        valid = [token for token in ids if token >= 0]
        assert len(valid) == min(visible // pool, topk // pool) * pool + visible % pool
        assert len(set(valid)) == len(valid)
        assert max(valid, default=0) <= position
        assert set(ids) - set(valid) <= {-1}
        assert len(ids) == topk // pool * pool + pool - 1


@pytest.mark.parametrize(
    "scores, chosen_pools",
    [
        pytest.param([1.0] * 5, [0, 1], id="all_equal"),
        pytest.param([0.0, 3.0, 1.0, 3.0, 3.0], [1, 3], id="lowest_of_three"),
        pytest.param([2.0, 1.0, 5.0, 1.0, 1.0], [0, 2], id="ascending_not_by_score"),
        pytest.param([-3.0, -1.0, -2.0, -5.0, -4.0], [1, 2], id="all_negative"),
        pytest.param([-0.0, 0.0, -0.0, 0.0, 0.0], [0, 1], id="zeros_are_equal"),
        pytest.param([-INF, -INF, -7.0, -INF, -INF], [2], id="fewer_than_the_budget"),
        pytest.param([-INF] * 5, [], id="none"),
        pytest.param([0.0, INF, 1.0, float("nan"), 2.0], [1, 3], id="nan_ranks_highest"),
    ],
)
def test_select_topk_chooses(scores: list[float], chosen_pools: list[int]) -> None:
    ids = select(scores, 9, topk=5, pool=2)
    tokens = [token for pool in chosen_pools for token in (2 * pool, 2 * pool + 1)]
    assert ids == tokens + [-1] * (4 - len(tokens)) + [-1]


def test_select_topk_lowest_wins_a_tie_among_many_pools() -> None:
    # more than the 16 elements up to which an unstable sort is an insertion sort
    scores = torch.zeros(2, 5000)
    scores[1, ::7] = 1.0
    ids = SelectTopk(topk=600, pool=1).reference(scores, torch.tensor([4999, 4999]))
    assert ids[0].tolist() == list(range(600))
    assert ids[1].tolist() == list(range(0, 4200, 7))


def test_select_topk_row_that_completes_a_pool_has_no_tail() -> None:
    scores = [9.0, 8.0, 1.0]
    assert select(scores, 11, topk=8, pool=4) == [0, 1, 2, 3, 4, 5, 6, 7, -1, -1, -1]
    assert select([9.0, 8.0, -INF], 10, topk=8, pool=4) == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]


def test_select_topk_rows_are_independent() -> None:
    scores = torch.tensor([[1.0, 2.0, -INF], [-INF, -INF, -INF], [1.0, 0.0, 5.0]])
    ids = SelectTopk(topk=2, pool=2).reference(scores, torch.tensor([4, 0, 5]))
    assert ids.tolist() == [[2, 3, 4], [-1, -1, 0], [4, 5, -1]]
