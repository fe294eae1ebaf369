"""Binding dims and laying out memory."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from circuit import Circuit, StateType, TensorType, TypeRuleError, f32, i64, interpret, to_text, verify
from compiler.passes import bind_dims, plan_memory
from compiler.passes.plan_memory import ALIGNMENT
from nodes import Add, AppendCache, Concat, Linear


def ladder(widths: list[int], *, skips: list[int]) -> Circuit:
    """Linears of the given widths one after another; skip i joins the input of Linear i to its output."""
    circuit = Circuit("ladder")
    value = circuit.input("x", f32("n", widths[0]))
    for index, width in enumerate(widths[1:]):
        before, fan_in = value, value.type.shape[1]  # type: ignore[union-attr]
        value = Linear()(value, circuit.weight(f"w{index}", f32(width, fan_in)))
        if index in skips:
            value = Concat()(before, value)
    circuit.output("y", value)
    return circuit


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 70), min_size=2, max_size=9), st.lists(st.integers(0, 8)), st.integers(1, 5))
def test_values_alive_together_share_no_byte(widths: list[int], skips: list[int], rows: int) -> None:
    circuit = bind_dims(ladder(widths, skips=skips), {"n": rows})
    plan = plan_memory(circuit)
    assert set(plan.buffers) == {value for call in circuit.calls for value in call.results}
    buffers = list(plan.buffers.values())
    for index, one in enumerate(buffers):
        assert one.offset % ALIGNMENT == 0
        assert one.offset + one.num_bytes <= plan.arena_bytes
        for other in buffers[index + 1 :]:
            if one.first_call <= other.last_call and other.first_call <= one.last_call:
                assert one.offset + one.num_bytes <= other.offset or other.offset + other.num_bytes <= one.offset


def test_dead_values_make_room_and_outputs_stay() -> None:
    circuit = bind_dims(ladder([16, 16, 16, 16, 16], skips=[]), {"n": 1})
    plan = plan_memory(circuit)
    # two of the four 64-byte rows at a time
    assert plan.arena_bytes == 2 * 64
    last = plan.buffers[circuit.outputs["y"]]
    assert last.last_call == len(circuit.calls)


def test_state_versions_lie_where_their_state_does() -> None:
    circuit = Circuit("writes")
    state = circuit.state("cache", StateType("paged", TensorType.parse("f32[3, 4, 5]")))
    rows, slots = circuit.input("rows", f32(2, 5)), circuit.input("slots", i64(2))
    first = AppendCache()(state, rows, slots)
    second = AppendCache()(first, Add()(rows, rows), slots)
    circuit.state_output("cache", second)
    verify(circuit)
    plan = plan_memory(circuit)
    assert plan.in_place == {first: state, second: state}
    assert first not in plan.buffers


def test_binding_changes_types_only() -> None:
    circuit = ladder([7, 3, 5], skips=[1])
    bound = bind_dims(circuit, {"n": 3, "unused": 9})
    verify(bound)
    assert to_text(bound) == to_text(circuit).replace("n,", "3,")
    inputs = {"x": torch.randn(3, 7)}
    weights = {name: torch.randn(*value.type.sizes()) for name, value in bound.weights.items()}  # type: ignore[union-attr]
    results = [interpret(each, inputs=inputs, weights=weights, states={}).outputs["y"] for each in (circuit, bound)]
    assert torch.equal(*results)


def test_open_dims_are_refused() -> None:
    with pytest.raises(TypeRuleError, match="n not bound"):
        plan_memory(ladder([4, 4], skips=[]))
