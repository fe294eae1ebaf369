"""Region: a fused node. Its reference is the circuit it stands for, so every fusion has an oracle for free.

    %y: f32[n, 8] = Region(rule="norm_linear")(%x, %gain, %w)
      | circuit "norm_linear"
      |   input  %x: f32[n, 8]
      |   weight %gain: f32[8]
      |   ...

A region's ports are the sources of its circuit, its results the states it writes and its outputs, each under the name
that the value has outside. It holds no region itself.
"""

import json
from functools import cached_property
from typing import Any, ClassVar

from pydantic import JsonValue, field_validator
from torch import Tensor

from circuit import (
    Circuit,
    CircuitError,
    Cost,
    Dim,
    Node,
    PortType,
    StateType,
    TensorType,
    TypeRuleError,
    Value,
    from_document,
    to_document,
)


class Region(Node):
    """Run the calls of a circuit as one call.

    Ports:    the circuit's inputs, weights and states, in the order of their declaration
    Result:   the states it writes, then its outputs, named like the values outside
    Numerics: those of the nodes inside, in their order
    State:    as the nodes inside; a state that is only read has no result
    Source:   the fusion rule `rule`, see compiler/passes/fuse.py
    """

    has_own_interface: ClassVar[bool] = True

    rule: str
    body: dict[str, JsonValue]

    @staticmethod
    def of(rule: str, circuit: Circuit) -> "Region":
        """Return the region of a verified circuit, fused by `rule`."""
        return Region(rule=rule, body=to_document(circuit))

    @field_validator("body")
    @classmethod
    def _readable(cls, body: dict[str, JsonValue]) -> dict[str, JsonValue]:
        nodes = body.get("nodes")
        if isinstance(nodes, list) and any(isinstance(node, dict) and node.get("node") == "Region" for node in nodes):
            raise CircuitError("Region: expected a body without regions, got one inside; fuse once")
        return body

    def model_post_init(self, context: Any, /) -> None:
        """Read the circuit and take over its interface."""
        circuit = self.circuit
        states = circuit.state_outputs
        written = tuple(name for name, value in circuit.states.items() if states[name] is not value)
        if clash := [name for name in written if name in circuit.outputs]:
            raise CircuitError(
                f"Region {self.rule!r}: output {clash[0]!r} has the name of a state it writes; rename it"
            )
        # class variables of every other node; an instance's own stand before them
        self.__dict__.update(
            ports=tuple(value.name for value in self._sources),
            results=(*written, *circuit.outputs),
            reads=tuple(name for name in circuit.states if name not in written),
            writes=written,
        )

    @cached_property
    def circuit(self) -> Circuit:
        """The circuit that the region stands for, as its document says."""
        return from_document(self.body, source=f"the body of region {self.rule!r}")

    @cached_property
    def _sources(self) -> tuple[Value, ...]:
        circuit = self.circuit
        return (*circuit.inputs.values(), *circuit.weights.values(), *circuit.states.values())

    def inner_circuit(self) -> Circuit:
        """Return the circuit that the region stands for."""
        return self.circuit

    def infer(self, *types: PortType) -> PortType | tuple[PortType, ...]:
        """Infer through the circuit; a named dim of its types may come as another expression or as a number."""
        values = self._retyped(types)
        results = tuple(value.type for value in self._results(values))
        return results if len(results) > 1 else results[0]

    def reference(self, *tensors: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Run the calls one by one by their references."""
        held = dict(zip(self._sources, tensors, strict=True))
        for call in self.circuit.calls:
            made = call.node.reference(*(held[arg] for arg in call.args))
            held.update(zip(call.results, made if isinstance(made, tuple) else (made,), strict=True))
        results = tuple(held[value] for value in self._results({value: value for value in held}))
        return results if len(results) > 1 else results[0]

    def cost(self, *types: PortType) -> Cost:
        """Count what crosses the border: sources read once, results written, states as the nodes inside; their flops.

        A node that reads an argument in part, rows of a table or entries of a cache, says so by its own cost.
        """
        values = self._retyped(types)
        ledger = _Ledger({values[source] for source in self._sources})
        for call in self.circuit.calls:
            ledger.add(call.node, [values[arg] for arg in call.args], [values[value] for value in call.results])
        return ledger.total(self._results(values))

    def call_costs(self, *types: PortType) -> list[Cost]:
        """Return what each call inside would cost as a call of its own, in order."""
        values = self._retyped(types)
        return [call.node.cost(*(values[arg].type for arg in call.args)) for call in self.circuit.calls]

    def bound_circuit(self, *types: PortType) -> Circuit:
        """Return the circuit with the types of a call for those it was declared with, its sources in port order."""
        values = self._retyped(types)
        bound = next(iter(values.values())).circuit
        for name, value in self.circuit.outputs.items():
            bound.output(name, values[value])
        for name, value in self.circuit.state_outputs.items():
            bound.state_output(name, values[value])
        return bound

    def _results(self, values: dict[Value, Value]) -> list[Value]:
        states = [self.circuit.state_outputs[name] for name in self.writes]
        return [values[value] for value in (*states, *self.circuit.outputs.values())]

    def _retyped(self, types: tuple[PortType, ...]) -> dict[Value, Value]:
        """Return for each value of the circuit its twin in a copy whose sources have `types`."""
        dims: dict[Dim, Dim] = {}
        copy, twins = Circuit(self.circuit.name), {}
        for source, given in zip(self._sources, types, strict=True):
            if not _matches(source.type, given, dims):
                raise self.reject(source.name, given, f"{source.type} as its body declares")
            declare: Any = {"input": copy.input, "weight": copy.weight, "state": copy.state}[source.kind]
            twins[source] = declare(source.name, given)
        try:
            for call in self.circuit.calls:
                twins.update(zip(call.results, copy.copy_call(call, *(twins[arg] for arg in call.args)), strict=True))
        except TypeRuleError as error:
            error.add_note(f"inside the region {self.rule!r}")
            raise
        return twins

    def __hash__(self) -> int:
        return hash((self.rule, json.dumps(self.body, sort_keys=True)))

    def __str__(self) -> str:
        return f"Region(rule={self.rule!r}, {len(self.circuit.calls)} calls)"


def _matches(declared: PortType, given: PortType, dims: dict[Dim, Dim]) -> bool:
    """Whether `given` is an instance of `declared`; a dim that stands alone takes what it meets, once for all ports."""
    if isinstance(declared, StateType) or isinstance(given, StateType):
        return (
            isinstance(declared, StateType)
            and isinstance(given, StateType)
            and (declared.layout, declared.rows_per_entry) == (given.layout, given.rows_per_entry)
            and _matches(declared.tensor, given.tensor, dims)
        )
    if declared.dtype != given.dtype or len(declared.shape) != len(given.shape):
        return False
    for dim, met in zip(declared.shape, given.shape, strict=True):
        if dim.is_Symbol and dims.setdefault(dim, met) != met:
            return False
        # an expression over names that stand nowhere alone is left to the type rules inside
        if not dim.is_Symbol and dim.free_symbols <= dims.keys() and dim.xreplace(dims).expand() != met:
            return False
    return True


class _Ledger:
    """What the calls of a region read from outside, compute, and write to states."""

    def __init__(self, sources: set[Value]) -> None:
        self._read: dict[Value, int] = dict.fromkeys(sources, 0)
        self._base: dict[Value, Value] = {}
        self._flops = 0
        self._state_bytes = 0

    def add(self, node: Node, args: list[Value], results: list[Value]) -> None:
        """Enter one call."""
        cost = node.cost(*(arg.type for arg in args))
        if cost == Cost() and len(args) == len(results) == 1:
            # a view: whoever reads it reads what it shows
            self._base[results[0]] = self._base.get(args[0], args[0])
            return
        self._flops += cost.flops
        for arg, num_bytes in _bytes_per_argument(args, cost.bytes_read).items():
            base = self._base.get(arg, arg)
            if base in self._read:
                self._read[base] += num_bytes
        made = sum(_tensor(value).num_bytes() for value in results if isinstance(value.type, TensorType))
        if node.writes:
            self._state_bytes += cost.bytes_written - made

    def total(self, results: list[Value]) -> Cost:
        """Return the region's cost when these values leave it."""
        # a source that several calls read comes once
        read = sum(
            num_bytes if isinstance(value.type, StateType) else min(num_bytes, _tensor(value).num_bytes())
            for value, num_bytes in self._read.items()
        )
        written = sum(
            value.type.num_bytes()
            for value in results
            if isinstance(value.type, TensorType) and self._base.get(value) not in self._read
        )
        return Cost(self._flops, read, written + self._state_bytes)


def _bytes_per_argument(args: list[Value], bytes_read: int) -> dict[Value, int]:
    """Part what a node reads among its arguments: what it does not read is of a state, else of the largest tensor."""
    parts = {arg: _tensor(arg).num_bytes() for arg in args}
    unread = sum(parts.values()) - bytes_read
    for arg in sorted(parts, key=lambda arg: (isinstance(arg.type, TensorType), -parts[arg])):
        skipped = max(0, min(unread, parts[arg]))
        parts[arg] -= skipped
        unread -= skipped
    return parts


def _tensor(value: Value) -> TensorType:
    return value.type.tensor if isinstance(value.type, StateType) else value.type
