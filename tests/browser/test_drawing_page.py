"""The interactive page in a real browser, from file:// with the network off."""

import inspect
import re
from dataclasses import replace
from typing import Any

import pytest

from circuit import Circuit
from circuit.draw import CallNote, Drawing, Notes, Overlay, View, draw_circuit, draw_difference
from nodes import SparseMlaAttention
from tests.support.drawings import diamond, hard_circuit, large_circuit
from tests.support.toy_nodes import toy_circuit

Page = Any


def toy_view() -> View:
    notes = Notes(
        calls={
            "scaled": CallNote(
                "lower_scale",
                "bitwise",
                3,
                2_000,
                40,
                kernel="def lower_scale(): ...",
                kernels=("cpp_fused_scale_0",),
                unfired=(("fuse_scale", "the scale is read twice"),),
            ),
        },
        weight_sources={"norm.gain": "model.norm.weight"},
        unfired={"fuse": "nothing to fuse"},
        kernels={"cpp_fused_scale_0": "void cpp_fused_scale_0(float* x) {}"},
    )
    return View("toy", draw_circuit(toy_circuit(), notes))


def shape(drawing: Drawing, name: str) -> str:
    return "#shape-" + next(node.id for node in drawing.nodes if node.name == name and node.kind == "call")


def group(drawing: Drawing, title: str) -> str:
    return next(one.id for one in drawing.groups if one.title == title)


def drawn(page: Page) -> int:
    return int(page.get_attribute("body", "data-drawn"))


def wait_for_layout(page: Page, before: int) -> None:
    page.wait_for_selector(f'body[data-drawn="{before + 1}"]', timeout=60_000)


def boxes(page: Page) -> list[dict[str, float]]:
    return page.eval_on_selector_all(
        ".node > .box:first-of-type",
        "all => all.map(one => { const b = one.getBBox(); return {x: b.x, y: b.y, w: b.width, h: b.height}; })",
    )


def test_every_node_is_drawn_and_no_two_overlap(open_page: Any) -> None:
    view = toy_view()
    page = open_page([view])
    assert page.locator(".node").count() == len(view.drawing.nodes)
    found = boxes(page)
    for index, one in enumerate(found):
        for other in found[index + 1 :]:
            is_apart = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
            assert is_apart or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]


def test_texts_stay_inside_their_boxes(open_page: Any) -> None:
    page = open_page([toy_view()])
    spilled = page.evaluate(
        """() => [...document.querySelectorAll('.node')].filter(node => {
            const box = node.querySelector('.box').getBBox();
            return [...node.querySelectorAll('text')].some(text => {
                const held = text.getBBox();
                return held.x < box.x - 1 || held.x + held.width > box.x + box.width + 1
                    || held.y < box.y - 1 || held.y + held.height > box.y + box.height + 1;
            });
        }).map(node => node.textContent)"""
    )
    assert spilled == []


def test_a_click_fills_the_panel_with_all_that_is_known(open_page: Any) -> None:
    view = toy_view()
    page = open_page([view])
    page.click(shape(view.drawing, "scaled"))
    text = page.inner_text("#panel")
    for expected in ("ToyScale", "scaled", "x * factor.", "factor", "1e-05", "f32[n, 8]", "lower_scale", "bitwise"):
        assert expected in text
    for expected in ("2\u00a0KB", "40\u00a0B", "effects", "source of the lowering", "cpp_fused_scale_0"):
        assert expected in text
    page.click("#panel summary:has-text('cpp_fused_scale_0')")
    assert "void cpp_fused_scale_0(float* x) {}" in page.inner_text("#panel")
    # the rules that take this node are at it, and those of the whole program at the whole
    assert re.search(r"Rules for ToyScale that did not fire\s+fuse_scale\s+the scale is read twice", text)
    assert "nothing to fuse" not in text
    page.keyboard.press("Escape")
    assert "nothing to fuse" in page.inner_text("#panel")
    page.click(shape(view.drawing, "toy_gain_1"))
    assert "from model.norm.weight" in page.inner_text("#panel")
    page.click(shape(view.drawing, "next_cache"))
    assert re.search(r"writes\s+cache", page.inner_text("#panel"))


def test_links_of_the_panel_follow_an_edge_both_ways(open_page: Any) -> None:
    view = toy_view()
    page = open_page([view])
    page.click(shape(view.drawing, "scaled"))
    page.click("#panel .link:has-text('least: a')")
    assert page.locator(".selected").get_attribute("id") == shape(view.drawing, "least: a")[1:]
    page.click("#panel .link:has-text('scaled')")
    assert page.locator(".selected").get_attribute("id") == shape(view.drawing, "scaled")[1:]


