"""The difference of two circuits, as data and as lines."""

from hypothesis import given, settings

from circuit import Change, Circuit, diff, f32
from tests.support.circuit_strategies import PROPERTY, circuits
from tests.support.toy_nodes import ToyScale, toy_circuit


def scaled(*, factor: float = 2.0, dim: str = "n", name: str = "y", block: str = "", wired_to: str = "x") -> Circuit:
    circuit = Circuit("c")
    sources = {source: circuit.input(source, f32(dim)) for source in ("x", "other")}
    (y,) = circuit.add_call(ToyScale(factor=factor), (sources[wired_to],), names=[name], block=block)
    circuit.output("y", y)
    return circuit


def test_equal_circuits_do_not_differ() -> None:
    assert not diff(toy_circuit(), toy_circuit())
    assert str(diff(toy_circuit(), toy_circuit())) == ""


@settings(PROPERTY, max_examples=10)
@given(circuits())
def test_circuit_does_not_differ_from_itself(circuit: Circuit) -> None:
    assert not diff(circuit, circuit)


def test_changed_attribute_is_a_change_of_its_call() -> None:
    difference = diff(scaled(), scaled(factor=0.5))
    assert difference.changed == (
        Change("call y", "%y: f32[n] = ToyScale(factor=2.0)(%x)", "%y: f32[n] = ToyScale(factor=0.5)(%x)"),
    )
    assert not difference.added
    assert not difference.removed


def test_changed_wiring_and_block_are_changes_of_the_call() -> None:
    (wiring,) = diff(scaled(), scaled(wired_to="other")).changed
    assert wiring.after == "%y: f32[n] = ToyScale(factor=2.0)(%other)"
    (block,) = diff(scaled(), scaled(block="head")).changed
    assert block.after == "%y: f32[n] = ToyScale(factor=2.0)(%x)  [head]"


def test_changed_type_is_a_change_of_source_and_call() -> None:
    assert [change.name for change in diff(scaled(), scaled(dim="m")).changed] == ["input x", "input other", "call y"]


def test_renamed_call_is_one_removed_and_one_added() -> None:
    difference = diff(scaled(), scaled(name="z"))
    assert difference.removed == ("%y: f32[n] = ToyScale(factor=2.0)(%x)",)
    assert difference.added == ("%z: f32[n] = ToyScale(factor=2.0)(%x)",)
    assert str(difference) == (
        "- %y: f32[n] = ToyScale(factor=2.0)(%x)\n"
        "+ %z: f32[n] = ToyScale(factor=2.0)(%x)\n"
        "- output y = %y\n"
        "+ output y = %z"
    )


def test_everything_is_removed_against_an_empty_circuit() -> None:
    difference = diff(toy_circuit(), Circuit("nothing"))
    assert len(difference.removed) == 4 + 5 + 3
    assert difference.removed[-1] == "state output cache = %next_cache"
