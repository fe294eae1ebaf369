"""Reads a node's docstring: one sentence, then Ports, Result, Numerics, State, Source."""

import re
from dataclasses import dataclass

PARTS = ("Ports", "Result", "Numerics", "State", "Source")
_PART = re.compile(r"^(\w+): +(.*)$")


@dataclass(frozen=True)
class NodeDocstring:
    """The first line, and the text of each part in the order they stand, continuation lines joined."""

    first_line: str
    parts: dict[str, str]

    def ports(self) -> list[str]:
        """Return the names that the Ports part declares, in order."""
        return [entry.split()[0] for entry in split_entries(self.parts["Ports"])]

    def results(self) -> list[str]:
        """Return the names that the Result part declares, for a node of several results."""
        return [entry.split()[0] for entry in split_entries(self.parts["Result"])]

    def states(self, verb: str) -> list[str]:
        """Return the ports that the State part says are read (`reads`) or written (`writes`)."""
        return re.findall(rf"\b{verb} (\w+)", self.parts["State"])


def read_docstring(text: str) -> NodeDocstring:
    """Split a cleaned docstring (`inspect.cleandoc`) into its first line and its parts."""
    lines = text.splitlines()
    parts: dict[str, str] = {}
    part = None
    for line in lines:
        if match := _PART.match(line):
            part = match.group(1)
            assert part not in parts, f"{part} stands twice"
            parts[part] = match.group(2)
        elif part is not None:
            assert line.startswith(" "), f"{line!r}: a part's next line is indented"
            parts[part] += " " + line.strip()
    return NodeDocstring(lines[0], parts)


def split_entries(text: str) -> list[str]:
    """Split `a f32[n - 1] - b f32[n]` at the dashes that stand outside brackets."""
    entries, depth, entry = [], 0, ""
    for token in text.split():
        if token == "-" and depth == 0:
            entries.append(entry.strip())
            entry = ""
            continue
        depth += sum(token.count(mark) for mark in "[(") - sum(token.count(mark) for mark in "])")
        entry += f" {token}"
    return [*entries, entry.strip()]