def test_an_edge_shows_its_type_and_its_ends(open_page: Any) -> None:
    view = toy_view()
    page = open_page([view])
    edge = next(edge for edge in view.drawing.edges if edge.value == "next_cache")
    # a horizontal or vertical line has no area to aim at
    page.dispatch_event(f'[data-edge="{edge.id}"] .hit', "pointerdown", {"button": 0, "bubbles": True})
    page.dispatch_event(f'[data-edge="{edge.id}"] .hit', "pointerup", {"button": 0, "bubbles": True})
    text = page.inner_text("#panel")
    assert "paged/2 f32[num_blocks, 4, 8]" in text
    assert "state, threaded" in text
    assert "next state cache" in text


def test_search_finds_a_node_inside_a_collapsed_block_and_opens_it(open_page: Any) -> None:
    view = View("toy", toy_view().drawing, is_folded=True)
    page = open_page([view])
    assert page.locator(shape(view.drawing, "toy_gain_1")).count() == 0
    page.keyboard.press("/")
    page.keyboard.type("norm.gain")
    assert page.locator("#found li").count() == 1
    page.keyboard.press("Enter")
    page.wait_for_selector(shape(view.drawing, "toy_gain_1") + ".selected")
    assert "ToyGain" in page.inner_text("#panel")


def test_search_finds_a_block_and_goes_to_it(open_page: Any) -> None:
    view = toy_view()
    page = open_page([view])
    inner = next(one for one in view.drawing.groups if one.parent)
    page.keyboard.press("/")
    page.keyboard.type(f"{inner.kind} {inner.title}")
    page.keyboard.press("Enter")
    page.wait_for_selector(".group.selected")
    assert page.locator(".selected").get_attribute("id") == f"shape-{inner.id}"
    assert inner.title in page.inner_text("#panel h2")


def test_the_lines_of_a_docstring_become_rows_and_none_is_lost(open_page: Any) -> None:
    doc = inspect.cleandoc(SparseMlaAttention.__doc__ or "")
    drawing = replace(toy_view().drawing, docs=(("ToyScale", doc),))
    page = open_page([View("toy", drawing)])
    page.click(shape(drawing, "scaled"))
    assert re.findall(r"\w+", page.inner_text("#panel .doc")) == re.findall(r"\w+", doc)
    assert page.locator("#panel .doc th").all_inner_texts() == ["Ports", "Result", "Numerics", "State", "Source"]
    assert len(page.locator("#panel .doc td").first.inner_text().splitlines()) == len(SparseMlaAttention.ports)


def test_search_for_nothing_says_so(open_page: Any) -> None:
    page = open_page([toy_view()])
    page.fill("#search", "no such thing")
    assert page.inner_text("#found") == "nothing of that name"


def test_collapse_and_expand_keep_every_edge_across_the_frame(open_page: Any) -> None:
    view = toy_view()
    page = open_page([view])
    head, before = group(view.drawing, "head"), drawn(page)
    page.click(f'[data-toggle="{head}"]')
    wait_for_layout(page, before)
    assert page.locator(".node.call").count() == 2
    # x and other come in, least and toy_gain_1 go on to the two calls outside, which have five edges of their own
    assert page.locator(".edge:not(#legend .edge)").count() == 9
    page.click(f'[data-toggle="{head}"]')
    wait_for_layout(page, before + 1)
    assert page.locator(".node.call").count() == 5


def test_keyboard_alone_walks_collapses_and_changes_the_theme(open_page: Any) -> None:
    view = toy_view()
    page = open_page([view])
    page.focus("#stage")
    page.keyboard.press("ArrowDown")
    assert page.locator(".selected").count() == 1
    for _ in range(8):
        page.keyboard.press("ArrowDown")
    last = page.locator(".selected").get_attribute("class")
    assert "output" in last or "next_state" in last
    page.keyboard.press("ArrowUp")
    assert "call" in page.locator(".selected").get_attribute("class")
    before = drawn(page)
    page.keyboard.press("c")
    wait_for_layout(page, before)
    assert page.locator(".node.call").count() == 2
    page.keyboard.press("d")
    assert page.get_attribute("html", "data-theme") == "dark"
    page.keyboard.press("Escape")
    assert "Keys" in page.inner_text("#panel")


