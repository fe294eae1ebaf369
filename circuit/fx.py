"""A circuit as a `torch.fx.GraphModule`, the interchange with torch, and back.

Each node call becomes a `call_module` of a `NodeModule`, so the graph runs the nodes' references and gives bitwise what
`interpret` gives. fx makes identifiers of names; the true ones stand in `node.meta["circuit"]`, and with them
`from_graph_module` builds the circuit back from the graph as it is, after passes that dropped or copied calls too.

States go in as placeholders and come out as results, as in the circuit: nothing is changed in place. A pass that makes
writes in place must never run `Graph.eliminate_dead_code` afterwards, which drops them.
"""

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx, nn

from circuit.errors import BindingError, CircuitError, LoweringError
from circuit.graph import Call, Circuit, Value, ValueKind
from circuit.interpreter import check_tensor
from circuit.node import Node, PortType

META_KEY = "circuit"


class NodeModule(nn.Module):
    """A node as a module without parameters: `forward` is the node's reference."""

    def __init__(self, node: Node) -> None:
        super().__init__()
        self.node = node

    def forward(self, *tensors: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Compute the node's results."""
        return self.node.reference(*tensors)

    def extra_repr(self) -> str:
        """Return the node with its attributes, for torch's printed module tree."""
        return str(self.node)


@dataclass(frozen=True, slots=True)
class SourceMeta:
    """Of a placeholder, or of a `get_attr` that holds a weight: the source it stands for."""

    kind: ValueKind
    name: str
    type: PortType


@dataclass(frozen=True, slots=True)
class CallMeta:
    """Of a `call_module`: the names of its results and the block it stands in."""

    results: tuple[str, ...]
    block: str


@dataclass(frozen=True, slots=True)
class OutputMeta:
    """Of the output node: the circuit's name, and its sources in the order of their declaration."""

    circuit: str
    sources: tuple[SourceMeta, ...]


def to_graph_module(circuit: Circuit, weights: Mapping[str, Tensor] | None = None) -> fx.GraphModule:
    """Return the circuit as a GraphModule that gives `(outputs, states)`, two dicts by name.

    Its arguments (`argument_names`) are the inputs, then the states, then the weights; `weights` may be given instead,
    a superset, and become buffers `weight_0, ...` of the same memory. `BindingError` for a missing or ill-typed one.
    """
    root = nn.Module()
    graph = fx.Graph()
    made: dict[Value, fx.Node] = {}
    for value in (*circuit.inputs.values(), *circuit.states.values()):
        made[value] = _placeholder(graph, value)
    dims: dict[str, int] = {}
    for index, value in enumerate(circuit.weights.values()):
        if weights is None:
            made[value] = _placeholder(graph, value)
            continue
        if value.name not in weights:
            raise BindingError(f"circuit {circuit.name!r}: weight {value.name!r} is missing; it has type {value.type}")
        check_tensor(weights[value.name], value, dims, where=f"circuit {circuit.name!r}, weight")
        root.register_buffer(f"weight_{index}", weights[value.name], persistent=False)
        made[value] = graph.get_attr(f"weight_{index}")
    for value, node in made.items():
        node.meta[META_KEY] = _source_meta(value)
    for index, call in enumerate(circuit.calls):
        _emit_call(graph, root, call, made=made, target=f"call_{index}")
    result = graph.output(
        (
            {name: made[value] for name, value in circuit.outputs.items()},
            {name: made[value] for name, value in circuit.state_outputs.items()},
        )
    )
    result.meta[META_KEY] = OutputMeta(circuit.name, tuple(_source_meta(value) for value in _sources(circuit)))
    return fx.GraphModule(root, graph, class_name="CircuitModule")


def argument_names(module: fx.GraphModule) -> tuple[str, ...]:
    """Return the true names of the module's positional arguments, in order."""
    metas = [node.meta.get(META_KEY) for node in module.graph.nodes if node.op == "placeholder"]
    return tuple(meta.name for meta in metas if isinstance(meta, SourceMeta))


def from_graph_module(module: fx.GraphModule) -> Circuit:
    """Return the circuit of a GraphModule whose calls are circuit nodes.

    `LoweringError` names the first fx node that is none, as in a module traced from plain torch code: such a graph has
    neither types nor nodes.
    """
    *body, result = module.graph.nodes
    meta = result.meta.get(META_KEY)
    if not isinstance(meta, OutputMeta):
        raise _foreign(next((node for node in body if node.op.startswith("call_")), result))
    circuit = Circuit(meta.circuit)
    declare: dict[ValueKind, Any] = {"input": circuit.input, "weight": circuit.weight, "state": circuit.state}
    kept = {node.meta.get(META_KEY) for node in body}
    for source in meta.sources:
        if source in kept:
            declare[source.kind](source.name, source.type)
    values: dict[fx.Node, Value | tuple[Value, ...]] = {}
    for node in body:
        try:
            values[node] = _value_of(circuit, module, node, values=values)
        except LoweringError:
            raise
        except CircuitError as error:
            error.add_note(f"at the fx node {node.format_node()}")
            raise
    outputs, states = result.args[0]
    for held, name_output in ((outputs, circuit.output), (states, circuit.state_output)):
        for name, node in held.items():
            name_output(name, _argument(node, values, user=result))
    return circuit


def _placeholder(graph: fx.Graph, value: Value) -> fx.Node:
    node = graph.placeholder(_identifier(value.name))
    # the target becomes a parameter of the generated code, so it is the identifier that fx made
    node.target = node.name
    return node


def _emit_call(graph: fx.Graph, root: nn.Module, call: Call, *, made: dict[Value, fx.Node], target: str) -> None:
    root.add_module(target, NodeModule(call.node))
    node = graph.create_node(
        "call_module", target, tuple(made[arg] for arg in call.args), name=_identifier(call.results[0].name)
    )
    node.meta[META_KEY] = CallMeta(tuple(value.name for value in call.results), call.block)
    if len(call.results) == 1:
        made[call.results[0]] = node
        return
    for index, value in enumerate(call.results):
        made[value] = graph.create_node("call_function", operator.getitem, (node, index), name=_identifier(value.name))


def _value_of(
    circuit: Circuit, module: fx.GraphModule, node: fx.Node, *, values: dict[fx.Node, Value | tuple[Value, ...]]
) -> Value | tuple[Value, ...]:
    meta = node.meta.get(META_KEY)
    match node.op:
        case "placeholder" | "get_attr" if isinstance(meta, SourceMeta):
            return circuit.value(meta.name)
        case "call_function" if node.target is operator.getitem and isinstance(node.args[0], fx.Node):
            results = values[node.args[0]]
            if isinstance(results, tuple) and isinstance(node.args[1], int):
                return results[node.args[1]]
        case "call_module" if isinstance(meta, CallMeta) and not node.kwargs:
            called = module.get_submodule(str(node.target))
            if isinstance(called, NodeModule):
                args = [_argument(arg, values, user=node) for arg in node.args]
                made = circuit.add_call(called.node, args, names=meta.results, block=meta.block)
                return made if len(made) > 1 else made[0]
    raise _foreign(node)


def _argument(arg: object, values: dict[fx.Node, Value | tuple[Value, ...]], *, user: fx.Node) -> Value:
    value = values.get(arg) if isinstance(arg, fx.Node) else None
    if not isinstance(value, Value):
        raise LoweringError(f"fx node {user.name!r}: expected a circuit value as argument, got {arg!r}")
    return value


def _foreign(node: fx.Node) -> LoweringError:
    return LoweringError(
        f"fx node {node.name!r}: expected a call of a circuit node, got {node.format_node()}; "
        f"declare a node for it and call that through NodeModule"
    )


def _identifier(name: str) -> str:
    # fx makes an identifier of any name, but does not know that the generated code needs `self`
    return "self_" if name == "self" else name


def _sources(circuit: Circuit) -> tuple[Value, ...]:
    return (*circuit.inputs.values(), *circuit.weights.values(), *circuit.states.values())


def _source_meta(value: Value) -> SourceMeta:
    return SourceMeta(value.kind, value.name, value.type)
