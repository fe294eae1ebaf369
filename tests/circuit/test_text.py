"""The text form: held to a file, complete, and the same for the same circuit."""

from pathlib import Path

import pytest

from circuit import Circuit, call_text, f32, to_text
from circuit.text import quoted
from tests.support.toy_nodes import ToyOptions, ToyScale, toy_circuit

GOLDEN = Path(__file__).parent / "text"


def test_text_is_the_golden_one() -> None:
    assert to_text(toy_circuit()) == (GOLDEN / "toy.txt").read_text()


def test_text_shows_every_attribute() -> None:
    circuit = Circuit("options")
    node = ToyOptions(count=3, label='a "b"', sizes=(1, 2))
    circuit.output("y", node(circuit.input("x", f32("n"))))
    assert call_text(circuit.calls[0]) == (
        '%toy_options_1: f32[n] = ToyOptions(count=3, ratio=0.5, is_on=false, mode="fast", label="a \\"b\\"", '
        "sizes=[1, 2], limit=null)(%x)"
    )


@pytest.mark.parametrize(
    "name, spelled",
    [("x.y_1", "x.y_1"), ("1x", '"1x"'), ("a b", '"a b"'), ("é", '"é"'), ('"', '"\\""'), ("%x", '"%x"')],
)
def test_name_that_is_no_identifier_is_quoted(name: str, spelled: str) -> None:
    assert quoted(name) == spelled


def scaled(factor: float, name: str = "y", block: str = "b", circuit_name: str = "c") -> Circuit:
    circuit = Circuit(circuit_name)
    x = circuit.input("x", f32("n"))
    (y,) = circuit.add_call(ToyScale(factor=factor), (x,), names=[name], block=block)
    circuit.output("y", y)
    return circuit


def test_texts_of_equal_circuits_are_equal() -> None:
    assert to_text(scaled(0.5)) == to_text(scaled(0.5))


@pytest.mark.parametrize(
    "other", [scaled(0.25), scaled(0.5, name="z"), scaled(0.5, block=""), scaled(0.5, circuit_name="d")]
)
def test_texts_of_circuits_that_differ_differ(other: Circuit) -> None:
    assert to_text(other) != to_text(scaled(0.5))
