"""remove_dead_code: what nothing needs is gone, what anything needs computes the same bits."""

from __future__ import annotations

import torch

from circuit import Circuit, StateType, diff, f32, interpret, to_text, verify
from compiler import remove_dead_code
from tests.support.toy_nodes import ToyAdd, ToyGain, ToyMinMax, ToyScale, ToyWrite, toy_circuit, toy_tensors


def test_circuit_without_dead_code_is_copied_as_it_is() -> None:
    circuit = toy_circuit()
    copy = remove_dead_code(circuit)
    assert copy is not circuit
    assert to_text(copy) == to_text(circuit)
    assert not diff(circuit, copy)


def test_unread_calls_weights_and_inputs_are_gone_and_the_rest_is_bitwise_the_same() -> None:
    circuit = toy_circuit()
    x, scaled = circuit.inputs["x"], circuit.value("scaled")
    unread = ToyGain()(ToyAdd()(x, scaled), circuit.weight("unread_gain", f32(8)))
    ToyAdd()(unread, circuit.input("unread_input", f32("n", 8)))
    cleaned = remove_dead_code(circuit)
    verify(cleaned)
    assert to_text(cleaned) == to_text(toy_circuit())
    tensors = toy_tensors()
    expected = interpret(toy_circuit(), **tensors)
    got = interpret(cleaned, **tensors)
    for name, tensor in expected.outputs.items():
        assert torch.equal(got.outputs[name], tensor)
    assert torch.equal(got.states["cache"], expected.states["cache"])


def test_write_that_no_output_reads_stays_with_all_that_feeds_it() -> None:
    circuit = Circuit("writes")
    x = circuit.input("x", f32("n", 8))
    cache = circuit.state("cache", StateType("paged", f32("num_blocks", 4, 8), 2))
    rows = ToyGain()(ToyScale(factor=2.0)(x).named("scaled"), circuit.weight("gain", f32(8))).named("rows")
    next_cache, _ = ToyWrite()(cache, rows)
    circuit.state_output("cache", next_cache)
    circuit.output("other", ToyScale(factor=3.0)(x).named("other"))
    cleaned = remove_dead_code(circuit)
    assert [value.name for call in cleaned.calls for value in call.results][:2] == ["scaled", "rows"]
    assert list(cleaned.weights) == ["gain"]
    assert list(cleaned.state_outputs) == ["cache"]


def test_state_that_is_never_written_stays() -> None:
    circuit = Circuit("reads")
    cache = circuit.state("cache", StateType("paged", f32("num_blocks", 4, 8), 2))
    circuit.output("x", circuit.input("x", f32("n", 8)))
    circuit.state_output("cache", cache)
    cleaned = remove_dead_code(circuit)
    assert cleaned.state_outputs["cache"] is cleaned.states["cache"]
    assert cleaned.outputs["x"] is cleaned.inputs["x"]


def test_call_with_one_needed_result_keeps_both() -> None:
    circuit = Circuit("halves")
    x, y = circuit.input("x", f32("n", 8)), circuit.input("y", f32("n", 8))
    least, most = ToyMinMax()(x, y)
    circuit.output("most", most.named("most"))
    least.named("least")
    [call] = remove_dead_code(circuit).calls
    assert [value.name for value in call.results] == ["least", "most"]


def test_names_blocks_and_order_survive() -> None:
    circuit = toy_circuit()
    cleaned = remove_dead_code(circuit)
    assert [str(call) for call in cleaned.calls] == [str(call) for call in circuit.calls]
    assert [call.block for call in cleaned.calls] == [call.block for call in circuit.calls]
    assert cleaned.name == circuit.name
