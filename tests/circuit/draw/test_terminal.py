"""The terminal drawing: within its width, its wires joined to the calls they belong to."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from circuit import Circuit, f32
from circuit.draw import CallNote, Notes, Overlay, draw_circuit, to_terminal
from circuit.draw.cells import cell_width, fitted, padded
from tests.support.circuit_strategies import circuits
from tests.support.drawings import diamond, hard_circuit, large_circuit
from tests.support.toy_nodes import ToyAdd, ToyScale, toy_circuit

READ = set("├└┴┼╟╙╨╫")


@pytest.mark.parametrize("width", [24, 37, 80, 200])
@pytest.mark.parametrize("circuit", [toy_circuit(), hard_circuit(), large_circuit(70)], ids=lambda one: one.name)
def test_no_line_is_wider_than_asked_for(circuit: Circuit, width: int) -> None:
    lines = to_terminal(draw_circuit(circuit), width=width).splitlines()
    assert max(cell_width(line) for line in lines) <= width


@settings(max_examples=60, deadline=None)
@given(circuit=circuits(), width=st.integers(24, 160))
def test_any_circuit_draws_within_any_width(circuit: Circuit, width: int) -> None:
    text = to_terminal(draw_circuit(circuit), width=width)
    assert max(cell_width(line) for line in text.splitlines()) <= width


def test_a_wire_ends_at_its_last_reader() -> None:
    lines = to_terminal(draw_circuit(diamond()), width=80).splitlines()
    scale = next(line for line in lines if "ToyScale(x)" in line)
    pair = next(line for line in lines if "ToyMinMax(scaled, x)" in line)
    # x is read twice: it goes on after the first reader and ends at the second, where scaled ends too
    assert scale.startswith("├─")
    assert pair.startswith("└─┴▶")


def test_every_call_is_joined_to_as_many_wires_as_it_reads() -> None:
    drawing = draw_circuit(toy_circuit())
    lines = to_terminal(drawing, width=100).splitlines()
    for node in drawing.nodes:
        if node.kind != "call":
            continue
        line = next(line for line in lines if f"{node.title}({', '.join(port.value for port in node.takes)})" in line)
        wires = line[: line.index("▶")]
        crossings = sum(wires.count(glyph) for glyph in "┼╫")
        assert sum(glyph in READ for glyph in wires) - crossings == len({port.value for port in node.takes})


def test_a_launch_is_a_box_around_its_calls_and_no_others() -> None:
    circuit = Circuit("c")
    x = circuit.input("x", f32("n"))
    first = ToyScale(factor=2.0)(x).named("first")
    apart = ToyScale(factor=3.0)(x).named("apart")
    circuit.output("y", ToyAdd()(ToyScale(factor=4.0)(first).named("second"), apart).named("sum"))
    notes = Notes(calls={"first": CallNote(launch="both: a"), "second": CallNote(launch="both: a")})
    lines = to_terminal(draw_circuit(circuit, notes), width=60).splitlines()
    top = next(index for index, line in enumerate(lines) if "┌─ both: a " in line)
    bottom = next(index for index, line in enumerate(lines) if line.endswith("┘"))
    inside = "\n".join(lines[top + 1 : bottom])
    assert "first: f32[n]" in inside
    assert "second: f32[n]" in inside
    assert "apart" not in inside
    assert all(line.endswith("│") and cell_width(line) == 60 for line in lines[top + 1 : bottom])


def test_a_launch_that_waits_for_another_inside_it_is_drawn_in_parts() -> None:
    circuit = Circuit("c")
    first = ToyScale(factor=2.0)(circuit.input("x", f32("n"))).named("first")
    between = ToyScale(factor=3.0)(first).named("between")
    circuit.output("y", ToyScale(factor=4.0)(between).named("second"))
    notes = Notes(calls={"first": CallNote(launch="L"), "second": CallNote(launch="L")})
    assert to_terminal(draw_circuit(circuit, notes), width=60).count("┌─ L ") == 2


def test_cells_count_wide_and_combining_characters() -> None:
    assert cell_width("e\u0301漢") == 3
    assert fitted("漢字漢字", 5) == "漢字…"
    assert cell_width(padded("漢字漢字", 4)) == 4


def test_a_number_outlasts_what_a_narrow_line_cuts_and_is_explained() -> None:
    drawing = draw_circuit(toy_circuit())
    norm = next(node for node in drawing.nodes if node.weights)
    overlay = Overlay("time", "us", "measured", nodes=((norm.id, 12.5),))
    width = 2 * len(drawing.nodes) + len(f"{norm.title}(x) [12.5 us]") + 8
    lines = to_terminal(replace(drawing, overlays=(overlay,)), width=width).splitlines()
    assert any(f"{norm.title}(" in line and "[12.5 us]" in line for line in lines)
    assert any(line.startswith("[] time in us: measured") for line in lines)
    assert max(cell_width(line) for line in lines) <= width
