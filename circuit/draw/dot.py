"""A drawing in Graphviz's DOT language: blocks as clusters, weights as lines of the node that takes them."""

from circuit.draw.drawing import Drawing, DrawnEdge, DrawnGroup, DrawnNode

_SHAPES = {
    "call": "box",
    "input": "invhouse",
    "output": "house",
    "weight": "note",
    "state": "cylinder",
    "next_state": "cylinder",
}
# told apart by line, not by colour alone
_EDGE_STYLES = {
    "data": "",
    "state": 'color="#0072b2:invis:#0072b2", penwidth=1.5',
    "feedback": 'color="#d55e00", style=dashed, constraint=false',
    "host": 'color="#555555", style=dotted, penwidth=1.8, arrowhead=empty',
    "weight": 'color="#777777", arrowhead=none',
}
_STATUS_STYLES = {
    "same": "",
    "added": 'style="filled,bold", fillcolor="#d7f0dd"',
    "removed": 'style="filled,dashed", fillcolor="#f7dcdc"',
    "changed": 'style="filled,diagonals", fillcolor="#fff1c9"',
}


def to_dot(drawing: Drawing) -> str:
    """Return the drawing as a DOT digraph; ids are n0, g0, and names stand in labels, whatever they hold."""
    lines = [f"digraph {_quoted(drawing.name)} {{", "  rankdir=TB;", "  compound=true;"]
    if drawing.about:
        lines.append(f"  label={_quoted(drawing.about)};")
    lines += ['  node [fontname="Helvetica", fontsize=11];', '  edge [fontname="Helvetica", fontsize=9];']
    lines += _inside(drawing, None, indent="  ")
    lines += [_edge(edge) for edge in drawing.edges]
    return "\n".join([*lines, "}"]) + "\n"


def _inside(drawing: Drawing, group: str | None, *, indent: str) -> list[str]:
    lines: list[str] = []
    for child in drawing.children(group):
        if isinstance(child, DrawnGroup):
            style = {"launch": "bold", "draft": "dashed", "block": "rounded"}[child.kind]
            lines.append(f"{indent}subgraph cluster_{child.id} {{")
            lines.append(f"{indent}  label={_quoted(child.title)}; style={style};")
            lines += _inside(drawing, child.id, indent=indent + "  ")
            lines.append(f"{indent}}}")
        else:
            lines.append(f"{indent}{_node(child)}")
    return lines


def _node(node: DrawnNode) -> str:
    made = [f"{port.value}: {port.type}" for port in node.makes] if node.kind == "call" else [node.name]
    weights = [f"weight {weight.name}: {weight.type}" for weight in node.weights]
    attributes = [", ".join(f"{name}={text}" for name, text in node.attributes)] if node.attributes else []
    sign = {"same": "", "added": "+ ", "removed": "- ", "changed": "~ "}[node.status]
    label = "\n".join([sign + node.title, *attributes, *made, *weights])
    style = _STATUS_STYLES[node.status]
    return f"{node.id} [shape={_SHAPES[node.kind]}, label={_quoted(label)}{', ' + style if style else ''}];"


def _edge(edge: DrawnEdge) -> str:
    parts = [f"label={_quoted(edge.value)}", f"tooltip={_quoted(edge.type)}", _EDGE_STYLES[edge.kind]]
    if edge.status != "same":
        parts.append({"added": "penwidth=2.5", "removed": "style=dashed", "changed": "penwidth=1.8"}[edge.status])
    return f"  {edge.source} -> {edge.target} [{', '.join(part for part in parts if part)}];"


def _quoted(text: str) -> str:
    """Return a DOT string: in one, quote, backslash and the ampersand of an entity are special, a newline is \\n."""
    escaped = text.replace("&", "&amp;").replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
