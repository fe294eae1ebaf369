"""From circuit to drawing: kinds of edges, groups, launches, and what two drawings differ in."""

import pytest

from circuit import Circuit, CircuitError, f32
from circuit.draw import CallNote, Drawing, DrawnNode, Notes, draw_circuit, draw_difference, num_changes
from tests.support.drawings import diamond
from tests.support.toy_nodes import ToyAdd, ToyScale, toy_circuit


def kinds(drawing: Drawing) -> dict[tuple[str, str], str]:
    names = {node.id: node.name for node in drawing.nodes}
    return {(names[edge.source], names[edge.target]): edge.kind for edge in drawing.edges}


def node(drawing: Drawing, name: str, kind: str = "call") -> DrawnNode:
    return next(one for one in drawing.nodes if (one.name, one.kind) == (name, kind))


def test_edges_know_data_state_and_host() -> None:
    held = kinds(draw_circuit(toy_circuit()))
    assert held["x", "scaled"] == "host"
    assert held["scaled", "least: a"] == "data"
    assert held["cache", "next_cache"] == "state"
    assert held["next_cache", "cache"] == "state"
    assert held["toy_read_1", "y"] == "host"


def test_a_call_carries_weights_ports_and_state_effects() -> None:
    drawing = draw_circuit(toy_circuit(), Notes(weight_sources={"norm.gain": "model.norm.weight"}))
    (weight,) = node(drawing, "toy_gain_1").weights
    assert (weight.port, weight.name, weight.type, weight.source) == (
        "gain", "norm.gain", "f32[8]", "model.norm.weight",
    )  # fmt: skip
    assert node(drawing, "next_cache").writes == ("cache",)
    assert node(drawing, "toy_read_1").reads == ("cache",)
    assert "weight" not in {one.kind for one in drawing.nodes}


def test_blocks_nest_as_groups() -> None:
    drawing = draw_circuit(toy_circuit())
    path = drawing.group_path(node(drawing, "least: a").group)
    assert [group.title for group in path] == ["head", "inner"]
    assert drawing.group_path(node(drawing, "toy_read_1").group) == ()


def chain_of_two() -> Circuit:
    circuit = Circuit("chain")
    x = circuit.input("x", f32("n"))
    for draft in (1, 2):
        with circuit.block(f"draft {draft}"), circuit.block("head"):
            x = ToyScale(factor=2.0)(x).named(f"y.{draft}")
        circuit.output(f"y.{draft}", x)
    return circuit


def test_what_one_draft_feeds_the_next_is_a_feedback_edge() -> None:
    drawing = draw_circuit(chain_of_two())
    assert kinds(drawing)["y.1", "y.2"] == "feedback"
    assert [group.kind for group in drawing.groups if group.parent is None] == ["draft", "draft"]


def test_what_comes_from_outside_of_all_drafts_is_data() -> None:
    circuit = Circuit("c")
    before = ToyScale(factor=2.0)(circuit.input("x", f32("n"))).named("before")
    with circuit.block("draft 1"):
        circuit.output("y", ToyScale(factor=3.0)(before).named("inside"))
    assert kinds(draw_circuit(circuit))["before", "inside"] == "data"


def test_feedback_of_a_single_draft_runs_from_the_output_to_the_value_it_replaces() -> None:
    drawing = draw_circuit(diamond(), Notes(feedback=(("y", "x"), ("y", "scaled"))))
    fed = [edge for edge in drawing.edges if edge.kind == "feedback"]
    assert [(edge.source, edge.target) for edge in fed] == [
        (node(drawing, "y", "output").id, node(drawing, "x", "input").id),
        (node(drawing, "y", "output").id, node(drawing, "scaled").id),
    ]


@pytest.mark.parametrize("feedback", [("z", "x"), ("y", "z")])
def test_feedback_between_names_that_are_not_there_is_refused(feedback: tuple[str, str]) -> None:
    with pytest.raises(CircuitError, match="'z'"):
        draw_circuit(diamond(), Notes(feedback=(feedback,)))


