"""Building a circuit: names, owners, blocks, and that a refused call leaves nothing behind."""

import networkx as nx
import pytest

from circuit import Circuit, CircuitError, StateType, TypeRuleError, VerifyError, f32, to_text, verify
from tests.support.toy_nodes import ToyAdd, ToyGain, ToyMinMax, ToyScale, ToyWrite, toy_circuit

CACHE = StateType("paged", f32("num_blocks", 4, 8))


@pytest.fixture
def circuit() -> Circuit:
    circuit = Circuit("c")
    circuit.input("x", f32("n", 8))
    return circuit


def test_results_are_named_after_their_node_and_counted(circuit: Circuit) -> None:
    x = circuit.inputs["x"]
    names = [ToyScale(factor=1.0)(x).name, ToyScale(factor=2.0)(x).name]
    assert names == ["toy_scale_1", "toy_scale_2"]
    assert [value.name for value in ToyMinMax()(x, x)] == ["toy_min_max.least_1", "toy_min_max.most_1"]


def test_automatic_name_steps_over_a_taken_one(circuit: Circuit) -> None:
    x = circuit.input("toy_scale_1", f32("n", 8))
    assert ToyScale(factor=1.0)(x).name == "toy_scale_2"


@pytest.mark.parametrize("declare", ["input", "weight", "output_name", "rename", "add_call"])
def test_taken_name_is_refused(circuit: Circuit, declare: str) -> None:
    x = circuit.inputs["x"]
    y = ToyScale(factor=1.0)(x).named("y")
    circuit.output("y", y)
    actions = {
        "input": lambda: circuit.input("x", f32("n")),
        "weight": lambda: circuit.weight("y", f32("n")),
        "output_name": lambda: circuit.output("y", x),
        "rename": lambda: y.named("x"),
        "add_call": lambda: circuit.add_call(ToyAdd(), (x, y), names=["y"]),
    }
    with pytest.raises(VerifyError, match=r"taken|twice"):
        actions[declare]()
    assert to_text(circuit).count("= Toy") == 1


@pytest.mark.parametrize("name", ["", "a\nb", "\x00", "\u202e", "x" * 257, 3, None])
def test_name_that_cannot_be_shown_is_refused(circuit: Circuit, name: object) -> None:
    with pytest.raises(VerifyError, match="expected 1 to 256 printable characters"):
        circuit.input(name, f32("n"))  # type: ignore[arg-type]
    with pytest.raises(VerifyError, match="printable"):
        ToyScale(factor=1.0)(circuit.inputs["x"]).named(name)  # type: ignore[arg-type]


def test_rename_moves_the_value_and_frees_the_old_name(circuit: Circuit) -> None:
    y = ToyScale(factor=1.0)(circuit.inputs["x"]).named("y")
    assert circuit.value("y") is y
    assert y.named("z") is y
    assert circuit.value("z") is y
    assert y.named("z") is y
    circuit.input("y", f32("n"))
    with pytest.raises(CircuitError, match="no value 'toy_scale_1'"):
        circuit.value("toy_scale_1")


def test_declared_name_of_a_source_stays(circuit: Circuit) -> None:
    with pytest.raises(VerifyError, match="the input 'x' keeps its declared name"):
        circuit.inputs["x"].named("z")


def test_unknown_value_lists_close_names(circuit: Circuit) -> None:
    circuit.input("hidden_states", f32("n"))
    with pytest.raises(CircuitError, match=r"no value 'hidden_state'; did you mean 'hidden_states'\?"):
        circuit.value("hidden_state")


def test_values_are_sources_first_then_results(circuit: Circuit) -> None:
    y = ToyScale(factor=1.0)(circuit.inputs["x"]).named("y")
    late = circuit.weight("late", f32(8))
    y.named("renamed")
    z = ToyGain()(y, late)
    assert circuit.values == (circuit.inputs["x"], late, y, z)


@pytest.mark.parametrize("use", ["call", "add_call", "output", "state_output", "rename"])
def test_value_of_another_circuit_is_refused(circuit: Circuit, use: str) -> None:
    other = Circuit("other")
    foreign, state = other.input("x", f32("n", 8)), other.state("cache", CACHE)
    circuit.state("cache", CACHE)
    actions = {
        "call": lambda: ToyAdd()(circuit.inputs["x"], foreign),
        "add_call": lambda: circuit.add_call(ToyAdd(), (circuit.inputs["x"], foreign), names=["y"]),
        "output": lambda: circuit.output("y", foreign),
        "state_output": lambda: circuit.state_output("cache", state),
        "rename": lambda: circuit.rename(foreign, "y"),
    }
    with pytest.raises(CircuitError, match="of circuit 'other'"):
        actions[use]()
    assert not circuit.calls