def test_every_control_is_reached_by_tab(open_page: Any) -> None:
    page = open_page([toy_view(), View("other", draw_circuit(diamond()))])
    reached = []
    for _ in range(12):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id"))
    assert {"view", "search", "fit", "in", "out", "collapse", "expand", "theme", "stage"} <= set(reached)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_page_starts_in_the_theme_of_the_machine(open_page: Any, theme: str) -> None:
    page = open_page([toy_view()], theme=theme)
    assert page.get_attribute("html", "data-theme") == theme


def test_zoom_and_pan_move_one_transform_and_redraw_nothing(open_page: Any) -> None:
    page = open_page([View("large", draw_circuit(large_circuit(500)))])
    assert page.locator(".node.call").count() == 500
    before = drawn(page)
    page.evaluate("window.kept = document.querySelector('.node')")
    transform = "document.getElementById('canvas').style.transform"
    start = page.evaluate(transform)
    page.mouse.move(400, 400)
    page.mouse.wheel(0, -300)
    page.wait_for_timeout(300)
    zoomed = page.evaluate(transform)
    assert zoomed.split("scale")[1] != start.split("scale")[1]
    page.mouse.down()
    page.mouse.move(480, 430, steps=4)
    page.mouse.up()
    page.wait_for_timeout(300)
    assert page.evaluate(transform) != zoomed
    assert page.evaluate("window.kept.isConnected")
    assert drawn(page) == before


def test_views_are_chosen_and_a_chain_unrolls(open_page: Any) -> None:
    folded = View("unrolled", toy_view().drawing, is_folded=True)
    page = open_page([View("rolled", draw_circuit(diamond(), Notes(feedback=(("y", "x"),)))), folded])
    assert page.locator(".edge.feedback:not(#legend .edge)").count() == 1
    before = drawn(page)
    page.select_option("#view", label="unrolled")
    wait_for_layout(page, before)
    assert page.inner_text("#name") == "toy"
    assert page.locator(".node.call").count() == 2


def test_overlay_shows_numbers_bars_and_a_legend(open_page: Any) -> None:
    drawing = toy_view().drawing
    ids = [node.id for node in drawing.nodes if node.kind == "call"]
    overlays = (
        Overlay("time", "us", "measured", is_sum=True, nodes=tuple((id, 10.0 * n) for n, id in enumerate(ids))),
        Overlay("error", "", "parity", "log", edges=(("scaled", 1e-6), ("toy_gain_1", 1e-3), ("most", float("inf")))),
    )
    fields = {name: getattr(drawing, name) for name in Drawing.__dataclass_fields__}
    page = open_page([View("toy", Drawing(**{**fields, "overlays": overlays}))])
    assert page.locator(".bar").count() == len(ids)
    assert "40\u00a0µs" in page.inner_text("#legend")
    page.select_option("#overlay", label="error")
    widths = page.eval_on_selector_all(".edge .line[style]", "all => all.map(one => parseFloat(one.style.strokeWidth))")
    assert len(widths) == 3
    assert max(widths) > min(widths)
    assert "\u221e" in page.locator(".edge title", has_text="most:").first.text_content()


def test_difference_marks_what_was_added_removed_and_changed(open_page: Any) -> None:
    merged = draw_difference(draw_circuit(diamond(2.0, "y")), draw_circuit(diamond(3.0, "z")))
    page = open_page([View("merged", merged)])
    assert page.locator(".node.call.s-added").count() == 1
    assert page.locator(".node.call.s-removed").count() == 1
    assert page.locator("#panel .link").all_inner_texts() == [
        node.name for node in merged.nodes if node.status != "same"
    ]
    page.click("#panel .link:has-text('scaled')")
    assert page.locator(".selected").get_attribute("id") == shape(merged, "scaled")[1:]
    page.click(".node.call.s-changed >> nth=0")
    assert re.search(r"attribute factor\s+2\.0\s+→\s+3\.0", page.inner_text("#panel"))


def test_hard_names_are_shown_as_they_are(open_page: Any) -> None:
    drawing = draw_circuit(hard_circuit())
    page = open_page([View("</script>", drawing)])
    assert page.inner_text("#name") == drawing.name
    titles = page.eval_on_selector_all(".node > title", "all => all.map(one => one.textContent)")
    assert set(titles) == {f"{node.title} {node.name}" for node in drawing.nodes}


def test_empty_circuit_is_a_page(open_page: Any) -> None:
    page = open_page([View("nothing", draw_circuit(Circuit("nothing")))])
    assert page.inner_text("#panel h2") == "nothing"
    page.keyboard.press("f")
    page.focus("#stage")
    page.keyboard.press("ArrowDown")
    assert page.locator(".node").count() == 0
