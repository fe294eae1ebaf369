"""The page as a file: whole, self-contained, and safe from what names hold."""

import json
import re

import pytest

from circuit import Circuit
from circuit.draw import View, draw_circuit, to_page
from tests.support.drawings import hard_circuit
from tests.support.toy_nodes import toy_circuit


def views_of(page: str) -> list[dict[str, object]]:
    found = re.search(r"<script>var circuitViews = (.*);</script>", page)
    assert found is not None
    return json.loads(found[1])


def test_page_holds_everything_and_loads_nothing() -> None:
    page = to_page([View("toy", draw_circuit(toy_circuit()))])
    assert not re.search(r"""(src|href)\s*=\s*["'](?!data:)""", page.split("<script>")[0])
    assert "default-src 'none'" in page
    assert "Eclipse Public License 2.0" in page
    assert not re.search(r"@[A-Z]+@", page)


def test_names_cannot_leave_their_script() -> None:
    drawing = draw_circuit(hard_circuit())
    page = to_page([View("</script>", drawing)])
    assert page.count("</script>") == 3
    (view,) = views_of(page)
    assert view["title"] == "</script>"
    names = [node["name"] for node in view["drawing"]["nodes"]]  # type: ignore[index]
    assert names == [node.name for node in drawing.nodes]


def test_page_is_the_same_each_time() -> None:
    views = [View("a", draw_circuit(toy_circuit())), View("b", draw_circuit(Circuit("nothing")), is_folded=True)]
    assert to_page(views) == to_page(views)


def test_page_without_a_view_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one view"):
        to_page([])
