"""AllReduce, AllGather, ArgmaxExchange and the two local halves, beside the nodes that they split."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from circuit import Node, TensorType, communicating
from nodes import AllGather, AllReduce, Argmax, ArgmaxExchange, LocalArgmax, LocalExperts, RoutedExperts

NAN, INF = math.nan, math.inf


class Recorded:
    """A communicator that hands out what every rank is known to hand in."""

    def __init__(self, rank: int, parts: list[Tensor]) -> None:
        self.rank, self.parts, self.num_ranks = rank, parts, len(parts)

    def _check(self, tensor: Tensor) -> None:
        assert torch.equal(tensor.nan_to_num(7.0), self.parts[self.rank].nan_to_num(7.0))

    def all_reduce(self, tensor: Tensor) -> Tensor:
        self._check(tensor)
        return torch.stack(self.parts).sum(0)

    def all_gather(self, tensor: Tensor) -> Tensor:
        self._check(tensor)
        return torch.stack(self.parts)


def test_all_reduce_adds_and_leaves_its_argument() -> None:
    parts = [torch.full((3, 7), float(rank)) for rank in range(3)]
    with communicating({"ep": Recorded(1, parts)}):
        total = AllReduce(axis="ep", num_ranks=3).reference(parts[1])
    assert torch.equal(total, torch.full((3, 7), 3.0))
    assert torch.equal(parts[1], torch.ones(3, 7))


@pytest.mark.parametrize("lead", [(), (3,), (2, 3)])
def test_all_gather_joins_the_last_dims_in_the_order_of_ranks(lead: tuple[int, ...]) -> None:
    whole = torch.arange(math.prod(lead) * 10.0).reshape(*lead, 10)
    parts = list(whole.chunk(2, dim=-1))
    with communicating({"tp": Recorded(0, parts)}):
        gathered = AllGather(axis="tp", num_ranks=2).reference(parts[0])
    assert torch.equal(gathered, whole)


# 3 ranks of 2 tokens
LOGITS = {
    "apart": [1.0, 2.0, 5.0, 3.0, 4.0, 0.0],
    "tie within a rank": [1.0, 2.0, 5.0, 5.0, 4.0, 0.0],
    "tie across ranks": [1.0, 5.0, 0.0, 5.0, 5.0, 0.0],
    "tie of the last two ranks": [0.0, 0.0, 1.0, 7.0, 7.0, 7.0],
    "all equal": [0.0] * 6,
    "zeros of both signs": [-0.0, -0.0, 0.0, -0.0, 0.0, 0.0],
    "all masked": [-INF] * 6,
    "one allowed": [-INF, -INF, -INF, -INF, -INF, 3.0],
    "infinity": [1.0, INF, 2.0, INF, 0.0, 0.0],
    "nan on one rank": [1.0, INF, 2.0, NAN, NAN, 0.0],
    "nan on two": [1.0, 2.0, NAN, 2.0, NAN, INF],
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("logits", LOGITS.values(), ids=list(LOGITS))
def test_exchange_is_the_argmax_of_the_whole_on_every_rank(logits: list[float], dtype: torch.dtype) -> None:
    whole = torch.tensor([logits, [*reversed(logits)]], dtype=dtype)
    expected = Argmax().reference(whole)
    halves = [LocalArgmax(first=2 * rank).reference(part) for rank, part in enumerate(whole.chunk(3, dim=1))]
    pairs = [torch.stack((value.double(), token.double()), dim=1) for value, token in halves]
    for rank, half in enumerate(halves):
        with communicating({"tp": Recorded(rank, pairs)}):
            assert torch.equal(ArgmaxExchange(axis="tp", num_ranks=3).reference(*half), expected)
    # the lowest id wins whatever order the ranks come in
    turned = [pairs[2], pairs[0], pairs[1]]
    with communicating({"tp": Recorded(1, turned)}):
        assert torch.equal(ArgmaxExchange(axis="tp", num_ranks=3).reference(*halves[0]), expected)


def test_token_ids_beyond_a_float_are_exact() -> None:
    token = torch.tensor([2**24 + 1])
    pairs = [torch.tensor([[1.0, float(2**24 + 1)]], dtype=torch.float64), torch.tensor([[1.0, 2.0**31]]).double()]
    with communicating({"tp": Recorded(0, pairs)}):
        assert torch.equal(ArgmaxExchange(axis="tp", num_ranks=2).reference(torch.ones(1), token), token)


RANGES = {
    "halves": [(0, 3), (3, 6)],
    "uneven, one empty": [(0, 4), (4, 4), (4, 6)],
    "one each": [(e, e + 1) for e in range(6)],
}


@pytest.mark.parametrize("ranges", RANGES.values(), ids=list(RANGES))
def test_local_experts_add_up_to_the_routed_experts(ranges: list[tuple[int, int]]) -> None:
    torch.manual_seed(3)
    x, weights = torch.randn(5, 7), torch.rand(5, 2)
    ids = torch.tensor([[0, 1], [4, 5], [2, 3], [0, 5], [1, 2]])
    gate_up, down = torch.randn(6, 6, 7), torch.randn(6, 7, 3)
    whole = RoutedExperts(limit=1.5).reference(x, ids, weights, gate_up, down)
    total = torch.zeros_like(whole)
    for start, stop in ranges:
        node = LocalExperts(limit=1.5, first=start, num_experts=6)
        part = node.reference(x, ids, weights, gate_up[start:stop], down[start:stop])
        is_idle = ~((ids >= start) & (ids < stop)).any(1)
        assert torch.equal(part[is_idle], torch.zeros_like(part[is_idle])), "a rank without the experts adds zeros"
        total += part
    torch.testing.assert_close(total, whole, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("poison", [NAN, INF])
def test_local_experts_never_let_an_unchosen_expert_show(poison: float) -> None:
    torch.manual_seed(4)
    x, weights = torch.randn(2, 7), torch.rand(2, 2)
    gate_up, down = torch.randn(3, 6, 7), torch.randn(3, 7, 3)
    gate_up[[0, 2]] = poison
    down[[0, 2]] = poison
    # experts 3 .. 5 are here, and of them 4 alone is chosen; 0 and 7 lie on other ranks, on either side
    part = LocalExperts(limit=1.5, first=3, num_experts=9).reference(
        x, torch.tensor([[0, 4], [0, 7]]), weights, gate_up, down
    )
    assert part[0].isfinite().all()
    assert part[0].abs().sum() > 0
    assert torch.equal(part[1], torch.zeros(7))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_local_experts_of_a_rank_without_any_are_zeros(dtype: torch.dtype) -> None:
    part = LocalExperts(limit=1.5, first=3, num_experts=3).reference(
        torch.ones(2, 7, dtype=dtype),
        torch.tensor([[0, 2], [1, 2]]),
        torch.ones(2, 2),
        torch.ones(0, 6, 7, dtype=dtype),
        torch.ones(0, 7, 3, dtype=dtype),
    )
    assert part.dtype == dtype
    assert torch.equal(part, torch.zeros(2, 7, dtype=dtype))


class Seen:
    """A communicator of two alike ranks that keeps what is handed in."""

    rank, num_ranks = 0, 2

    def __init__(self) -> None:
        self.handed_in: list[Tensor] = []

    def all_reduce(self, tensor: Tensor) -> Tensor:
        self.handed_in.append(tensor)
        return 2 * tensor

    def all_gather(self, tensor: Tensor) -> Tensor:
        self.handed_in.append(tensor)
        return torch.stack((tensor, tensor))


@pytest.mark.parametrize(
    "node, tensors",
    [
        (AllReduce(axis="tp", num_ranks=2), (torch.ones(3, 7, dtype=torch.bfloat16),)),
        (AllGather(axis="tp", num_ranks=2), (torch.ones(3, 7),)),
        (ArgmaxExchange(axis="tp", num_ranks=2), (torch.ones(3, dtype=torch.bfloat16), torch.arange(3))),
    ],
    ids=lambda value: type(value).__name__,
)
def test_payload_is_what_a_rank_hands_in(node: Node, tensors: tuple[Tensor, ...]) -> None:
    seen = Seen()
    with communicating({"tp": seen}):
        node.reference(*tensors)
    (handed_in,) = seen.handed_in
    payload = node.payload(*(TensorType.of(tensor.dtype, *tensor.shape) for tensor in tensors))
    assert payload == TensorType.of(handed_in.dtype, *handed_in.shape)


def test_local_experts_of_one_rank_are_bitwise_the_routed_experts() -> None:
    torch.manual_seed(5)
    arguments = (
        torch.randn(4, 7),
        torch.tensor([[0, 2]] * 4),
        torch.rand(4, 2),
        torch.randn(3, 6, 7),
        torch.randn(3, 7, 3),
    )
    whole = RoutedExperts(limit=1.5).reference(*arguments)
    assert torch.equal(LocalExperts(limit=1.5, first=0, num_experts=3).reference(*arguments), whole)
