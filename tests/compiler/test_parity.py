"""compare_edges: floats by relative L2, discrete edges as sets, and nothing equal by accident."""

from __future__ import annotations

import math

import pytest
import torch

from compiler import Bound, bound_for, compare_edges, worst_edge

BOUND = Bound(1e-5, "test")
NAN, INF = float("nan"), float("inf")


def one(ours: torch.Tensor, theirs: torch.Tensor, bound: Bound = BOUND):  # type: ignore[no-untyped-def]
    [difference] = compare_edges({"edge": ours}, {"edge": theirs}, step=2, bound=bound)
    return difference


def test_equal_floats_are_bitwise_equal_and_say_where_they_are() -> None:
    x = torch.randn(3, 5)
    difference = one(x, x.clone())
    assert difference.is_bitwise_equal
    assert difference.is_within_bound
    assert (difference.edge, difference.step, difference.dtype) == ("edge", 2, "float32")
    assert difference.shape == (3, 5)
    assert (difference.max_abs, difference.relative_l2, difference.num_different) == (0.0, 0.0, 0)


def test_worst_index_and_relative_distance_are_those_of_the_change() -> None:
    x = torch.ones(3, 4)
    y = x.clone()
    y[2, 1] += 0.5
    y[0, 0] += 0.25
    difference = one(y, x)
    assert difference.worst_index == (2, 1)
    assert difference.max_abs == 0.5
    assert difference.relative_l2 == pytest.approx(math.sqrt(0.25 + 0.0625) / math.sqrt(12))
    assert difference.num_different == 2
    assert not difference.is_within_bound


@pytest.mark.parametrize("scale, is_within", [(0.9e-5, True), (1.1e-5, False)])
def test_bound_is_on_the_relative_distance(scale: float, is_within: bool) -> None:
    x = torch.randn(100, dtype=torch.float64) * 1e6
    assert one(x * (1 + scale), x).is_within_bound is is_within
    assert not one(x * (1 + scale), x).is_bitwise_equal


@pytest.mark.parametrize(
    "ours, theirs, is_within",
    [
        (NAN, NAN, True),
        (INF, INF, True),
        (-INF, -INF, True),
        (NAN, 1.0, False),
        (1.0, NAN, False),
        (INF, -INF, False),
        (INF, 1.0, False),
        (1.0, INF, False),
        (INF, NAN, False),
    ],
)
def test_nan_and_infinity_equal_only_themselves(ours: float, theirs: float, is_within: bool) -> None:
    difference = one(torch.tensor([1.0, ours]), torch.tensor([1.0, theirs]))
    assert difference.is_within_bound is is_within
    assert difference.is_bitwise_equal is is_within
    if not is_within:
        assert difference.relative_l2 == INF
        assert difference.worst_index == (1,)


def test_anything_against_zeros_is_infinitely_far() -> None:
    assert one(torch.tensor([1e-30]), torch.zeros(1)).relative_l2 == INF
    assert one(torch.zeros(1), torch.zeros(1)).is_within_bound


def test_other_dtype_shape_or_kind_is_out_of_bound() -> None:
    x = torch.ones(2, 3)
    assert not one(x.double(), x).is_within_bound
    for theirs in (torch.ones(3, 2), torch.ones(6), torch.ones(2, 3, dtype=torch.int64)):
        difference = one(x, theirs)
        assert not difference.is_within_bound
        assert difference.relative_l2 == INF


def test_discrete_edges_are_compared_as_sets_per_row_without_padding() -> None:
    ours = torch.tensor([[3, 1, -1], [5, -1, -1], [2, 4, 6]])
    theirs = torch.tensor([[1, 3, -1, -1], [5, -1, -1, -1], [2, 4, 7, -1]])
    difference = one(ours, theirs)
    assert difference.num_different == 1
    assert difference.worst_index == (2,)
    assert not difference.is_within_bound
    assert one(ours[:2], theirs[:2]).is_within_bound
    assert not one(ours, theirs[:2]).is_within_bound


def test_token_ids_that_differ_are_seen() -> None:
    assert one(torch.tensor([3]), torch.tensor([3])).is_bitwise_equal
    assert one(torch.tensor([3]), torch.tensor([4])).num_different == 1


def test_empty_edges_are_equal() -> None:
    assert one(torch.empty(0, 4), torch.empty(0, 4)).is_within_bound
    for shape in ((0,), (0, 3), (3, 0)):
        ids = torch.empty(shape, dtype=torch.int64)
        assert one(ids, ids.clone()).is_within_bound
    assert one(torch.tensor(3), torch.tensor(3)).is_within_bound
    assert not one(torch.tensor(3), torch.tensor(4)).is_within_bound


def test_edges_are_those_in_common_in_the_order_of_the_first() -> None:
    x = torch.ones(1)
    names = [d.edge for d in compare_edges({"b": x, "a": x, "c": x}, {"a": x, "b": x, "d": x}, step=0, bound=BOUND)]
    assert names == ["b", "a"]


def test_nothing_in_common_is_an_error() -> None:
    with pytest.raises(ValueError, match="expected common edges"):
        compare_edges({"a": torch.ones(1)}, {"b": torch.ones(1)}, step=0, bound=BOUND)


def test_worst_edge_is_the_first_out_of_bound_else_the_farthest() -> None:
    x = torch.ones(4)
    ours = {"near": x * (1 + 1e-6), "nearer": x * (1 + 1e-7), "first": x * 1.1, "second": x * 2}
    found = compare_edges(ours, dict.fromkeys(ours, x), step=0, bound=BOUND)
    first = worst_edge(found)
    assert first is not None
    assert first.edge == "first"
    farthest = worst_edge(found[:2])
    assert farthest is not None
    assert farthest.edge == "near"
    assert worst_edge([]) is None


def test_bounds_follow_the_dtype_and_carry_their_reason() -> None:
    assert bound_for(torch.float32).relative_l2 < bound_for(torch.bfloat16).relative_l2
    assert bound_for(torch.float16) == bound_for(torch.bfloat16)
    assert all(bound_for(dtype).reason for dtype in (torch.float32, torch.bfloat16))
