"""Two drawings in one: what was added, removed, and changed in type, wiring, attributes, block or lowering.

Nodes are the same node when kind and name agree, so a renamed value is one removed and one added.
"""

from collections.abc import Iterable
from dataclasses import replace

from circuit.draw.drawing import CallNote, Drawing, DrawnEdge, DrawnGroup, DrawnNode

# what a note says that is no measure of this machine
_NOTED = ("lowering", "numerics", "launch", "flops", "bytes_read", "bytes_written")


def draw_difference(before: Drawing, after: Drawing) -> Drawing:
    """Return `after` with what only `before` has put in, every node and edge marked with its status."""
    old = {(node.kind, node.name): node for node in before.nodes}
    new = {(node.kind, node.name): node for node in after.nodes}
    nodes = [_compared(old.get(key), node, before, after) for key, node in new.items()]
    groups = list(after.groups)
    ids = {old[key].id: new[key].id for key in old if key in new}
    for key, node in old.items():
        if key in new:
            continue
        id = f"n{len(nodes)}"
        ids[node.id] = id
        group = _group_of(groups, before.group_path(node.group))
        nodes.append(replace(node, id=id, group=group, status="removed"))
    edges = _edges(before, after, ids)
    return replace(
        after,
        about=f"{after.about or after.name}, compared with {before.about or before.name}",
        nodes=tuple(nodes),
        groups=tuple(groups),
        edges=edges,
        docs=_united(before.docs, after.docs),
        sources=_united(before.sources, after.sources),
        kernels=_united(before.kernels, after.kernels),
    )


def num_changes(drawing: Drawing) -> dict[str, int]:
    """Return how many nodes were added, removed and changed."""
    statuses = [node.status for node in drawing.nodes]
    return {status: statuses.count(status) for status in ("added", "removed", "changed")}


def _compared(old: DrawnNode | None, new: DrawnNode, before: Drawing, after: Drawing) -> DrawnNode:
    if old is None:
        return replace(new, status="added")
    were, are = _facts(old, before), _facts(new, after)
    names = [*were, *(name for name in are if name not in were)]
    changes = tuple(
        (name, were.get(name, "none"), are.get(name, "none")) for name in names if were.get(name) != are.get(name)
    )
    return replace(new, status="changed" if changes else "same", changes=changes)


def _facts(node: DrawnNode, drawing: Drawing) -> dict[str, str]:
    """Return what is compared of a node, by name."""
    facts = {"node": node.title, "block": "/".join(group.title for group in drawing.group_path(node.group))}
    facts |= {f"attribute {name}": text for name, text in node.attributes}
    for port in node.takes:
        facts[f"port {port.name}"] = f"{port.value}: {port.type}"
    for weight in node.weights:
        facts[f"weight {weight.port}"] = f"{weight.name}: {weight.type}"
    for port in node.makes:
        facts[f"result {port.name}"] = f"{port.value}: {port.type}"
    return facts | _noted(node.note)


def _noted(note: CallNote | None) -> dict[str, str]:
    if note is None:
        return {}
    held = {name: getattr(note, name) for name in _NOTED}
    return {name.replace("_", " "): str(value) for name, value in held.items() if value not in (None, "")}


def _group_of(groups: list[DrawnGroup], path: tuple[DrawnGroup, ...]) -> str | None:
    """Return the id of the group with these titles, making what is missing of it."""
    parent: str | None = None
    for step in path:
        found = next((g for g in groups if (g.parent, g.kind, g.title) == (parent, step.kind, step.title)), None)
        if found is None:
            found = DrawnGroup(f"g{len(groups)}", step.kind, step.title, parent)
            groups.append(found)
        parent = found.id
    return parent


def _edges(before: Drawing, after: Drawing, ids: dict[str, str]) -> tuple[DrawnEdge, ...]:
    def key(edge: DrawnEdge) -> tuple[object, ...]:
        return (edge.source, edge.source_port, edge.target, edge.target_port, edge.value, edge.kind)

    moved = [replace(edge, source=ids[edge.source], target=ids[edge.target]) for edge in before.edges]
    had, has = {key(edge): edge for edge in moved}, {key(edge) for edge in after.edges}
    edges = [_compared_edge(had.get(key(edge)), edge) for edge in after.edges]
    for edge in moved:
        if key(edge) not in has:
            edges.append(replace(edge, id=f"e{len(edges)}", status="removed"))
    return tuple(edges)


def _compared_edge(old: DrawnEdge | None, new: DrawnEdge) -> DrawnEdge:
    if old is None:
        return replace(new, status="added")
    return new if old.type == new.type else replace(new, status="changed", type=f"{old.type} \u2192 {new.type}")


def _united(first: Iterable[tuple[str, str]], second: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted({**dict(first), **dict(second)}.items()))
