"""A circuit becomes a drawing: calls, sources and sinks as nodes, blocks and launches as groups, values as edges."""

import inspect
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from circuit.draw.drawing import (
    CallNote,
    Drawing,
    DrawnEdge,
    DrawnGroup,
    DrawnNode,
    DrawnPort,
    DrawnWeight,
    EdgeKind,
    GroupKind,
    NodeKind,
)
from circuit.errors import CircuitError
from circuit.graph import Call, Circuit, Value
from circuit.state_type import StateType
from circuit.tensor_type import TensorType

_DRAFT = re.compile(r"draft [0-9]+\Z")


@dataclass(frozen=True, slots=True)
class Notes:
    """What those who know more say of a circuit; a drawing needs none of it.

    calls: by the call's first result. regions: of calls that stand for a circuit, whose inner calls are in `calls`.
    weight_sources: the checkpoint's tensor of each weight. feedback: (output, value) pairs that feed a next run.
    about: which program this is. unfired: rules of the whole program that did not fire, with reasons. kernels: source
    by name of every kernel that a note names.
    """

    calls: Mapping[str, CallNote] = field(default_factory=dict)
    regions: Mapping[str, CallNote] = field(default_factory=dict)
    weight_sources: Mapping[str, str] = field(default_factory=dict)
    feedback: tuple[tuple[str, str], ...] = ()
    about: str = ""
    unfired: Mapping[str, str] = field(default_factory=dict)
    kernels: Mapping[str, str] = field(default_factory=dict)


def draw_circuit(circuit: Circuit, notes: Notes | None = None) -> Drawing:
    """Return the drawing of a circuit; `CircuitError` for a note on a call or an edge that the circuit lacks."""
    notes = notes or Notes()
    firsts = {call.results[0].name for call in _all_calls(circuit)}
    if stray := sorted(set(notes.calls) - firsts):
        raise CircuitError(f"circuit {circuit.name!r}: a note on {stray[0]!r}, which no call makes; plan this circuit")
    return _Builder(circuit, notes).build()