def test_argument_that_is_no_value_is_refused(circuit: Circuit) -> None:
    with pytest.raises(CircuitError, match="expects a value of the circuit, got 3"):
        circuit.call(ToyAdd(), circuit.inputs["x"], 3)  # type: ignore[arg-type]


@pytest.mark.parametrize("num_args", [1, 3])
def test_wrong_number_of_arguments_is_refused(circuit: Circuit, num_args: int) -> None:
    with pytest.raises(TypeRuleError, match=f"expected 2 inputs .x, other., got {num_args}"):
        ToyAdd()(*[circuit.inputs["x"]] * num_args)


def test_type_error_notes_circuit_and_call(circuit: Circuit) -> None:
    gain = circuit.weight("gain", f32(9))
    with pytest.raises(TypeRuleError) as caught:
        ToyGain()(circuit.inputs["x"], gain)
    assert caught.value.report() == (
        "ToyGain.gain: expected f32[8], like x's last dim, got f32[9]\n"
        "in circuit 'c', at call 0: ToyGain()(%x: f32[n, 8], %gain: f32[9])"
    )
    assert not circuit.calls


def test_blocks_nest_and_end() -> None:
    assert [call.block for call in toy_circuit().calls] == ["head", "head/inner", "head/inner", "", ""]


def test_block_ends_when_its_body_fails(circuit: Circuit) -> None:
    with pytest.raises(RuntimeError), circuit.block("head"):
        raise RuntimeError
    ToyScale(factor=1.0)(circuit.inputs["x"])
    assert circuit.calls[0].block == ""


def test_sources_take_only_their_kind_of_type(circuit: Circuit) -> None:
    with pytest.raises(TypeRuleError, match="input 'c' cannot have the type paged"):
        circuit.input("c", CACHE)  # type: ignore[arg-type]
    with pytest.raises(TypeRuleError, match="state 'c' cannot have the type f32"):
        circuit.state("c", f32("n"))  # type: ignore[arg-type]


def test_outputs_take_only_their_kind_of_value(circuit: Circuit) -> None:
    state = circuit.state("cache", CACHE)
    with pytest.raises(VerifyError, match=r"output 'y' is the state %cache.*use state_output"):
        circuit.output("y", state)
    with pytest.raises(VerifyError, match=r"state output 'cash' names no state of \['cache'\]"):
        circuit.state_output("cash", state)
    with pytest.raises(VerifyError, match="state 'cache' is paged"):
        circuit.state_output("cache", circuit.inputs["x"])
    circuit.state_output("cache", state)
    with pytest.raises(VerifyError, match="state output 'cache' is declared twice"):
        circuit.state_output("cache", state)


@pytest.mark.parametrize("names", [[], ["a"], ["a", "a"], ["a", "b", "c"]])
def test_add_call_wants_one_name_per_result(circuit: Circuit, names: list[str]) -> None:
    x = circuit.inputs["x"]
    with pytest.raises(VerifyError, match="expected a name of its own for each of least, most"):
        circuit.add_call(ToyMinMax(), (x, x), names=names)
    assert not circuit.calls


def test_copied_calls_make_the_same_circuit() -> None:
    original = toy_circuit()
    copy = Circuit("toy")
    made = {value: copy.input(value.name, f32("n", 8)) for value in original.inputs.values()}
    made |= {value: copy.weight(value.name, f32(8)) for value in original.weights.values()}
    made |= {value: copy.state(value.name, value.type) for value in original.states.values()}  # type: ignore[arg-type]
    for call in original.calls:
        made |= dict(zip(call.results, copy.copy_call(call, *(made[arg] for arg in call.args)), strict=True))
    for name, value in original.outputs.items():
        copy.output(name, made[value])
    for name, value in original.state_outputs.items():
        copy.state_output(name, made[value])
    assert to_text(copy) == to_text(original)
    verify(copy)


def test_dataflow_has_an_edge_for_each_argument() -> None:
    circuit = toy_circuit()
    graph = circuit.dataflow()
    assert nx.is_directed_acyclic_graph(graph)
    scale, min_max, gain, write, read = circuit.calls
    assert set(graph.predecessors(read)) == {write, gain}
    assert set(graph.predecessors(min_max)) == {scale, circuit.inputs["other"]}
    assert graph.edges[write, read]["value"] is circuit.value("next_cache")


def test_text_of_values_calls_and_circuits() -> None:
    circuit = toy_circuit()
    assert repr(circuit) == "Circuit('toy', 5 calls)"
    assert repr(circuit.inputs["x"]) == "%x: f32[n, 8]"
    assert str(circuit.calls[2]) == "%toy_gain_1 = ToyGain()(%most, %norm.gain)"
    assert str(circuit.calls[3]).startswith("%next_cache, %toy_write.magnitude_1 = ToyWrite()(%cache, ")
    assert isinstance(circuit.calls[3].node, ToyWrite)
