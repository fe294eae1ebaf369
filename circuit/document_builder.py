"""A validated circuit document -> its verified circuit, every fault with the line where it stands."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pydantic import ValidationError

from circuit.document_model import SINGLE_RESULT, CircuitDocument, NodeDocument, document_fault
from circuit.document_reader import DocumentData, Path
from circuit.errors import CircuitError, DocumentError, VerifyError, close_names
from circuit.graph import Circuit, Value
from circuit.node import Node, node_types
from circuit.state_type import StateType
from circuit.tensor_type import TensorType
from circuit.verify import verify


def build_circuit(document: CircuitDocument, data: DocumentData) -> Circuit:
    """Return the verified circuit of `document`; `data` knows the lines."""
    with _noted(data, ("circuit",)):
        circuit = Circuit(document.circuit)
    wiring = _Wiring(document, data)
    _add_sources(circuit, document, data)
    wiring.made.update((value.name, value) for value in circuit.values)
    for index, node in enumerate(document.nodes):
        _add_node(circuit, node, data, wiring=wiring, index=index)
    for section, declare, outputs in (
        ("outputs", circuit.output, document.outputs),
        ("state_outputs", circuit.state_output, document.state_outputs),
    ):
        for name, value_name in outputs.items():
            value = wiring.value(value_name, path=(section, name))
            with _noted(data, (section, name)):
                declare(name, value)
    try:
        verify(circuit)
    except VerifyError as error:
        error.add_note(f"at {data.place(wiring.paths.get(error.at or '', ()))}")
        raise
    return circuit


def _add_sources(circuit: Circuit, document: CircuitDocument, data: DocumentData) -> None:
    for section, declare, declared in (
        ("inputs", circuit.input, document.inputs),
        ("weights", circuit.weight, document.weights),
    ):
        for name, spelled in declared.items():
            with _noted(data, (section, name)):
                declare(name, TensorType.parse(spelled))
    for name, spelled in document.states.items():
        with _noted(data, ("states", name)):
            circuit.state(name, StateType.parse(spelled))


def _add_node(circuit: Circuit, entry: NodeDocument, data: DocumentData, *, wiring: "_Wiring", index: int) -> None:
    path: Path = ("nodes", index)
    known = node_types()
    if entry.node not in known:
        hint = close_names(entry.node, known) if known else "none is declared; import `nodes` first"
        raise data.error((*path, "node"), f"unknown node type {entry.node!r}; {hint}")
    node_type = known[entry.node]
    try:
        # read as JSON, where a list is a tuple and a name an enum, and "1e-5" still no number
        with _noted(data, (*path, "attributes")):
            node = node_type.model_validate_json(json.dumps(entry.attributes))
    except ValidationError as error:
        raise document_fault(error, data, node_type, path=(*path, "attributes")) from None
    for port in entry.inputs:
        if port not in node.ports:
            hint = close_names(port, node.ports)
            raise data.error((*path, "inputs", port), f"{entry.node} has no port {port!r}; {hint}")
    for port in node.ports:
        if port not in entry.inputs:
            listed = ", ".join(node.ports)
            raise data.error((*path, "inputs"), f"port {port!r} of {entry.node} is not wired; its ports are {listed}")
    args = [wiring.value(entry.inputs[port], path=(*path, "inputs", port), index=index) for port in node.ports]
    names = _result_names(entry, node, data, path=(*path, "results"))
    with _noted(data, path):
        wiring.made.update(zip(names, circuit.add_call(node, args, names=names, block=entry.block), strict=True))


def _result_names(entry: NodeDocument, node: Node, data: DocumentData, *, path: Path) -> list[str]:
    if SINGLE_RESULT in entry.results:
        if len(node.results) > 1:
            listed = ", ".join(node.results)
            raise data.error(path, f"{entry.node} has {len(node.results)} results; map each of {listed} to a name")
        return list(entry.results.values())
    for result in entry.results:
        if result not in node.results:
            hint = close_names(result, node.results)
            raise data.error((*path, result), f"{entry.node} has no result {result!r}; {hint}")
    for result in node.results:
        if result not in entry.results:
            raise data.error(path, f"result {result!r} of {entry.node} has no name; give it one")
    return [entry.results[result] for result in node.results]


class _Wiring:
    """Which entry declares which name, and which values are made; says why one is not there."""

    def __init__(self, document: CircuitDocument, data: DocumentData) -> None:
        self.paths: dict[str, Path] = {}
        self.made: dict[str, Value] = {}
        self._document = document
        self._data = data
        self._makers: dict[str, int] = {}
        for section, declared in (
            ("inputs", document.inputs),
            ("weights", document.weights),
            ("states", document.states),
        ):
            self._declare_all((section,), declared)
        for index, node in enumerate(document.nodes):
            for result, name in node.results.items():
                path: Path = ("nodes", index, "results")
                self._declare(name, (*path, result) if result != SINGLE_RESULT else path)
                self._makers[name] = index
        # an output may have the name of the value it shows, which is then the better place
        for section, outputs in (("outputs", document.outputs), ("state_outputs", document.state_outputs)):
            for name in outputs:
                self.paths.setdefault(name, (section, name))

    def value(self, name: str, *, path: Path, index: int | None = None) -> Value:
        """Return the value `name` that the entry at `path` uses, the node `index` if one; `DocumentError` if not."""
        if name in self.made:
            return self.made[name]
        if name not in self._makers or index is None:
            hint = close_names(name, self.made | self._makers)
            raise self._data.error(path, f"no value {name!r}; {hint}")
        raise self._too_early(name, path=path, index=index)

    def _too_early(self, name: str, *, path: Path, index: int) -> DocumentError:
        import networkx as nx  # noqa: PLC0415 - slow to import, and only a fault needs it

        graph: nx.DiGraph = nx.DiGraph()
        for user, node in enumerate(self._document.nodes):
            graph.add_edges_from((self._makers[used], user) for used in node.inputs.values() if used in self._makers)
        maker = self._makers[name]
        if nx.has_path(graph, index, maker):
            around = [*nx.shortest_path(graph, index, maker), index]
            named = " -> ".join(next(iter(self._document.nodes[user].results.values())) for user in around)
            return self._data.error(path, f"{name!r} depends on this node, a cycle: {named}; break it")
        defined = self._data.place(self.paths[name])
        return self._data.error(path, f"{name!r} is defined later, at {defined}; move that node above this one")

    def _declare_all(self, section: Path, declared: Mapping[str, str]) -> None:
        for name in declared:
            self._declare(name, (*section, name))

    def _declare(self, name: str, path: Path) -> None:
        if name in self.paths:
            first = self._data.place(self.paths[name])
            raise self._data.error(path, f"the name {name!r} is taken, at {first}; choose another")
        self.paths[name] = path


@contextmanager
def _noted(data: DocumentData, path: Path) -> Iterator[None]:
    try:
        yield
    except CircuitError as error:
        error.add_note(f"at {data.place(path)}")
        raise