class _Builder:
    def __init__(self, circuit: Circuit, notes: Notes) -> None:
        self.circuit = circuit
        self.notes = notes
        self.nodes: list[DrawnNode] = []
        self.edges: list[DrawnEdge] = []
        self.groups: dict[tuple[str, ...], DrawnGroup] = {}
        self.launch_places = _launch_places(circuit, notes)
        # where a value comes out: node id and index of the result
        self.origins: dict[Value, tuple[str, int]] = {}

    def build(self) -> Drawing:
        circuit = self.circuit
        for name, value in circuit.inputs.items():
            self._source("input", "input", name, value)
        for name, value in circuit.states.items():
            self._source("state", "state", name, value)
        sinks = {*circuit.outputs.values(), *circuit.state_outputs.values()}
        used = {arg for call in circuit.calls for arg in call.args}
        for name, value in circuit.weights.items():
            # a weight is a line of the node that takes it; on its own only where no node does
            if value not in used or value in sinks:
                self._source("weight", "weight", name, value)
        for call in circuit.calls:
            inner = call.node.inner_circuit()
            if inner is None:
                self._call(call, self._path(call))
            else:
                self._region(call, inner)
        outputs = {name: self._sink("output", "output", name, value) for name, value in circuit.outputs.items()}
        for name, value in circuit.state_outputs.items():
            self._sink("next_state", "next state", name, value)
        self._feed_back(outputs)
        types = {type(call.node).__name__: type(call.node) for call in _all_calls(circuit)}
        return Drawing(
            name=circuit.name,
            about=self.notes.about,
            nodes=tuple(self.nodes),
            groups=tuple(self.groups.values()),
            edges=tuple(self.edges),
            docs=tuple((name, inspect.cleandoc(node.__doc__ or "")) for name, node in sorted(types.items())),
            sources=tuple((name, _source_of(node.reference)) for name, node in sorted(types.items())),
            unfired=tuple(self.notes.unfired.items()),
            kernels=tuple(self.notes.kernels.items()),
        )

    def _source(self, kind: NodeKind, title: str, name: str, value: Value) -> None:
        node = DrawnNode(self._new_id(), kind, title, name, makes=(DrawnPort("", value.name, str(value.type)),))
        self.nodes.append(node)
        self.origins[value] = (node.id, 0)

    def _sink(self, kind: NodeKind, title: str, name: str, value: Value) -> str:
        node = DrawnNode(self._new_id(), kind, title, name, takes=(DrawnPort("", value.name, str(value.type)),))
        self.nodes.append(node)
        self._edge(value, node.id, 0, None, "host" if kind == "output" else "state")
        return node.id

    def _region(self, call: Call, inner: Circuit) -> None:
        """Draw a call that stands for a circuit as a launch around the calls of that circuit."""
        node, first = call.node, call.results[0].name
        title = str(node.attributes().get("rule", type(node).__name__))
        # calls keep the blocks they stood in before they were fused
        blocks = [_block_path(held) or _block_path(call) for held in inner.calls]
        path = (*_mostly(blocks), f"\0{title}\0{first}")
        sources = {**inner.inputs, **inner.weights, **inner.states}
        outside = {sources[port]: arg for port, arg in zip(node.ports, call.args, strict=True)}
        sizes = _sizes_of(outside)
        for held in inner.calls:
            self._call(held, path, outside, sizes)
        # a state that is written is a result too, and carries the state's name
        made = {**inner.state_outputs, **inner.outputs}
        for name, value in zip(node.results, call.results, strict=True):
            self.origins[value] = self.origins[outside.get(made[name], made[name])]

    def _call(
        self,
        call: Call,
        path: tuple[str, ...],
        outside: Mapping[Value, Value] | None = None,
        sizes: Mapping[str, int] | None = None,
    ) -> None:
        """Draw a call; `outside` maps the sources of a region's circuit to the values that it is given.

        `sizes` are those of the region's named dims, so that inside of it types read as they do outside.
        """
        node, id = call.node, self._new_id()
        ports = [(port, (outside or {}).get(arg, arg)) for port, arg in zip(node.ports, call.args, strict=True)]
        inner = [(port, arg) for port, arg in ports if arg.kind != "weight"]
        bound = [(port, arg) for port, arg in ports if arg.kind == "weight"]
        sources = self.notes.weight_sources
        self.nodes.append(
            DrawnNode(
                id=id,
                kind="call",
                title=type(node).__name__,
                name=call.results[0].name,
                group=self._group(path),
                attributes=tuple(
                    (name, json.dumps(value, ensure_ascii=False)) for name, value in node.attributes().items()
                ),
                takes=tuple(DrawnPort(port, arg.name, _spelled(arg, sizes)) for port, arg in inner),
                weights=tuple(
                    DrawnWeight(port, arg.name, str(arg.type), sources.get(arg.name, "")) for port, arg in bound
                ),
                makes=tuple(
                    DrawnPort(result, value.name, _spelled(value, sizes))
                    for result, value in zip(node.results, call.results, strict=True)
                ),
                reads=node.reads,
                writes=node.writes,
                note=self.notes.calls.get(call.results[0].name),
            )
        )
        for index, value in enumerate(call.results):
            self.origins[value] = (id, index)
        for index, (_, arg) in enumerate(inner):
            kind: EdgeKind = "host" if arg.kind == "input" else "data"
            self._edge(arg, id, index, path, kind, sizes)

    def _edge(
        self,
        value: Value,
        target: str,
        port: int,
        path: tuple[str, ...] | None,
        kind: EdgeKind,
        sizes: Mapping[str, int] | None = None,
    ) -> None:
        source, source_port = self.origins[value]
        if isinstance(value.type, StateType):
            kind = "state"
        elif value.kind == "weight":
            kind = "weight"
        elif value.call is not None and path is not None:
            made_in = next(node.group for node in self.nodes if node.id == source)
            drafts = {self._draft_of_group(made_in), _draft_of(path)}
            kind = "feedback" if len(drafts - {""}) == 2 else kind
        id = f"e{len(self.edges)}"
        self.edges.append(DrawnEdge(id, source, source_port, target, port, value.name, _spelled(value, sizes), kind))

    def _feed_back(self, outputs: Mapping[str, str]) -> None:
        """Draw what a next run is fed by, from the output to the value it takes the place of."""
        places = {value.name: origin for value, origin in self.origins.items()}
        for output, target in self.notes.feedback:
            if output not in outputs:
                raise CircuitError(f"circuit {self.circuit.name!r}: feedback from {output!r}, which is no output")
            if target not in places:
                raise CircuitError(f"circuit {self.circuit.name!r}: feedback to {target!r}, which is no value of it")
            id, _ = places[target]
            origin = self.circuit.outputs[output]
            self.edges.append(
                DrawnEdge(
                    f"e{len(self.edges)}", outputs[output], 0, id, -1, origin.name, str(origin.type), kind="feedback"
                )
            )

    def _path(self, call: Call) -> tuple[str, ...]:
        """Return the titles of the groups around a call; a launch stands in the block that holds most of it."""
        path = _block_path(call)
        note = self.notes.calls.get(call.results[0].name)
        if note is None or not note.launch:
            return path
        # no block name holds the control character, so a launch never meets a block of its name
        return (*self.launch_places[_draft_of(path), note.launch], f"\0{note.launch}")

    def _group(self, path: tuple[str, ...]) -> str | None:
        if not path:
            return None
        if path not in self.groups:
            parent = self._group(path[:-1])
            is_launch = path[-1].startswith("\0")
            title, _, region = path[-1].removeprefix("\0").partition("\0")
            kind: GroupKind = "launch" if is_launch else "block"
            if len(path) == 1 and _DRAFT.match(title):
                kind = "draft"
            note = self.notes.regions.get(region) if region else None
            self.groups[path] = DrawnGroup(f"g{len(self.groups)}", kind, title, parent, note)
        return self.groups[path].id

    def _draft_of_group(self, id: str | None) -> str:
        return next((_draft_of(path) for path, group in self.groups.items() if group.id == id), "")

    def _new_id(self) -> str:
        return f"n{len(self.nodes)}"


