"""A drawing in Model Explorer's graph format: namespaces are blocks and launches, attributes what the panel shows."""

import json
from typing import Any

from circuit.draw.drawing import CallNote, Drawing, DrawnNode, Overlay


def to_model_explorer(drawing: Drawing) -> str:
    """Return JSON that Model Explorer opens; node ids are ours, names are labels and attributes.

    A `/` in a group's name is written as the fraction slash U+2044, for the format nests namespaces by `/`.
    """
    graph = {
        "id": drawing.name,
        "nodes": [_node(drawing, node) for node in drawing.nodes],
        "groupNodeAttributes": {
            _namespace(drawing, group.id): {"kind": group.kind, "name": group.title} | _planned(group.note)
            for group in drawing.groups
        },
    }
    # a collection without a label is refused as no format that it knows
    return json.dumps({"label": drawing.name, "graphs": [graph]}, ensure_ascii=False, indent=1) + "\n"


def _node(drawing: Drawing, node: DrawnNode) -> dict[str, Any]:
    incoming = [
        {
            "sourceNodeId": edge.source,
            "sourceNodeOutputId": str(edge.source_port),
            "targetNodeInputId": str(edge.target_port),
        }
        for edge in drawing.edges
        # the viewer drops edges that close a cycle, and others with them: what feeds the next run is an attribute
        if edge.target == node.id and edge.target_port >= 0
    ]
    return {
        "id": node.id,
        "label": node.title if node.kind == "call" else node.name,
        "namespace": _namespace(drawing, node.group),
        "attrs": [{"key": key, "value": value} for key, value in _attributes(drawing, node)],
        "incomingEdges": incoming,
        "inputsMetadata": [
            {"id": str(index), "attrs": [*_pairs(port.name, port.value, port.type), *_kinds(drawing, node, index)]}
            for index, port in enumerate(node.takes)
        ],
        "outputsMetadata": [
            {"id": str(index), "attrs": _pairs(port.name, port.value, port.type)}
            for index, port in enumerate(node.makes)
        ],
    }


def _attributes(drawing: Drawing, node: DrawnNode) -> list[tuple[str, str]]:
    held = [("kind", node.kind), ("name", node.name), *node.attributes]
    held += [
        (f"weight {weight.port}", f"{weight.name}: {weight.type}" + (f" from {weight.source}" if weight.source else ""))
        for weight in node.weights
    ]
    held += [("reads state", ", ".join(node.reads))] if node.reads else []
    held += [("writes state", ", ".join(node.writes))] if node.writes else []
    names = {other.id: other.name for other in drawing.nodes}
    fed = [names[edge.target] for edge in drawing.edges if edge.source == node.id and edge.target_port < 0]
    held += [("feeds the next run's", ", ".join(fed))] if fed else []
    held += _planned(node.note).items()
    if node.status != "same":
        held.append(("status", node.status))
        held += [(f"changed {what}", f"{before} -> {after}") for what, before, after in node.changes]
    held += [
        (_overlay_key(overlay), f"{value:g}")
        for overlay in drawing.overlays
        for id, value in overlay.nodes
        if id == node.id
    ]
    return held


def _planned(note: CallNote | None) -> dict[str, str]:
    if note is None:
        return {}
    figures = {"flops": note.flops, "bytes read": note.bytes_read, "bytes written": note.bytes_written}
    held = {"lowering": note.lowering, "numerics": note.numerics}
    held |= {name: str(figure) for name, figure in figures.items() if figure is not None}
    held |= {"kernels": ", ".join(note.kernels)} if note.kernels else {}
    return held | {f"rule {name} did not fire": why for name, why in note.unfired}


def _overlay_key(overlay: Overlay) -> str:
    return f"{overlay.name} ({overlay.unit})" if overlay.unit else overlay.name


def _pairs(port: str, value: str, type: str) -> list[dict[str, str]]:
    # `shape` is the key whose text Model Explorer writes on edges; __tensor_tag names the port
    return [
        {"key": "__tensor_tag", "value": port},
        {"key": "tensor_name", "value": value},
        {"key": "shape", "value": type},
    ]


def _kinds(drawing: Drawing, node: DrawnNode, port: int) -> list[dict[str, str]]:
    """Return the kinds of the edges that come into a port, for the format has no kinds of its own."""
    edges = [edge for edge in drawing.edges if (edge.target, edge.target_port) == (node.id, port)]
    return [{"key": "edge", "value": edge.kind} for edge in edges]


def _namespace(drawing: Drawing, group: str | None) -> str:
    return "/".join(one.title.replace("/", "\u2044") for one in drawing.group_path(group))