def test_note_on_a_call_that_is_not_there_is_refused() -> None:
    with pytest.raises(CircuitError, match="note on 'nothing'"):
        draw_circuit(diamond(), Notes(calls={"nothing": CallNote()}))


def test_a_launch_stands_in_the_block_of_most_of_its_calls() -> None:
    circuit = Circuit("c")
    x = circuit.input("x", f32("n"))
    with circuit.block("a"), circuit.block("b"):
        first = ToyScale(factor=2.0)(x).named("first")
        second = ToyScale(factor=2.0)(first).named("second")
    with circuit.block("far"):
        third = ToyScale(factor=2.0)(x).named("third")
    circuit.output("y", ToyAdd()(second, third).named("y"))
    notes = Notes(calls={name: CallNote(launch="L") for name in ("first", "second", "third")})
    drawing = draw_circuit(circuit, notes)
    for name in ("first", "second", "third"):
        assert [group.title for group in drawing.group_path(node(drawing, name).group)] == ["a", "b", "L"]


def test_a_launch_of_two_drafts_is_two_launches() -> None:
    notes = Notes(calls={"y.1": CallNote(launch="L"), "y.2": CallNote(launch="L")})
    drawing = draw_circuit(chain_of_two(), notes)
    paths = [[group.title for group in drawing.group_path(one.group)] for one in drawing.nodes if one.kind == "call"]
    assert paths == [["draft 1", "head", "L"], ["draft 2", "head", "L"]]


def test_equal_circuits_differ_in_nothing() -> None:
    merged = draw_difference(draw_circuit(toy_circuit()), draw_circuit(toy_circuit()))
    assert num_changes(merged) == {"added": 0, "removed": 0, "changed": 0}
    assert {edge.status for edge in merged.edges} == {"same"}


def test_a_changed_attribute_is_told_with_both_its_values() -> None:
    merged = draw_difference(draw_circuit(diamond(2.0)), draw_circuit(diamond(3.0)))
    assert num_changes(merged) == {"added": 0, "removed": 0, "changed": 1}
    assert node(merged, "scaled").changes == (("attribute factor", "2.0", "3.0"),)


def test_a_renamed_result_is_removed_and_added_with_its_edges() -> None:
    merged = draw_difference(draw_circuit(diamond(last="y")), draw_circuit(diamond(last="z")))
    assert node(merged, "y").status == "removed"
    assert node(merged, "z").status == "added"
    assert len({one.id for one in merged.nodes}) == len(merged.nodes)
    statuses = {edge.status for edge in merged.edges if edge.target in (node(merged, "y").id, node(merged, "z").id)}
    assert statuses == {"removed", "added"}


def test_changed_type_and_changed_lowering_show() -> None:
    def narrow(dtype: str, lowering: str) -> Drawing:
        circuit = Circuit("c")
        x = circuit.input("x", f32("n") if dtype == "f32" else f32("n", 2))
        circuit.output("y", ToyScale(factor=1.0)(x).named("y"))
        return draw_circuit(circuit, Notes(calls={"y": CallNote(lowering=lowering)}))

    merged = draw_difference(narrow("f32", "one"), narrow("wide", "two"))
    changes = {what: (before, after) for what, before, after in node(merged, "y").changes}
    assert changes["lowering"] == ("one", "two")
    assert changes["result out"] == ("y: f32[n]", "y: f32[n, 2]")
    assert {edge.status for edge in merged.edges} == {"changed"}


def test_a_block_that_only_the_first_has_comes_back_with_its_node() -> None:
    merged = draw_difference(draw_circuit(toy_circuit()), draw_circuit(diamond()))
    lost = node(merged, "least: a")
    assert lost.status == "removed"
    assert [group.title for group in merged.group_path(lost.group)] == ["head", "inner"]
