"""Drawing: what every format shows of a circuit, as plain data. Ids are short and safe; names stay whole beside them.

A drawing holds nodes (calls, inputs, outputs, states), groups (blocks, drafts of a chain, launches) that nest, and
edges from a port to a port. What a plan, a measurement or another circuit says of them arrives as notes and overlays.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

NodeKind = Literal["call", "input", "output", "weight", "state", "next_state"]
EdgeKind = Literal["data", "state", "feedback", "host", "weight"]
GroupKind = Literal["block", "draft", "launch"]
Status = Literal["same", "added", "removed", "changed"]

# what each kind of edge means, in the words of every legend
EDGE_MEANINGS: dict[EdgeKind, str] = {
    "data": "data",
    "state": "state, threaded",
    "feedback": "fed back to the next draft",
    "host": "seen by the host",
    "weight": "weight",
}


@dataclass(frozen=True, slots=True)
class CallNote:
    """What a plan says of one call; `launch` groups calls that run as one, costs are of one run.

    kernel: source of its lowering, or empty. kernels: names of the kernels that run it, whose sources the drawing
    holds. unfired: rules whose pattern has this type of node and which did not fire, each with its reason.
    """

    lowering: str = ""
    numerics: str = ""
    flops: int | None = None
    bytes_read: int | None = None
    bytes_written: int | None = None
    launch: str = ""
    kernel: str = ""
    kernels: tuple[str, ...] = ()
    unfired: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class DrawnPort:
    """One port of a node: its own name, and the value that goes through it with its type."""

    name: str
    value: str
    type: str


@dataclass(frozen=True, slots=True)
class DrawnWeight:
    """A weight bound to a port: its name, its type (dtype and shape), and the tensor it comes from, if known."""

    port: str
    name: str
    type: str
    source: str = ""


@dataclass(frozen=True, slots=True)
class DrawnNode:
    """One node. `title` is the node type, or the kind of a source or sink; `name` the value or output it stands for.

    takes leaves the weights out, which stand in `weights`; reads and writes are the ports that hold state.
    changes: of a compared drawing, each as (what, before, after).
    """

    id: str
    kind: NodeKind
    title: str
    name: str
    group: str | None = None
    attributes: tuple[tuple[str, str], ...] = ()
    takes: tuple[DrawnPort, ...] = ()
    weights: tuple[DrawnWeight, ...] = ()
    makes: tuple[DrawnPort, ...] = ()
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    note: CallNote | None = None
    status: Status = "same"
    changes: tuple[tuple[str, str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class DrawnEdge:
    """One value on its way from a node's result to a node's port, both by index of the port; `type` is its text."""

    id: str
    source: str
    source_port: int
    target: str
    target_port: int
    value: str
    type: str
    kind: EdgeKind
    status: Status = "same"


@dataclass(frozen=True, slots=True)
class DrawnGroup:
    """Nodes drawn inside one frame; `parent` is the id of the group around it, `note` what a plan says of it whole."""

    id: str
    kind: GroupKind
    title: str
    parent: str | None = None
    note: CallNote | None = None


@dataclass(frozen=True, slots=True)
class Overlay:
    """Numbers laid over a drawing: by node id, by value name for edges, or by group id.

    scale: how a number becomes a shade, `log` where they span decades. `is_sum` says that a group's number is the sum
    of its nodes'. `about` says where the numbers come from, and whether they were measured or planned.
    """

    name: str
    unit: str
    about: str
    scale: Literal["linear", "log"] = "linear"
    is_sum: bool = False
    nodes: tuple[tuple[str, float], ...] = ()
    edges: tuple[tuple[str, float], ...] = ()
    groups: tuple[tuple[str, float], ...] = ()
    details: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Drawing:
    """A circuit as it is drawn. `about` says which program it is; `docs` and `sources` are by node type.

    kernels: name and source of each kernel that notes name.
    """

    name: str
    about: str
    nodes: tuple[DrawnNode, ...]
    groups: tuple[DrawnGroup, ...]
    edges: tuple[DrawnEdge, ...]
    docs: tuple[tuple[str, str], ...] = ()
    sources: tuple[tuple[str, str], ...] = ()
    unfired: tuple[tuple[str, str], ...] = ()
    kernels: tuple[tuple[str, str], ...] = ()
    overlays: tuple[Overlay, ...] = field(default=())

    def group_path(self, group: str | None) -> tuple[DrawnGroup, ...]:
        """Return the groups around a node or group, outermost first."""
        by_id = {one.id: one for one in self.groups}
        path: list[DrawnGroup] = []
        while group is not None:
            path.append(by_id[group])
            group = by_id[group].parent
        return tuple(reversed(path))

    def children(self, group: str | None) -> Iterator["DrawnNode | DrawnGroup"]:
        """Yield what stands directly in a group, None for the drawing itself: its groups, then its nodes."""
        yield from (one for one in self.groups if one.parent == group)
        yield from (one for one in self.nodes if one.group == group)
