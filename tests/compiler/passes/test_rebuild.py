"""rebuild: cuts become inputs, replaced values are read as others, and every state write stays."""

from __future__ import annotations

import pytest
import torch

from circuit import Circuit, CircuitError, StateType, f32, interpret, verify
from compiler.passes.rebuild import rebuild
from tests.support.toy_nodes import ToyAdd, ToyMinMax, ToyScale, ToyWrite, toy_circuit, toy_tensors


def line() -> Circuit:
    """x -> twice -> thrice -> y, each named."""
    circuit = Circuit("line")
    x = circuit.input("x", f32("n", 8))
    twice = ToyScale(factor=2.0)(x).named("twice")
    thrice = ToyScale(factor=3.0)(twice).named("thrice")
    circuit.output("y", ToyAdd()(thrice, twice).named("sum"))
    return circuit


def run(circuit: Circuit, **inputs: torch.Tensor) -> torch.Tensor:
    return interpret(circuit, inputs=inputs, weights={}, states={}).outputs["y"]


def test_cut_value_becomes_an_input_of_its_name_and_its_makers_go() -> None:
    circuit = line()
    made = rebuild(circuit, "cut", outputs=circuit.outputs, cuts=(circuit.value("twice"),))
    verify(made)
    assert list(made.inputs) == ["twice"]
    assert [value.name for call in made.calls for value in call.results] == ["thrice", "sum"]
    x = torch.randn(3, 8)
    assert torch.equal(run(made, twice=x * 2.0), run(circuit, x=x))


def test_cut_input_stays_the_input_it_is() -> None:
    circuit = line()
    made = rebuild(circuit, "cut", outputs=circuit.outputs, cuts=(circuit.inputs["x"],))
    assert list(made.inputs) == ["x"]
    assert len(made.calls) == 3


def test_cut_that_nothing_needs_is_no_input() -> None:
    circuit = line()
    made = rebuild(circuit, "cut", outputs={"y": circuit.value("twice")}, cuts=(circuit.value("thrice"),))
    assert list(made.inputs) == ["x"]


def test_cut_output_is_handed_through() -> None:
    circuit = line()
    made = rebuild(circuit, "cut", outputs={"y": circuit.value("twice")}, cuts=(circuit.value("twice"),))
    assert made.calls == []
    assert made.outputs["y"] is made.inputs["twice"]


def test_half_cut_call_is_refused_when_the_other_half_is_needed() -> None:
    circuit = Circuit("halves")
    x, y = circuit.input("x", f32("n", 8)), circuit.input("y", f32("n", 8))
    least, most = ToyMinMax()(x, y)
    circuit.output("y", ToyAdd()(least.named("least"), most.named("most")))
    with pytest.raises(CircuitError, match="is cut and needed all the same; cut all its results"):
        rebuild(circuit, "cut", outputs=circuit.outputs, cuts=(circuit.value("least"),))
    both = (circuit.value("least"), circuit.value("most"))
    assert list(rebuild(circuit, "cut", outputs=circuit.outputs, cuts=both).inputs) == ["least", "most"]


def test_state_cannot_be_cut() -> None:
    circuit = toy_circuit()
    with pytest.raises(CircuitError, match="states are threaded, not fed back"):
        rebuild(circuit, "cut", outputs=circuit.outputs, cuts=(circuit.value("next_cache"),))


def test_replaced_value_is_read_as_the_other_and_its_makers_go() -> None:
    circuit = line()
    replaced = {circuit.value("thrice"): circuit.value("twice")}
    made = rebuild(circuit, "bypass", outputs=circuit.outputs, replaced=replaced)
    verify(made)
    assert [value.name for call in made.calls for value in call.results] == ["twice", "sum"]
    x = torch.randn(3, 8)
    assert torch.equal(run(made, x=x), x * 2.0 + x * 2.0)


def test_replaced_output_is_the_other_value() -> None:
    circuit = line()
    made = rebuild(
        circuit,
        "bypass",
        outputs={"y": circuit.value("thrice")},
        replaced={circuit.value("thrice"): circuit.value("twice")},
    )
    assert made.outputs["y"].name == "twice"


def test_replacement_that_is_replaced_itself_is_followed_to_the_end() -> None:
    circuit = line()
    x, twice, thrice = circuit.inputs["x"], circuit.value("twice"), circuit.value("thrice")
    for replaced in ({thrice: twice, twice: x}, {twice: x, thrice: twice}):
        made = rebuild(circuit, "bypass", outputs=circuit.outputs, replaced=replaced)
        assert [value.name for call in made.calls for value in call.results] == ["sum"]
        rows = torch.randn(3, 8)
        assert torch.equal(run(made, x=rows), rows + rows)


def test_replacement_made_later_is_refused() -> None:
    circuit = line()
    for later in ("thrice", "twice"):
        replaced = {circuit.value("twice"): circuit.value(later)}
        with pytest.raises(CircuitError, match="which is made later"):
            rebuild(circuit, "bypass", outputs=circuit.outputs, replaced=replaced)


def test_replacement_of_another_type_is_refused() -> None:
    circuit = line()
    narrow = circuit.input("narrow", f32("n", 4))
    with pytest.raises(CircuitError, match=r"%twice: f32\[n, 8\] cannot be replaced by %narrow: f32\[n, 4\]"):
        rebuild(circuit, "bypass", outputs=circuit.outputs, replaced={circuit.value("twice"): narrow})


def test_write_stays_without_any_output() -> None:
    circuit = toy_circuit()
    made = rebuild(circuit, "writes", outputs={})
    verify(made)
    tensors = toy_tensors()
    kept = {name: tensors["inputs"][name] for name in made.inputs}
    got = interpret(made, inputs=kept, weights={}, states=tensors["states"])
    assert got.outputs == {}
    assert list(made.weights) == []
    assert torch.equal(got.states["cache"], interpret(circuit, **tensors).states["cache"])


def test_two_writes_of_a_state_both_stay() -> None:
    circuit = Circuit("twice")
    x = circuit.input("x", f32("n", 8))
    first, _ = ToyWrite()(circuit.state("cache", StateType("paged", f32("num_blocks", 4, 8), 2)), x)
    second, _ = ToyWrite()(first, ToyScale(factor=2.0)(x))
    circuit.state_output("cache", second)
    made = rebuild(circuit, "writes", outputs={})
    assert len(made.calls) == 3
    states = {"cache": torch.zeros(2, 4, 8)}
    x_rows = torch.ones(1, 8)
    got = interpret(made, inputs={"x": x_rows}, weights={}, states=states)
    assert torch.equal(got.states["cache"], torch.full((2, 4, 8), 3.0))
