"""Circuit and Value: a typed dataflow graph that is append-only and topologically ordered by construction."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from circuit.errors import CircuitError, TypeRuleError, VerifyError, close_names
from circuit.node import Node, PortType, snake_case
from circuit.state_type import StateType
from circuit.tensor_type import TensorType

if TYPE_CHECKING:
    import networkx as nx

ValueKind = Literal["input", "weight", "state", "result"]

# a name is a key of the document form, and YAML's keys end at 1024 characters, escapes included
_MAX_NAME_CHARACTERS = 256


class Value:
    """One edge: an input, a weight, a state, or a result of a call. Equal only to itself.

    Attributes:
        circuit: the circuit it belongs to.
        kind, type: where it comes from, and its type.
        call, result: the call that made it and which of its results it is; None and 0 for a source.
    """

    __slots__ = ("call", "circuit", "kind", "name", "result", "type")

    def __init__(
        self, circuit: "Circuit", name: str, *, kind: ValueKind, type: PortType, call: "Call | None", result: int = 0
    ) -> None:
        self.circuit = circuit
        self.name = name
        self.kind: ValueKind = kind
        self.type = type
        self.call = call
        self.result = result

    def named(self, name: str) -> "Value":
        """Give the value a name of its own, by which tools and parity reports find the edge; returns itself."""
        self.circuit.rename(self, name)
        return self

    def __repr__(self) -> str:
        return f"%{self.name}: {self.type}"


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One node call: the node, what it takes, what it makes, and the block (`attention/indexer`) it stands in."""

    node: Node
    args: tuple[Value, ...]
    results: tuple[Value, ...]
    block: str

    def __str__(self) -> str:
        made = ", ".join(f"%{value.name}" for value in self.results)
        return f"{made} = {self.node}({', '.join(f'%{value.name}' for value in self.args)})"


