"""Circuits as GraphModules: bitwise the interpreter, and the same circuit back, copies and passes included."""

import copy

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor, fx, nn

from circuit import (
    BindingError,
    Circuit,
    LoweringError,
    NodeModule,
    StateType,
    argument_names,
    f32,
    from_graph_module,
    interpret,
    to_graph_module,
    to_text,
    verify,
)
from tests.support.circuit_strategies import NUM_COLUMNS, PROPERTY, circuits
from tests.support.node_cases import same_bits
from tests.support.toy_nodes import ToyAdd, ToyScale, toy_circuit, toy_tensors


def random_tensors(circuit: Circuit, num_rows: int) -> dict[str, dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(3)
    sizes = {"n": num_rows, "num_blocks": 2}

    def tensor(*shape: int) -> Tensor:
        made = torch.randn(shape, generator=generator)
        return made.where(made < 1.5, torch.nan)

    return {
        "inputs": {name: tensor(num_rows, NUM_COLUMNS) for name in circuit.inputs},
        "weights": {name: tensor(NUM_COLUMNS) for name in circuit.weights},
        "states": {
            name: tensor(*value.type.bind(sizes).tensor.sizes())
            for name, value in circuit.states.items()
            if isinstance(value.type, StateType)
        },
    }


def assert_same_run(circuit: Circuit, module: fx.GraphModule, tensors: dict[str, dict[str, Tensor]]) -> None:
    expected = interpret(circuit, **tensors)
    given = tensors["inputs"] | tensors["states"] | tensors["weights"]
    outputs, states = module(*(given[name] for name in argument_names(module)))
    for got, wanted in ((outputs, expected.outputs), (states, expected.states)):
        assert list(got) == list(wanted)
        assert all(same_bits(got[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize("num_rows", [0, 1, 3, 63])
@pytest.mark.parametrize("hold_weights", [True, False])
def test_module_gives_bitwise_what_the_interpreter_gives(num_rows: int, hold_weights: bool) -> None:
    circuit, tensors = toy_circuit(), toy_tensors(num_rows)
    module = to_graph_module(circuit, tensors["weights"] if hold_weights else None)
    assert_same_run(circuit, module, tensors)


@settings(PROPERTY, max_examples=20)
@given(circuits())
def test_random_circuit_runs_the_same_and_comes_back(circuit: Circuit) -> None:
    tensors = random_tensors(circuit, num_rows=3)
    module = to_graph_module(circuit)
    assert_same_run(circuit, module, tensors)
    assert to_text(from_graph_module(module)) == to_text(circuit)
    holding = to_graph_module(circuit, tensors["weights"])
    assert_same_run(circuit, holding, tensors)
    assert to_text(from_graph_module(holding)) == to_text(circuit)


@pytest.mark.parametrize(
    "copied",
    [copy.copy, copy.deepcopy, lambda module: fx.GraphModule(module, module.graph), lambda module: module.train()],
    ids=["copy", "deepcopy", "new_module", "train"],
)
def test_copy_runs_the_same_and_comes_back(copied: object) -> None:
    circuit, tensors = toy_circuit(), toy_tensors()
    assert callable(copied)
    module = copied(to_graph_module(circuit, tensors["weights"]))
    module.recompile()
    assert_same_run(circuit, module, tensors)
    assert to_text(from_graph_module(module)) == to_text(circuit)


def test_arguments_are_inputs_states_then_weights() -> None:
    circuit = toy_circuit()
    assert argument_names(to_graph_module(circuit)) == ("x", "other", "cache", "norm.gain")
    assert argument_names(to_graph_module(circuit, toy_tensors()["weights"])) == ("x", "other", "cache")


def test_weights_are_buffers_of_the_same_memory() -> None:
    weights = toy_tensors()["weights"]
    module = to_graph_module(toy_circuit(), weights | {"more": torch.ones(1)})
    ((name, buffer),) = module.named_buffers()
    assert name == "weight_0"
    assert buffer is weights["norm.gain"]


@pytest.mark.parametrize(
    "weights, words",
    [
        ({}, "weight 'norm.gain' is missing"),
        ({"norm.gain": torch.ones(7)}, "weight %norm.gain: .* expected 8, got 7"),
        ({"norm.gain": torch.ones(8).bfloat16()}, "expected dtype f32, got bf16"),
    ],
)
def test_missing_or_ill_typed_weight_is_refused(weights: dict[str, Tensor], words: str) -> None:
    with pytest.raises(BindingError, match=words):
        to_graph_module(toy_circuit(), weights)


def test_names_that_python_cannot_have_are_kept() -> None:
    circuit = Circuit("class")
    x = circuit.input("self", f32("n"))
    y = ToyScale(factor=2.0)(x).named('it\'s "{}" %\\n')
    z = ToyAdd()(y, x).named("a-b")
    circuit.output("import", ToyAdd()(ToyAdd()(z, circuit.input("a.b", f32("n"))), x).named("a b"))
    module = to_graph_module(circuit)
    outputs, _ = module(torch.ones(2), torch.ones(2))
    assert outputs["import"].tolist() == [5.0, 5.0]
    assert to_text(from_graph_module(module)) == to_text(circuit)


def test_empty_circuit_comes_back() -> None:
    module = to_graph_module(Circuit("nothing"))
    assert module() == ({}, {})
    assert to_text(from_graph_module(module)) == "circuit nothing\n"


def test_graph_after_a_pass_comes_back_as_the_graph_is() -> None:
    circuit, tensors = toy_circuit(), toy_tensors()
    module = to_graph_module(circuit, tensors["weights"])
    (result,) = module.graph.find_nodes(op="output")
    outputs, states = result.args[0]
    result.args = (({"y": outputs["y"]}, states),)
    # nothing is written in place here, so that fx's own elimination is safe
    module.graph.eliminate_dead_code()
    module.recompile()
    pruned = from_graph_module(module)
    verify(pruned)
    assert list(pruned.outputs) == ["y"]
    assert_same_run(pruned, module, tensors)


def test_weight_that_a_pass_dropped_is_not_declared() -> None:
    circuit = Circuit("dropping")
    x = circuit.input("x", f32("n"))
    circuit.output("x", x)
    circuit.output("w", circuit.weight("w", f32(3)))
    module = to_graph_module(circuit, {"w": torch.ones(3)})
    (result,) = module.graph.find_nodes(op="output")
    result.args = (({"x": result.args[0][0]["x"]}, {}),)
    module.graph.eliminate_dead_code()
    assert to_text(from_graph_module(module)) == "circuit dropping\n  input  %x: f32[n]\n  output x = %x\n"


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.linear(x))


@pytest.mark.parametrize(
    "module, node, target",
    [
        (fx.symbolic_trace(Plain()), "linear", r"call_module\[target=linear\]"),
        (torch.export.export(Plain(), (torch.ones(2, 3),)).graph_module, "linear", "torch.ops.aten.linear.default"),
    ],
    ids=["traced", "exported"],
)
def test_module_of_plain_torch_code_is_refused(module: fx.GraphModule, node: str, target: str) -> None:
    with pytest.raises(LoweringError, match=rf"fx node '{node}': expected a call of a circuit node, got .*{target}"):
        from_graph_module(module)


@pytest.mark.parametrize("fault", ["function", "placeholder", "method", "module", "keyword", "constant", "whole"])
def test_fx_node_that_is_no_circuit_node_is_refused(fault: str) -> None:
    module = to_graph_module(toy_circuit())
    graph = module.graph
    calls = [node for node in graph.nodes if node.op == "call_module"]
    last = calls[-1]
    with graph.inserting_before(last):
        match fault:
            case "function":
                last.replace_input_with(last.args[1], graph.call_function(torch.relu, (last.args[1],)))
            case "method":
                last.replace_input_with(last.args[1], graph.call_method("relu", (last.args[1],)))
            case "module":
                module.add_module(str(last.target), nn.Linear(8, 8))
            case "keyword":
                last.args, last.kwargs = last.args[:1], {"x": last.args[1]}
            case "constant":
                last.args = (last.args[0], 3.0)
            case "whole":
                last.args = (calls[1], last.args[1])
    if fault == "placeholder":
        with graph.inserting_before(next(iter(graph.nodes))):
            graph.placeholder("stranger")
    with pytest.raises(LoweringError, match=r"^fx node '"):
        from_graph_module(module)


def test_node_is_seen_in_the_printed_module() -> None:
    assert "NodeModule(ToyScale(factor=1e-05))" in str(to_graph_module(toy_circuit()))
    assert NodeModule(ToyScale(factor=3.0))(torch.ones(1)).item() == 3.0


def test_module_can_be_exported_by_torch() -> None:
    circuit, tensors = toy_circuit(), toy_tensors()
    module = to_graph_module(circuit, tensors["weights"])
    arguments = (*tensors["inputs"].values(), *tensors["states"].values())
    outputs, states = torch.export.export(module, arguments).module()(*arguments)
    expected = interpret(circuit, **tensors)
    assert same_bits(outputs["y"], expected.outputs["y"])
    assert same_bits(states["cache"], expected.states["cache"])
