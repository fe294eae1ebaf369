"""The oracle: what it checks before a run, what it computes, what it shows, and what a failure leaves."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from circuit import BindingError, Circuit, RunResult, StateType, Value, f32, i64, interpret
from tests.support.closeness import assert_close
from tests.support.nan_empty import nan_filled_empty
from tests.support.node_cases import same_bits
from tests.support.toy_nodes import (
    Tensors,
    ToyAdd,
    ToyFail,
    ToyLiar,
    ToyMinMax,
    ToyRead,
    ToyScale,
    ToyWrite,
    toy_circuit,
    toy_tensors,
)


def run_toy(tensors: Tensors) -> RunResult:
    return interpret(toy_circuit(), **tensors)


@pytest.mark.parametrize("num_rows", [0, 1, 3, 63])
def test_run_gives_what_the_references_give(num_rows: int) -> None:
    tensors = toy_tensors(num_rows)
    with nan_filled_empty():
        result = run_toy(tensors)
    x, other, cache = tensors["inputs"]["x"] * 1e-5, tensors["inputs"]["other"], tensors["states"]["cache"]
    least, gained = torch.minimum(x, other), torch.maximum(x, other) * tensors["weights"]["norm.gain"]
    next_cache = cache + least.sum(0)
    assert_close(result.outputs, {"y": gained + next_cache[0, 0], "magnitude": least.abs()})
    assert_close(result.states, {"cache": next_cache})
    assert result.dims == {"n": num_rows, "num_blocks": 2}


def test_run_changes_no_tensor_it_was_given() -> None:
    tensors = toy_tensors()
    before = {kind: {name: tensor.clone() for name, tensor in held.items()} for kind, held in tensors.items()}
    run_toy(tensors)
    for kind, held in tensors.items():
        assert_close(held, before[kind])


def test_nan_goes_through_and_stays_in_its_row() -> None:
    tensors = toy_tensors()
    tensors["inputs"]["x"][1] = torch.nan
    result = run_toy(tensors)
    assert result.outputs["magnitude"][1].isnan().all()
    assert not result.outputs["magnitude"][[0, 2]].isnan().any()


def test_two_runs_are_bitwise_equal() -> None:
    first, second = run_toy(toy_tensors()), run_toy(toy_tensors())
    for name, tensor in first.outputs.items():
        assert same_bits(tensor, second.outputs[name])


def test_run_keeps_no_gradient() -> None:
    tensors = toy_tensors()
    tensors["weights"]["norm.gain"].requires_grad_()
    assert not run_toy(tensors).outputs["y"].requires_grad


def test_empty_circuit_runs() -> None:
    assert interpret(Circuit("nothing"), inputs={}, weights={}, states={}) == RunResult({}, {}, {})


def test_source_may_be_an_output_and_a_state_pass_through() -> None:
    circuit = Circuit("through")
    circuit.output("y", circuit.input("x", f32("n")))
    circuit.state_output("s", circuit.state("s", StateType("ring", f32(1, 1, 1))))
    x, s = torch.ones(3), torch.ones(1, 1, 1)
    result = interpret(circuit, inputs={"x": x}, weights={}, states={"s": s})
    assert result.outputs["y"] is x
    assert result.states["s"] is s


def changed(kind: str, name: str, change: Callable[[Tensor], object]) -> Tensors:
    tensors = toy_tensors()
    tensors[kind][name] = change(tensors[kind][name])  # type: ignore[assignment]
    return tensors


@pytest.mark.parametrize(
    "kind, name, words",
    [
        ("inputs", "x", r"input 'x' is missing; it has type f32\[n, 8\]"),
        ("weights", "norm.gain", "weight 'norm.gain' is missing"),
        ("states", "cache", "state 'cache' is missing; it has type paged/2"),
    ],
)
def test_missing_tensor_is_refused(kind: str, name: str, words: str) -> None:
    tensors = toy_tensors()
    del tensors[kind][name]
    with pytest.raises(BindingError, match=words):
        run_toy(tensors)


@pytest.mark.parametrize("kind, word", [("inputs", "input"), ("states", "state")])
def test_surplus_tensor_is_refused(kind: str, word: str) -> None:
    tensors = toy_tensors()
    tensors[kind]["more"] = torch.ones(1)
    with pytest.raises(BindingError, match=f"circuit 'toy': no {word} 'more'; it declares"):
        run_toy(tensors)


def test_weights_may_be_a_superset() -> None:
    tensors = toy_tensors()
    tensors["weights"]["more"] = torch.ones(1)
    assert run_toy(tensors).outputs.keys() == {"y", "magnitude"}


@pytest.mark.parametrize(
    "kind, name, change, words",
    [
        ("inputs", "x", Tensor.double, r"input %x: f32\[n, 8\]: expected dtype f32, got f64"),
        ("inputs", "x", lambda x: x.to(torch.complex64), "expected dtype f32, got torch.complex64"),
        ("inputs", "x", lambda x: x.tolist(), "expected a tensor, got list"),
        ("inputs", "x", lambda x: None, "expected a tensor, got NoneType"),
        ("inputs", "x", lambda x: x[:, :7], r"dim 1: expected 8, got 7; the tensor is \[3, 7\]"),
        ("inputs", "x", lambda x: x[0], r"expected 2 dims, got 1; the tensor is \[8\]"),
        ("inputs", "other", lambda x: x[:2], r"input %other: .* dim 0: expected n = 3, got 2"),
        ("weights", "norm.gain", lambda x: x.bfloat16(), "weight %norm.gain: .* expected dtype f32, got bf16"),
        ("states", "cache", lambda x: x[:, :3], "state %cache: .* dim 1: expected 4, got 3"),
    ],
)
def test_ill_typed_tensor_is_refused_before_any_node_runs(
    kind: str, name: str, change: Callable[[Tensor], Any], words: str
) -> None:
    seen: list[Value] = []
    with pytest.raises(BindingError, match=words):
        interpret(toy_circuit(), **changed(kind, name, change), observe=lambda value, tensor: seen.append(value))
    assert not seen


def test_name_is_bound_across_inputs_and_states() -> None:
    circuit = Circuit("bound")
    circuit.output("a", circuit.input("a", f32("n", 2)))
    circuit.state_output("s", circuit.state("s", StateType("ring", f32("n", 1, 1))))
    with pytest.raises(BindingError, match=r"state %s: .* dim 0: expected n = 3, got 4"):
        interpret(circuit, inputs={"a": torch.ones(3, 2)}, weights={}, states={"s": torch.ones(4, 1, 1)})


@pytest.mark.parametrize("num_rows, fits", [(6, True), (7, False)])
def test_expression_is_checked_after_its_names_are_bound(num_rows: int, fits: bool) -> None:
    circuit = Circuit("expression")
    # the expression is declared before the name that it needs
    circuit.output("pairs", circuit.input("pairs", f32("2*n", 1)))
    circuit.output("x", circuit.input("x", i64("n")))
    inputs = {"pairs": torch.ones(num_rows, 1), "x": torch.ones(3, dtype=torch.int64)}
    if fits:
        assert interpret(circuit, inputs=inputs, weights={}, states={}).dims == {"n": 3}
        return
    with pytest.raises(BindingError, match=r"input %pairs: .* dim 0: expected 2\*n = 6, got 7"):
        interpret(circuit, inputs=inputs, weights={}, states={})


def test_expression_over_an_unbound_name_is_refused() -> None:
    circuit = Circuit("unbound")
    circuit.output("pairs", circuit.input("pairs", f32("2*n")))
    with pytest.raises(BindingError, match=r"2\*n needs n, which nothing before it binds"):
        interpret(circuit, inputs={"pairs": torch.ones(6)}, weights={}, states={})


def failing_circuit() -> Circuit:
    circuit = Circuit("failing")
    x, cache = circuit.input("x", f32("n", 8)), circuit.state("cache", StateType("paged", f32("b", 4, 8)))
    next_cache, magnitude = ToyWrite()(cache, x)
    circuit.output("y", ToyFail()(magnitude))
    circuit.state_output("cache", next_cache)
    return circuit


def test_exception_in_a_node_is_noted_and_leaves_the_states() -> None:
    cache, before = torch.ones(2, 4, 8), torch.ones(2, 4, 8)
    with pytest.raises(IndexError) as caught:
        interpret(failing_circuit(), inputs={"x": torch.ones(3, 8)}, weights={}, states={"cache": cache})
    assert str(caught.value) == "index 7 is out of range"
    assert caught.value.__notes__ == [
        "in circuit 'failing', at call 1: %toy_fail_1 = ToyFail()(%toy_write.magnitude_1)"
    ]
    assert same_bits(cache, before)


def test_result_that_breaks_the_type_rule_is_refused_with_its_call() -> None:
    circuit = Circuit("lying")
    circuit.output("y", ToyLiar()(circuit.input("x", f32("n", 8))))
    with pytest.raises(BindingError, match=r"ToyLiar %toy_liar_1: f32\[n, 8\]: dim 1: expected 8, got 7") as caught:
        interpret(circuit, inputs={"x": torch.ones(3, 8)}, weights={}, states={})
    assert "at call 0: %toy_liar_1 = ToyLiar()(%x)" in caught.value.report()


def test_observer_sees_every_edge_once_sources_first() -> None:
    circuit, tensors = toy_circuit(), toy_tensors()
    seen: dict[Value, Tensor] = {}
    order: list[Value] = []

    def observe(value: Value, tensor: Tensor) -> None:
        order.append(value)
        seen[value] = tensor

    result = interpret(circuit, **tensors, observe=observe)
    assert set(order) == set(circuit.values)
    assert len(order) == len(circuit.values)
    assert [value.kind for value in order[:4]] == ["input", "input", "state", "weight"]
    assert seen[circuit.inputs["x"]] is tensors["inputs"]["x"]
    assert seen[circuit.value("toy_read_1")] is result.outputs["y"]
    assert_close(seen[circuit.value("scaled")], tensors["inputs"]["x"] * 1e-5)


def test_exception_in_the_observer_is_not_lost() -> None:
    def refuse(value: Value, tensor: Tensor) -> None:
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        interpret(toy_circuit(), **toy_tensors(), observe=refuse)


def test_value_used_late_and_value_used_twice_live_long_enough() -> None:
    circuit = Circuit("long")
    x = circuit.input("x", f32("n"))
    first = ToyScale(factor=2.0)(x)
    last = first
    for _ in range(5):
        last = ToyAdd()(last, x)
    least, most = ToyMinMax()(first, first)
    circuit.output("y", ToyAdd()(ToyAdd()(last, least), most))
    (y,) = interpret(circuit, inputs={"x": torch.tensor([1.0])}, weights={}, states={}).outputs.values()
    assert y.item() == 7 + 2 + 2


def test_read_before_the_write_sees_the_old_version() -> None:
    circuit = Circuit("early")
    x, cache = circuit.input("x", f32("n", 8)), circuit.state("cache", StateType("paged", f32("b", 4, 8)))
    early = ToyRead()(cache, x)
    next_cache, _ = ToyWrite()(cache, x)
    circuit.output("early", early)
    circuit.output("late", ToyRead()(next_cache, x))
    circuit.state_output("cache", next_cache)
    x_tensor = torch.ones(1, 8)
    result = interpret(circuit, inputs={"x": x_tensor}, weights={}, states={"cache": torch.zeros(1, 4, 8)})
    assert_close(result.outputs, {"early": x_tensor, "late": 2 * x_tensor})
