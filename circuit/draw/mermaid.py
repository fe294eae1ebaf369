"""A drawing as a Mermaid flowchart: blocks as subgraphs, kinds of edges by their line."""

from circuit.draw.drawing import Drawing, DrawnGroup, DrawnNode, NodeKind

_BRACKETS: dict[NodeKind, tuple[str, str]] = {
    "call": ("[", "]"),
    "input": ("([", "])"),
    "output": ("([", "])"),
    "weight": ("[/", "/]"),
    "state": ("[(", ")]"),
    "next_state": ("[(", ")]"),
}
_ARROWS = {"data": "-->", "state": "==>", "feedback": "-.->", "host": "--o", "weight": "---"}
# entities that Mermaid decodes after it has parsed; `#` first, for the others bring one along
_ENTITIES = {"#": "#35;", '"': "#quot;", "<": "#lt;", ">": "#gt;", "&": "#amp;", "\\": "#92;", "`": "#96;", "$": "#36;"}


def to_mermaid(drawing: Drawing) -> str:
    """Return the drawing as a flowchart; ids are n0, g0, and names stand in quoted labels, whatever they hold."""
    lines = [f"%% {drawing.name}" + (f", {drawing.about}" if drawing.about else ""), "flowchart TB"]
    lines += _inside(drawing, None, indent="  ")
    lines += [f'  {edge.source} {_ARROWS[edge.kind]}|"{_escaped(edge.value)}"| {edge.target}' for edge in drawing.edges]
    for status, style in (
        ("added", "fill:#d7f0dd,stroke-width:3px"),
        ("removed", "fill:#f7dcdc,stroke-dasharray:5 4"),
        ("changed", "fill:#fff1c9,stroke-dasharray:1 2"),
    ):
        if ids := [node.id for node in drawing.nodes if node.status == status]:
            lines += [f"  classDef {status} {style}", f"  class {','.join(ids)} {status}"]
    return "\n".join(lines) + "\n"


def _inside(drawing: Drawing, group: str | None, *, indent: str) -> list[str]:
    lines: list[str] = []
    for child in drawing.children(group):
        if isinstance(child, DrawnGroup):
            lines.append(f'{indent}subgraph {child.id}["{_escaped(child.title)}"]')
            lines += _inside(drawing, child.id, indent=indent + "  ")
            lines.append(f"{indent}end")
        else:
            opening, closing = _BRACKETS[child.kind]
            lines.append(f'{indent}{child.id}{opening}"{_label(child)}"{closing}')
    return lines


def _label(node: DrawnNode) -> str:
    made = [f"{port.value}: {port.type}" for port in node.makes] if node.kind == "call" else [node.name]
    sign = {"same": "", "added": "+ ", "removed": "- ", "changed": "~ "}[node.status]
    parts = [sign + node.title, *made, *(f"weight {weight.name}" for weight in node.weights)]
    return "<br/>".join(_escaped(part) for part in parts)


def _escaped(text: str) -> str:
    return "".join(_ENTITIES.get(char, char) for char in text)