class Circuit:
    """A declared forward: named inputs, weights and states, calls in order, named outputs and state outputs.

    States are threaded: a call that writes returns the next version, and `state_output` names the last one.
    """

    def __init__(self, name: str) -> None:
        self.name = _checked_name(name)
        self.inputs: dict[str, Value] = {}
        self.weights: dict[str, Value] = {}
        self.states: dict[str, Value] = {}
        self.calls: list[Call] = []
        self.outputs: dict[str, Value] = {}
        self.state_outputs: dict[str, Value] = {}
        self._values: dict[str, Value] = {}
        self._block: tuple[str, ...] = ()

    def input(self, name: str, type: TensorType) -> Value:
        """Declare a tensor that every run is given."""
        return self._source(name, "input", type, self.inputs)

    def weight(self, name: str, type: TensorType) -> Value:
        """Declare a tensor that a binding supplies once."""
        return self._source(name, "weight", type, self.weights)

    def state(self, name: str, type: StateType) -> Value:
        """Declare a state; the value is the version that a run starts from."""
        return self._source(name, "state", type, self.states)

    def output(self, name: str, value: Value) -> None:
        """Make a value visible to the caller under `name`."""
        self._own(value, f"output {name!r}")
        if name in self.outputs:
            raise VerifyError(f"circuit {self.name!r}: output {name!r} is declared twice; choose another name")
        if isinstance(value.type, StateType):
            raise VerifyError(f"circuit {self.name!r}: output {name!r} is the state {value!r}; use state_output")
        self.outputs[_checked_name(name)] = value

    def state_output(self, name: str, value: Value) -> None:
        """Name the version of the state `name` that a run leaves behind."""
        self._own(value, f"state output {name!r}")
        if name not in self.states:
            raise VerifyError(f"circuit {self.name!r}: state output {name!r} names no state of {sorted(self.states)}")
        if name in self.state_outputs:
            raise VerifyError(f"circuit {self.name!r}: state output {name!r} is declared twice")
        if value.type != self.states[name].type:
            raise VerifyError(f"circuit {self.name!r}: state {name!r} is {self.states[name].type}, output {value!r}")
        self.state_outputs[name] = value

    @contextmanager
    def block(self, name: str) -> Iterator[None]:
        """Put the calls made inside into a named block; blocks nest, and mean nothing to the arithmetic."""
        outer = self._block
        self._block = (*outer, _checked_name(name))
        try:
            yield
        finally:
            self._block = outer

    def call(self, node: Node, *args: Value) -> Value | tuple[Value, ...]:
        """Append a call; `TypeRuleError` names the port, what was expected and what came, and this place."""
        try:
            for arg in args:
                self._own(arg, str(node))
            result_types = node.result_types(*(arg.type for arg in args))
        except CircuitError as error:
            spelled = ", ".join(repr(arg) for arg in args)
            error.add_note(f"in circuit {self.name!r}, at call {len(self.calls)}: {node}({spelled})")
            raise
        return self._append(node, args, result_types=result_types, names=None, block="/".join(self._block))

    def copy_call(self, call: Call, *args: Value) -> tuple[Value, ...]:
        """Append a call of another circuit on values of this one, keeping its names and block."""
        return self.add_call(call.node, args, names=[value.name for value in call.results], block=call.block)

    def add_call(
        self, node: Node, args: Sequence[Value], *, names: Sequence[str], block: str = ""
    ) -> tuple[Value, ...]:
        """Append a call whose result names and block (`attention/indexer`) are given; return all its results."""
        for arg in args:
            self._own(arg, str(node))
        if not block.isprintable():
            raise VerifyError(f"circuit {self.name!r}: block {block!r}: expected a printable string")
        if len(names) != len(node.results) or len(set(names)) != len(names):
            raise VerifyError(
                f"circuit {self.name!r}: {type(node).__name__}: expected a name of its own for each of "
                f"{', '.join(node.results)}, got {', '.join(names)}"
            )
        result_types = node.result_types(*(arg.type for arg in args))
        made = self._append(node, tuple(args), result_types=result_types, names=list(names), block=block)
        return made if isinstance(made, tuple) else (made,)

    def value(self, name: str) -> Value:
        """Return the value of that name; `CircuitError` lists close names."""
        if name not in self._values:
            raise CircuitError(f"circuit {self.name!r}: no value {name!r}; {close_names(name, self._values)}")
        return self._values[name]

    @property
    def values(self) -> tuple[Value, ...]:
        """Every value, sources first, then results in call order."""
        sources = (*self.inputs.values(), *self.weights.values(), *self.states.values())
        return (*sources, *(value for call in self.calls for value in call.results))

    def rename(self, value: Value, name: str) -> None:
        """Give a value another name; the name must be free."""
        self._own(value, f"name {name!r}")
        if value.name == name:
            return
        if value.kind != "result":
            raise VerifyError(f"circuit {self.name!r}: the {value.kind} {value.name!r} keeps its declared name")
        self._claim(name)
        del self._values[value.name]
        self._values[name] = value
        value.name = name

    def dataflow(self) -> "nx.DiGraph":
        """Return the calls (by index) and sources (by value) as a networkx graph; an edge carries its value."""
        # a third of this package's import time, and nothing that runs a circuit asks for the graph
        import networkx as nx  # noqa: PLC0415

        graph: nx.DiGraph = nx.DiGraph()
        for source in (*self.inputs.values(), *self.weights.values(), *self.states.values()):
            graph.add_node(source)
        for call in self.calls:
            graph.add_node(call)
            for arg in call.args:
                graph.add_edge(arg.call or arg, call, value=arg)
        return graph

    def _append(
        self,
        node: Node,
        args: tuple[Value, ...],
        *,
        result_types: tuple[PortType, ...],
        names: list[str] | None,
        block: str,
    ) -> Value | tuple[Value, ...]:
        names = names or [self._free_name(node, result) for result in node.results]
        for name in names:
            self._claim(name)
        results = tuple(
            Value(self, name, kind="result", type=result_type, call=None, result=index)
            for index, (name, result_type) in enumerate(zip(names, result_types, strict=True))
        )
        call = Call(node, args, results, block)
        for value in results:
            value.call = call
            self._values[value.name] = value
        self.calls.append(call)
        return results if len(results) > 1 else results[0]

    def _source(self, name: str, kind: ValueKind, type: PortType, table: dict[str, Value]) -> Value:
        if isinstance(type, StateType) != (kind == "state"):
            raise TypeRuleError(f"circuit {self.name!r}: {kind} {name!r} cannot have the type {type}")
        self._claim(name)
        value = Value(self, name, kind=kind, type=type, call=None)
        self._values[name] = table[name] = value
        return value

    def _claim(self, name: str) -> None:
        if _checked_name(name) in self._values:
            taken = self._values[name]
            raise VerifyError(f"circuit {self.name!r}: the name {name!r} is taken by {taken!r}; choose another")

    def _free_name(self, node: Node, result: str) -> str:
        stem = snake_case(type(node).__name__) + (f".{result}" if len(node.results) > 1 else "")
        number = 1
        while f"{stem}_{number}" in self._values:
            number += 1
        return f"{stem}_{number}"

    def _own(self, value: Value, what: str) -> None:
        if not isinstance(value, Value):
            raise CircuitError(f"circuit {self.name!r}: {what} expects a value of the circuit, got {value!r}")
        if value.circuit is not self:
            raise CircuitError(f"circuit {self.name!r}: {what} uses {value!r} of circuit {value.circuit.name!r}")

    def __repr__(self) -> str:
        return f"Circuit({self.name!r}, {len(self.calls)} calls)"


def _checked_name(name: str) -> str:
    if not isinstance(name, str) or not name or not name.isprintable() or len(name) > _MAX_NAME_CHARACTERS:
        spelled = repr(name) if len(str(name)) <= _MAX_NAME_CHARACTERS else f"{name[:40]!r}..."
        raise VerifyError(f"name {spelled}: expected 1 to {_MAX_NAME_CHARACTERS} printable characters")
    return name
