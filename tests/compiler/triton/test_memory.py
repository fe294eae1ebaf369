"""Where inputs of a launch program lie, and how those on the host reach it: in one copy, each after the one before."""

from __future__ import annotations

import pytest
import torch

from compiler.triton.memory import Memory
from tests.support.fake_cuda import toy_plan


class Reads:
    """Stands in for the event of the last copy: whoever writes into the mirror must have waited for it."""

    def __init__(self, memory: Memory) -> None:
        self.memory, self.log = memory, []

    def synchronize(self) -> None:
        self.log.append(("waited", self.memory._mirror.clone()))

    def record(self) -> None:
        self.log.append(("recorded", self.memory._mirror.clone()))


@pytest.fixture
def memory() -> Memory:
    memory = Memory(toy_plan(), device=torch.device("cpu"))
    # pinned memory is to be had with a device only
    memory._mirror = torch.zeros(memory.inputs.shape, dtype=torch.uint8)
    memory._mirror_is_read = Reads(memory)  # type: ignore[assignment]
    return memory


def test_inputs_on_the_host_cross_in_one_copy(memory: Memory) -> None:
    plan = memory.plan
    given = {
        "token": torch.tensor([3, 4]),
        "position": torch.tensor([7, 6]),
        "block_table": torch.tensor([[1, 2], [3, 4]]).T,
        "target_hidden": torch.arange(6.0).reshape(3, 2).T,
    }
    memory._feed_from_host(given)
    for name, tensor in given.items():
        assert torch.equal(memory.tensor(plan.inputs[name]), tensor)


def test_mirror_is_written_only_when_the_copy_before_has_read_it(memory: Memory) -> None:
    reads = memory._mirror_is_read
    assert isinstance(reads, Reads)
    for value in (1, 2):
        memory._feed_from_host({"token": torch.full((2,), value)})
    assert [what for what, _ in reads.log] == ["waited", "recorded"] * 2
    assert torch.equal(reads.log[1][1], reads.log[2][1])
    assert not torch.equal(reads.log[2][1], reads.log[3][1])


def test_input_outside_the_span_that_is_copied_stays(memory: Memory) -> None:
    hidden = memory.tensor(memory.plan.inputs["target_hidden"]).fill_(9.0)
    memory._feed_from_host({"token": torch.tensor([3, 4])})
    assert hidden.eq(9.0).all()


def test_integers_come_first_and_every_input_is_aligned(memory: Memory) -> None:
    starts = memory._input_starts
    assert max(starts, key=lambda name: starts[name]) == "target_hidden"
    assert all(start % 16 == 0 for start in starts.values())
