import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from nodes import AppendTail
from tests.support.node_cases import same_bits
from tests.support.sequence_runs import SPANS, sequence_run


@pytest.mark.parametrize("depth", [1, 4, 5, 20])
@pytest.mark.parametrize("spans", SPANS.values(), ids=SPANS)
def test_append_tail_leaves_the_newest_rows_of_each_sequence(spans: list[tuple[int, int]], depth: int) -> None:
    run = sequence_run(spans, depth=depth, dtype=torch.bfloat16)
    got = AppendTail().reference(run.tail, run.run_keys, run.run_gates, run.position, run.sequence)
    # as if every row, old and new, had been written one after the other
    everything = sequence_run([(before + count, 0) for before, count in spans], depth=depth, dtype=torch.bfloat16)
    torch.testing.assert_close(everything.keys, run.keys)
    assert same_bits(got[1:], everything.tail[1:])


def test_append_tail_puts_the_key_before_the_gate() -> None:
    tail = torch.zeros(2, 3, 2, 1)
    position, sequence = torch.tensor([4]), torch.tensor([1])
    got = AppendTail().reference(tail, torch.tensor([[7.0]]), torch.tensor([[9.0]]), position, sequence)
    assert got[1].squeeze(-1).tolist() == [[0.0, 0.0], [7.0, 9.0], [0.0, 0.0]]


def test_append_tail_null_rows_touch_nobody() -> None:
    run = sequence_run([(3, 2), (0, 2)], depth=4)
    null = torch.zeros(5, dtype=torch.int64)
    rubbish = torch.full((5, 5), float("nan"))
    got = AppendTail().reference(
        run.tail,
        torch.cat([run.run_keys, rubbish]),
        torch.cat([run.run_gates, rubbish]),
        torch.cat([run.position, torch.tensor([0, 1, 2, 3, 3])]),
        torch.cat([run.sequence, null]),
    )
    without = AppendTail().reference(run.tail, run.run_keys, run.run_gates, run.position, run.sequence)
    assert same_bits(got[1:], without[1:])


class WrittenEntries(TorchDispatchMode):
    """Collects (sequence, ring entry) of every element that index_put writes."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[tuple[int, int]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.index_put.default:
            self.entries += zip(*(index.tolist() for index in args[1]), strict=True)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("spans", SPANS.values(), ids=SPANS)
def test_append_tail_writes_no_live_entry_twice(spans: list[tuple[int, int]]) -> None:
    # which of two writes to one place stays is left open by index_put: it is the last on a CPU, any on a GPU
    run = sequence_run(spans, depth=4)
    with WrittenEntries() as written:
        AppendTail().reference(run.tail, run.run_keys, run.run_gates, run.position, run.sequence)
    assert len(written.entries) == len(run.position)
    live = [entry for entry in written.entries if entry[0] != 0]
    assert len(set(live)) == len(live) == sum(min(count, 4) for _, count in spans)
