"""A drawing for the terminal: calls from top to bottom, live values as wires at the left, launches as boxes.

Every line fits the width. Wires come closer together, and at last give way to names alone, where they would take more
than half of it.
"""

import textwrap
from collections.abc import Iterator, Sequence

import networkx as nx

from circuit.draw.cells import fitted, padded
from circuit.draw.drawing import EDGE_MEANINGS, Drawing, DrawnEdge, DrawnGroup, DrawnNode
from circuit.draw.rails import RAIL_MEANINGS, Rails

MIN_WIDTH = 24  # cells
_SIGNS = {"same": "", "added": "+ ", "removed": "- ", "changed": "~ "}


def to_terminal(drawing: Drawing, *, width: int) -> str:
    """Return the drawing as lines of at most `width` cells, 24 at least."""
    return "\n".join(_Terminal(drawing, max(width, MIN_WIDTH)).lines()) + "\n"


class _Terminal:
    def __init__(self, drawing: Drawing, width: int) -> None:
        self.drawing = drawing
        self.width = width
        self.order = _ordered(drawing)
        place = {node.id: index for index, node in enumerate(self.order)}
        # an edge that runs backwards ends in a line of its own, for wires only run down
        self.edges = [edge for edge in drawing.edges if place[edge.source] < place[edge.target]]
        self.backward = [edge for edge in drawing.edges if place[edge.source] >= place[edge.target]]
        self.last_use: dict[str, str] = {}
        self.readers: dict[str, list[DrawnEdge]] = {}
        for edge in sorted(self.edges, key=lambda edge: place[edge.target]):
            self.last_use[_key(edge.source, edge.source_port)] = edge.target
            self.readers.setdefault(edge.target, []).append(edge)
        num_lanes = self._num_lanes()
        step = next((step for step in (2, 1) if step * num_lanes <= width // 2), 0)
        self.rails = Rails(num_lanes, step=step)

    def lines(self) -> Iterator[str]:
        """Yield the title, the calls, the fed back edges and a legend."""
        drawing = self.drawing
        yield fitted(drawing.name, self.width)
        # wrapping counts characters; what wide ones add is cut
        yield from (fitted(line, self.width) for line in textwrap.wrap(drawing.about, self.width))
        place: tuple[DrawnGroup, ...] = ()
        for node in self.order:
            path = drawing.group_path(node.group)
            yield from self._moved(place, path)
            place = path
            yield from self._node(node, in_box=any(group.kind == "launch" for group in path))
        yield from self._moved(place, ())
        for edge in self.backward:
            yield fitted(f"{edge.value}: {edge.type} {EDGE_MEANINGS[edge.kind]}, to {self._name(edge)}", self.width)
        if kinds := {edge.kind for edge in self.edges}:
            legend = "   ".join(f"{glyph} {EDGE_MEANINGS[kind]}" for glyph, kind in RAIL_MEANINGS if kind in kinds)
            yield from ("", fitted(legend, self.width)) if self.rails.step else ()
        for overlay in drawing.overlays:
            unit = f" in {overlay.unit}" if overlay.unit else ""
            yield from (
                fitted(line, self.width)
                for line in textwrap.wrap(f"[] {overlay.name}{unit}: {overlay.about}", self.width)
            )

    def _moved(self, old: Sequence[DrawnGroup], new: Sequence[DrawnGroup]) -> Iterator[str]:
        """Yield what closes and opens between two places: a launch's box, a line for every other group."""
        if tuple(old) == tuple(new):
            return
        wires, room = self.rails.passing(), self.width - self.rails.width
        if any(group.kind == "launch" for group in old):
            yield wires + "└" + "─" * (room - 2) + "┘"
        titles = [group.title for group in new if group.kind != "launch"]
        if titles and titles != [group.title for group in old if group.kind != "launch"]:
            yield wires + fitted(f"[{'/'.join(titles)}]", room)
        for group in new:
            if group.kind == "launch":
                yield wires + padded(f"┌─ {fitted(group.title, max(room - 6, 0))} ", room - 1, "─") + "┐"

    def _node(self, node: DrawnNode, *, in_box: bool) -> Iterator[str]:
        readers = self.readers.get(node.id, [])
        values = [_key(edge.source, edge.source_port) for edge in readers]
        ended = [value for value in dict.fromkeys(values) if self.last_use[value] == node.id]
        if node.kind in ("call", "output", "next_state"):
            wires = self.rails.take(values, last=ended, end="▶" if values else "")
            yield wires + self._text(f"{_SIGNS[node.status]}{self._called(node)}", in_box)
        for index, port in enumerate(node.makes):
            key = _key(node.id, index)
            kind = next((edge.kind for edge in self.edges if _key(edge.source, edge.source_port) == key), None)
            title = "" if node.kind == "call" else f"{_SIGNS[node.status]}{node.title} "
            wires = self.rails.passing() if kind is None else self.rails.make(key, kind, end="")
            unread = "" if kind is not None else "  (not read)"
            yield wires + self._text(f"{title}{port.value}: {port.type}{unread}", in_box)

    def _called(self, node: DrawnNode) -> str:
        if node.kind != "call":
            return f"{node.title} {node.name} = {', '.join(port.value for port in node.takes)}"
        called = f"{node.title}({', '.join(port.value for port in node.takes)})"
        numbers = [
            f"{dict(overlay.nodes)[node.id]:.3g} {overlay.unit}".rstrip()
            for overlay in self.drawing.overlays
            if node.id in dict(overlay.nodes)
        ]
        # before the weights: where a line is cut, a number is what was asked for
        called += f"  [{', '.join(numbers)}]" if numbers else ""
        return called + (f"  {', '.join(weight.name for weight in node.weights)}" if node.weights else "")

    def _text(self, text: str, in_box: bool) -> str:
        room = self.width - self.rails.width
        if not in_box:
            return fitted((" " if self.rails.step else "") + text, room)
        return "│ " + padded(text, room - 4) + " │"

    def _name(self, edge: DrawnEdge) -> str:
        return next(node.name for node in self.order if node.id == edge.target)

    def _num_lanes(self) -> int:
        """Return how many values are alive at once, at most."""
        alive: set[str] = set()
        most = 0
        for node in self.order:
            alive -= {value for value, target in self.last_use.items() if target == node.id}
            alive |= {key for index in range(len(node.makes)) if (key := _key(node.id, index)) in self.last_use}
            most = max(most, len(alive))
        return most


def _key(node: str, port: int) -> str:
    return f"{node}.{port}"


def _ordered(drawing: Drawing) -> list[DrawnNode]:
    """Return the nodes in an order that keeps each launch together, where the edges allow it."""
    launch_of = {
        node.id: next((group.id for group in drawing.group_path(node.group) if group.kind == "launch"), node.id)
        for node in drawing.nodes
    }
    first: dict[str, int] = {}
    for index, node in enumerate(drawing.nodes):
        first.setdefault(launch_of[node.id], index)
    graph: nx.DiGraph = nx.DiGraph()
    graph.add_nodes_from(first)
    ends = [(edge, launch_of[edge.source], launch_of[edge.target]) for edge in drawing.edges]
    graph.add_edges_from((a, b) for edge, a, b in ends if a != b and edge.target_port >= 0)
    if not nx.is_directed_acyclic_graph(graph):
        return list(drawing.nodes)
    rank = {unit: index for index, unit in enumerate(nx.lexicographical_topological_sort(graph, key=first.__getitem__))}
    place = {node.id: index for index, node in enumerate(drawing.nodes)}
    return sorted(drawing.nodes, key=lambda node: (rank[launch_of[node.id]], place[node.id]))
