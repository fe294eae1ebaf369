"""The text formats: held to files, complete, and able to carry any name."""

import json
import re
from html import unescape
from pathlib import Path

import pytest

from circuit import Circuit, f32
from circuit.draw import (
    Drawing,
    Notes,
    Overlay,
    draw_circuit,
    to_dot,
    to_mermaid,
    to_model_explorer,
    to_terminal,
)
from tests.support.drawings import diamond, hard_circuit
from tests.support.toy_nodes import toy_circuit

GOLDEN = Path(__file__).parent / "text"
WRITERS = {
    "dot": to_dot,
    "mmd": to_mermaid,
    "json": to_model_explorer,
    "txt": lambda drawing: to_terminal(drawing, width=78),
}
each_format = pytest.mark.parametrize("suffix", WRITERS)


@each_format
def test_drawing_is_the_golden_one(suffix: str) -> None:
    assert WRITERS[suffix](draw_circuit(toy_circuit())) == (GOLDEN / f"toy.{suffix}").read_text(encoding="utf-8")


@each_format
def test_empty_circuit_draws(suffix: str) -> None:
    drawn = WRITERS[suffix](draw_circuit(Circuit("nothing")))
    assert "nothing" in drawn
    assert drawn.endswith("\n")


@each_format
def test_circuit_that_passes_its_sources_on_draws_them(suffix: str) -> None:
    circuit = Circuit("wire")
    circuit.output("same", circuit.input("x", f32(1)))
    circuit.output("held", circuit.weight("unread by any node", f32(1)))
    drawn = WRITERS[suffix](draw_circuit(circuit))
    assert all(name in drawn for name in ("same", "held", "unread by any node"))


def values_of(drawing: Drawing) -> set[str]:
    return {port.value for node in drawing.nodes if node.kind == "call" for port in node.makes}


def test_every_name_comes_back_from_dot() -> None:
    drawing = draw_circuit(hard_circuit())
    labels = re.findall(r'label="((?:[^"\\]|\\.)*)"', to_dot(drawing))
    read = [re.sub(r"\\(.)", lambda found: "\n" if found[1] == "n" else found[1], label) for label in labels]
    lines = {unescape(line) for label in read for line in label.split("\n")}
    assert all(any(line.startswith(f"{value}: ") for line in lines) for value in values_of(drawing))
    assert {group.title for group in drawing.groups} <= lines


def test_dot_holds_nothing_outside_its_strings_but_its_own_words() -> None:
    bare = re.sub(r'"(?:[^"\\]|\\.)*"', '""', to_dot(draw_circuit(hard_circuit())))
    assert bare.isascii()
    assert re.fullmatch(r"[\w\s{}\[\];=,.<>-]*\"*[\w\s{}\[\];=,.<>\"-]*", bare)


def test_every_name_comes_back_from_mermaid() -> None:
    drawing = draw_circuit(hard_circuit())
    labels = re.findall(r'"([^"]*)"', "\n".join(to_mermaid(drawing).splitlines()[2:]))
    assert not any("`" in label or re.search(r"<(?!br/>)", label) for label in labels)
    lines = {
        unescape(re.sub(r"#(\d+|[a-z]+);", lambda found: f"&{'#' if found[1].isdigit() else ''}{found[1]};", line))
        for label in labels
        for line in label.split("<br/>")
    }
    assert all(any(line.startswith(f"{value}: ") for line in lines) for value in values_of(drawing))
    assert {group.title for group in drawing.groups} <= lines


def test_model_explorer_nests_blocks_and_joins_every_edge() -> None:
    drawing = draw_circuit(toy_circuit())
    collection = json.loads(to_model_explorer(drawing))
    assert collection["label"] == "toy"
    (graph,) = collection["graphs"]
    nodes = {node["id"]: node for node in graph["nodes"]}
    by_name = {{attr["key"]: attr["value"] for attr in node["attrs"]}["name"]: node for node in nodes.values()}
    assert by_name["least: a"]["namespace"] == "head/inner"
    assert [edge["sourceNodeId"] for edge in by_name["least: a"]["incomingEdges"]] == [
        by_name["scaled"]["id"],
        by_name["other"]["id"],
    ]
    assert sum(len(node["incomingEdges"]) for node in nodes.values()) == len(drawing.edges)
    for node in nodes.values():
        for edge in node["incomingEdges"]:
            held = {output["id"] for output in nodes[edge["sourceNodeId"]]["outputsMetadata"]}
            assert edge["sourceNodeOutputId"] in held
    assert {"key": "shape", "value": "f32[n, 8]"} in by_name["scaled"]["outputsMetadata"][0]["attrs"]


def test_model_explorer_tells_what_is_fed_back_without_closing_a_cycle() -> None:
    drawing = draw_circuit(diamond(), Notes(feedback=(("y", "x"),)))
    (graph,) = json.loads(to_model_explorer(drawing))["graphs"]
    told = {node["label"]: {attr["key"]: attr["value"] for attr in node["attrs"]} for node in graph["nodes"]}
    assert told["y"]["feeds the next run's"] == "x"
    assert next(node for node in graph["nodes"] if node["label"] == "x")["incomingEdges"] == []


def test_model_explorer_carries_hard_names_and_overlays() -> None:
    drawing = draw_circuit(hard_circuit())
    laid = Overlay("time", "us", "measured", nodes=((drawing.nodes[1].id, 2.5),))
    document = json.loads(to_model_explorer(Drawing(**{**_fields(drawing), "overlays": (laid,)})))
    attributes = [{attr["key"]: attr["value"] for attr in node["attrs"]} for node in document["graphs"][0]["nodes"]]
    assert [held["name"] for held in attributes] == [node.name for node in drawing.nodes]
    assert attributes[1]["time (us)"] == "2.5"


def _fields(drawing: Drawing) -> dict[str, object]:
    return {name: getattr(drawing, name) for name in Drawing.__dataclass_fields__}
