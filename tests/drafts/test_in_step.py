"""What frames the calls of a split drafter, on communicators that are scripted: no process, no exchange."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from circuit import RankError, communicator_over
from drafts.in_step import InStep, ScriptedExchange, digest, tensor_digest
from drafts.parallel import ParallelPlan
from drafts.path import Drafts
from drafts.ranks import Ranks

SUM = ScriptedExchange("tp", "all_reduce", (1, 4), torch.float32)


class Echo:
    """A communicator whose other rank hands in what this one does; `breaks_at` is the exchange that is lost."""

    rank, num_ranks = 0, 2

    def __init__(self, breaks_at: int = -1) -> None:
        self.calls: list[tuple[int, ...]] = []
        self.breaks_at = breaks_at

    def _count(self, tensor: Tensor) -> None:
        if len(self.calls) == self.breaks_at:
            raise RankError("another rank is gone")
        self.calls.append(tuple(tensor.shape))

    def all_reduce(self, tensor: Tensor) -> Tensor:
        self._count(tensor)
        return 2 * tensor

    def all_gather(self, tensor: Tensor) -> Tensor:
        self._count(tensor)
        return torch.stack((tensor, tensor))


def in_step(world: Echo, axis: Echo) -> InStep:
    return InStep(Ranks(ParallelPlan(tp=2), 0, world, {"tp": axis}), identity="a drafter")


def sums(count: int, *, shape: tuple[int, ...] = (1, 4)) -> list[Drafts]:
    held = communicator_over("tp", 2, where="test")
    for _ in range(count):
        held.all_reduce(torch.ones(shape))
    return [Drafts(torch.tensor([[1, 2]]))]


def test_run_that_keeps_to_the_script_is_handed_through() -> None:
    world, axis = Echo(), Echo()
    step = in_step(world, axis)
    with step.call("propose"):
        (drafted,) = step.draft({}, [SUM, SUM], lambda: sums(2))
    assert drafted.id_list() == [1, 2]
    assert axis.calls == [(1, 4), (1, 4)]
    assert world.calls == [(11,), (2,)]


def test_whole_drafter_runs_without_a_frame() -> None:
    step = InStep(None, identity="")
    with step.call("propose"):
        assert step.draft({}, (), lambda: []) == []
    with pytest.raises(ZeroDivisionError), step.call("propose"):
        _ = 1 / 0


@pytest.mark.parametrize(
    "count, shape, expected",
    [
        (1, (1, 4), "expected 2 exchanges, got 1; next all_reduce of float32"),
        (3, (1, 4), "exchange 3 of 2: expected none, got all_reduce of float32"),
        (2, (1, 5), r"exchange 1 of 2: expected all_reduce of float32\[1, 4\] along tp, got .*\[1, 5\]"),
    ],
)
def test_run_beside_the_script_is_refused_and_the_script_is_kept(
    count: int, shape: tuple[int, ...], expected: str
) -> None:
    world, axis = Echo(), Echo()
    step = in_step(world, axis)
    with pytest.raises(RankError, match=expected), step.call("propose"):
        step.draft({}, [SUM, SUM], lambda: sums(count, shape=shape))
    # what the other rank waits for came, and nothing else
    assert axis.calls == [(1, 4), (1, 4)]
    assert world.calls == [(11,), (2,)]


def test_lost_exchange_is_not_followed_by_others() -> None:
    world, axis = Echo(), Echo(breaks_at=1)
    step = in_step(world, axis)
    with pytest.raises(RankError, match="another rank is gone"), step.call("propose"):
        step.draft({}, [SUM, SUM, SUM], lambda: sums(3))
    assert axis.calls == [(1, 4)]
    assert world.calls == [(11,)]


@pytest.mark.parametrize("breaks_at", [0, 1])
def test_own_error_stays_when_the_others_cannot_be_told(breaks_at: int) -> None:
    def fail() -> list[Drafts]:
        raise ArithmeticError("of this rank")

    step = in_step(Echo(breaks_at), Echo())
    # a fault of the arguments, and one in the draft
    run = fail if breaks_at == 0 else lambda: step.draft({}, [SUM], fail)
    with pytest.raises(ArithmeticError, match="of this rank") as caught, step.call("propose"):
        run()
    assert any("the other ranks could not be told: another rank is gone" in note for note in caught.value.__notes__)


def test_digests_tell_values_apart_and_are_the_same_elsewhere() -> None:
    assert digest("propose", 3) == digest("propose", 3) != digest("propose", 4)
    assert digest("propose") == 3289852488538229501
    assert 0 <= digest("a") < 1 << 63
    plain = torch.tensor([[0.0, 1.0]])
    assert tensor_digest(plain) == tensor_digest(plain.clone()) != tensor_digest(-plain)
    assert tensor_digest(plain) != tensor_digest(plain.T.contiguous())
    assert tensor_digest(plain.T) == tensor_digest(plain.T.contiguous())
