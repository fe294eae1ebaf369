"""The nodes' costs against what their references really touch, over the demo model and a context it fills."""

from functools import cache

import pytest
import torch
from torch import Tensor

from circuit import Cost, StateType, Value
from compiler import bind_dims
from drafts.benchmark.sizes import checkpoint_head
from drafts.benchmark.variants import Prepared
from drafts.commands.prompts import demo_checkpoint
from drafts.runner import row_inputs, state_tensors
from tests.compiler.estimate.byte_counter import ByteCounter, TouchedBytes, touched_bytes

CONTEXT = 512  # rows: more than index_topk, so that pools are chosen among
NUM_ROWS = (1, 3)

# nodes whose cost is not exactly what their reference touches: why, and the largest part of the cost that may stay
# untouched, or be read beyond it
LOOSE = {
    "KeyPool": ("the reference reads the row's own place in the tail too, and takes the row from the run", 0.25),
    "SparseMlaAttention": ("a place without a token costs a row, a row that several chose costs once each", 0.02),
    "RoutedExperts": ("the cost is the average under uniform routing; a draw of few rows is not the average", 0.25),
}


@cache
def counted(num_rows: int) -> tuple[TouchedBytes, ...]:
    config, weights = checkpoint_head(demo_checkpoint(), torch.bfloat16)
    prepared = Prepared(config, weights, num_rows=num_rows, context=CONTEXT, drafts=1)
    circuit = prepared.binding.step(is_first=True)
    inputs, states = row_inputs(prepared.rows), state_tensors(prepared.cache)
    extent = {
        "n": num_rows,
        "max_blocks": prepared.rows.block_table.shape[1],
        "num_blocks": prepared.cache.num_blocks,
        "num_sequences": prepared.cache.num_sequences,
        "tail_depth": prepared.cache.tail_depth,
    }
    bound = bind_dims(circuit, extent)
    tensors: dict[Value, Tensor] = {}
    for held, given in ((bound.inputs, inputs), (bound.weights, weights), (bound.states, states)):
        tensors |= {value: given[name] for name, value in held.items()}
    return tuple(touched_bytes(bound, tensors))


def cost_of(one: TouchedBytes) -> Cost:
    return one.call.node.cost(*(arg.type for arg in one.call.args))


@pytest.mark.parametrize("num_rows", NUM_ROWS)
def test_every_call_touches_what_its_cost_says(num_rows: int) -> None:
    for one in counted(num_rows):
        cost, kind = cost_of(one), type(one.call.node).__name__
        slack = LOOSE[kind][1] * cost.bytes_read if kind in LOOSE else 0
        assert abs(cost.bytes_read - one.read) <= slack, f"{kind} {one.call.results[0].name}: {one.read} of {cost}"


@pytest.mark.parametrize("num_rows", NUM_ROWS)
def test_every_call_writes_what_its_cost_says(num_rows: int) -> None:
    for one in counted(num_rows):
        cost, name = cost_of(one), one.call.results[0].name
        if isinstance(one.call.results[0].type, StateType):
            # rows that complete no pool go to the null block, whose bytes may stay what they are
            assert 0 < one.written <= cost.bytes_written, name
        else:
            assert one.written == cost.bytes_written, name


def test_one_row_touches_exactly_its_chosen_experts() -> None:
    (one,) = (one for one in counted(1) if type(one.call.node).__name__ == "RoutedExperts")
    assert one.read == cost_of(one).bytes_read


@pytest.mark.parametrize("num_rows, bound", [(1, 0.001), (3, 0.05)])
def test_a_draft_touches_what_its_plan_says(num_rows: int, bound: float) -> None:
    read = sum(one.read for one in counted(num_rows))
    planned = sum(cost_of(one).bytes_read for one in counted(num_rows))
    # several rows: 3 % off here, all of it in the experts that these rows happen to choose
    assert read == pytest.approx(planned, rel=bound)


def test_the_counter_counts_a_gathered_row_once() -> None:
    table, rows = torch.arange(12.0).reshape(4, 3), torch.tensor([2, 2, 0])
    with ByteCounter([table]) as counter:
        _ = table[rows] + 1
        _ = table.view(2, 6)
    assert list(counter.bytes_read.values()) == [2 * 3 * 4]
    with ByteCounter([table]) as counter:
        _ = table.t()[:, 1:] * 2
    assert list(counter.bytes_read.values()) == [3 * 3 * 4]
