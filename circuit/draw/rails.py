"""Rails: the wires at the left of a terminal drawing, one lane a live value, drawn by the kind of edge.

A value takes the first free lane when it is made and leaves it after its last reader. Data runs as a plain line, state
as a double one, host-visible edges and feedback as two dashes; crossings are drawn as such, junctions mean a reader.
"""

from collections.abc import Mapping, Sequence

from circuit.draw.drawing import EdgeKind

# per kind: passing, crossed, read and going on, read for the last time, begun
_GLYPHS: dict[EdgeKind, tuple[str, str, str, str, str]] = {
    "data": ("│", "┼", "├", "└", "┌"),
    "state": ("║", "╫", "╟", "╙", "╓"),
    "feedback": ("┊", "┼", "├", "└", "┌"),
    "host": ("╎", "┼", "├", "└", "┌"),
    "weight": ("│", "┼", "├", "└", "┌"),
}
_LAST_CROSSED = {"└": "┴", "╙": "╨", "┌": "┬", "╓": "╥", "├": "┼", "╟": "╫"}
RAIL_MEANINGS: tuple[tuple[str, EdgeKind], ...] = (("│", "data"), ("║", "state"), ("┊", "feedback"), ("╎", "host"))


class Rails:
    """The lanes after the lines drawn so far; `num_lanes` is fixed, `step` is cells a lane, 0 for none."""

    def __init__(self, num_lanes: int, *, step: int) -> None:
        self.step = step
        self._lanes: list[tuple[str, EdgeKind] | None] = [None] * num_lanes

    @property
    def width(self) -> int:
        """Cells that the lanes take."""
        return self.step * len(self._lanes)

    def passing(self) -> str:
        """Return a line on which nothing happens."""
        return self._line({}, end="")

    def take(self, values: Sequence[str], *, last: Sequence[str], end: str) -> str:
        """Return the line on which `values` are read, those in `last` for the last time; `end` fills the gap's end."""
        marks = {}
        for lane, held in enumerate(self._lanes):
            if held is not None and held[0] in values:
                marks[lane] = _GLYPHS[held[1]][3 if held[0] in last else 2]
        line = self._line(marks, end=end)
        for lane, held in enumerate(self._lanes):
            if held is not None and held[0] in last:
                self._lanes[lane] = None
        return line

    def make(self, value: str, kind: EdgeKind, *, end: str) -> str:
        """Return the line on which `value` begins, in the first free lane."""
        lane = self._lanes.index(None)
        self._lanes[lane] = (value, kind)
        return self._line({lane: _GLYPHS[kind][4]}, end=end)

    def _line(self, marks: Mapping[int, str], *, end: str) -> str:
        """Return one line: marked lanes are joined by a line that runs from the first of them to the right."""
        if not self.step:
            return ""
        first = min(marks, default=len(self._lanes))
        cells = []
        for lane, held in enumerate(self._lanes):
            is_joined = lane >= first
            if lane in marks:
                glyph = marks[lane] if lane == first else _joined(marks[lane])
            elif held is None:
                glyph = "─" if is_joined else " "
            else:
                glyph = _GLYPHS[held[1]][1 if is_joined else 0]
            cells.append(glyph + ("─" if is_joined else " ") * (self.step - 1))
        line = "".join(cells)
        return line[: -len(end)] + end if marks and end and self.step > 1 else line


def _joined(mark: str) -> str:
    """Return a mark that others stand left of; readers that go on stay, for a plain crossing would be no junction."""
    return mark if mark in "├╟" else _LAST_CROSSED[mark]
