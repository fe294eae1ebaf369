"""Pictures: laid out by the page's scripts, the same each time, boxes apart, and clear about a missing package."""

import re
import struct
from xml.etree import ElementTree

import pytest

from circuit import Circuit, CircuitError
from circuit.draw import Overlay, draw_circuit, picture, to_png, to_svg
from circuit.draw.drawing import Drawing
from tests.support.drawings import HARD_NAMES, hard_circuit
from tests.support.toy_nodes import toy_circuit

SVG = "{http://www.w3.org/2000/svg}"


def test_svg_is_the_same_each_time_and_shows_every_node() -> None:
    drawing = draw_circuit(toy_circuit())
    text = to_svg(drawing)
    assert text == to_svg(drawing)
    shown = {element.get("data-id") for element in ElementTree.fromstring(text).iter(f"{SVG}g")}
    assert {node.id for node in drawing.nodes} | {group.id for group in drawing.groups} <= shown


def test_boxes_of_nodes_do_not_overlap() -> None:
    root = ElementTree.fromstring(to_svg(draw_circuit(toy_circuit())))
    boxes = []
    for group in root.iter(f"{SVG}g"):
        if (group.get("class") or "").startswith("node call"):
            box = group.find(f"{SVG}rect")
            assert box is not None
            boxes.append([float(box.get(name) or 0) for name in ("x", "y", "width", "height")])
    assert len(boxes) == 5
    for index, (x, y, width, height) in enumerate(boxes):
        for other_x, other_y, other_width, other_height in boxes[index + 1 :]:
            is_apart = x + width <= other_x or other_x + other_width <= x
            assert is_apart or y + height <= other_y or other_y + other_height <= y


def test_svg_carries_hard_names_as_text() -> None:
    titles = [element.text or "" for element in ElementTree.fromstring(to_svg(draw_circuit(hard_circuit()))).iter()]
    assert any(HARD_NAMES[1].replace("/", "") in title for title in titles)
    assert any("漢字 🙂" in title for title in titles)


def test_empty_circuit_is_a_picture() -> None:
    assert ElementTree.fromstring(to_svg(draw_circuit(Circuit("nothing")))).tag == f"{SVG}svg"


def test_overlay_writes_its_numbers_and_its_legend() -> None:
    drawing = draw_circuit(toy_circuit())
    fields = {name: getattr(drawing, name) for name in Drawing.__dataclass_fields__}
    first = next(node.id for node in drawing.nodes if node.kind == "call")
    laid = Overlay("time", "us", "measured here", nodes=((first, 12.5),))
    text = to_svg(Drawing(**{**fields, "overlays": (laid,)}))
    assert "12.5\u00a0µs" in text
    assert "time, measured here" in text


def test_png_has_the_size_that_the_svg_says() -> None:
    drawing = draw_circuit(toy_circuit())
    data = to_png(drawing, zoom=1.0)
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    size = struct.unpack(">II", data[16:24])
    match = re.match(r'<svg [^>]*width="(\d+)" height="(\d+)"', to_svg(drawing))
    assert match is not None
    assert size == (int(match[1]), int(match[2]))


@pytest.mark.parametrize("package, write", [("py_mini_racer", to_svg), ("resvg_py", to_png)])
def test_missing_package_is_named_with_what_to_do(monkeypatch: pytest.MonkeyPatch, package: str, write: object) -> None:
    monkeypatch.setattr(picture, package, None)
    with pytest.raises(CircuitError, match=r"draft-circuit\[draw\]"):
        write(draw_circuit(Circuit("c")))  # type: ignore[operator]