def _sizes_of(outside: Mapping[Value, Value]) -> dict[str, int]:
    """Return the sizes that a region's named dims have where it stands, by what is handed to its sources."""
    held: dict[str, int] = {}
    for inner, outer in outside.items():
        for dim, size in zip(_tensor(inner.type).shape, _tensor(outer.type).shape, strict=True):
            if dim.is_Symbol and size.is_Integer:
                held[str(dim)] = int(size)
    return held


def _spelled(value: Value, sizes: Mapping[str, int] | None) -> str:
    return str(value.type.bind(sizes) if sizes else value.type)


def _tensor(held: TensorType | StateType) -> TensorType:
    return held.tensor if isinstance(held, StateType) else held


def _block_path(call: Call) -> tuple[str, ...]:
    return tuple(call.block.split("/")) if call.block else ()


def _all_calls(circuit: Circuit) -> Iterator[Call]:
    """Yield every call, those inside regions in place of the region's."""
    for call in circuit.calls:
        inner = call.node.inner_circuit()
        yield from [call] if inner is None else inner.calls


def _mostly(paths: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the innermost block that more than half of the paths stand in; a stray call moves no launch out of it."""
    shared: tuple[str, ...] = ()
    while True:
        deeper = Counter(path[: len(shared) + 1] for path in paths if len(path) > len(shared))
        path, count = max(deeper.items(), key=lambda held: held[1], default=(shared, 0))
        if 2 * count <= len(paths):
            return shared
        shared = path


def _launch_places(circuit: Circuit, notes: Notes) -> dict[tuple[str, str], tuple[str, ...]]:
    """Return for each launch, by its draft and name, the blocks that hold most of it, outermost first."""
    paths: dict[tuple[str, str], list[tuple[str, ...]]] = {}
    for call in circuit.calls:
        note = notes.calls.get(call.results[0].name)
        if note is None or not note.launch:
            continue
        path = _block_path(call)
        paths.setdefault((_draft_of(path), note.launch), []).append(path)
    return {key: _mostly(held) for key, held in paths.items()}


def _draft_of(path: tuple[str, ...]) -> str:
    return path[0] if path and _DRAFT.match(path[0]) else ""


def _source_of(function: object) -> str:
    try:
        return inspect.cleandoc("\n" + inspect.getsource(function))  # type: ignore[arg-type]
    except (OSError, TypeError):
        # a node declared at a prompt has no file
        return ""
