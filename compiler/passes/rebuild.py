"""Copy a circuit with some of its values cut into inputs and only the wanted outputs kept: what both passes do."""

from collections.abc import Mapping

import networkx as nx

from circuit import Call, Circuit, CircuitError, TensorType, Value


def rebuild(
    circuit: Circuit,
    name: str,
    *,
    outputs: Mapping[str, Value],
    cuts: tuple[Value, ...] = (),
) -> Circuit:
    """Return a circuit of the calls that `outputs` and every state output need, names and blocks kept.

    A value in `cuts` becomes an input of its own name, and what only it needed is gone. Every state that is still
    declared keeps its state output, so that no cache write is lost.
    """
    needed = _needed(circuit, outputs, cuts)
    copy = Circuit(name)
    copied: dict[Value, Value] = {}
    # declared inputs first, in their old order, then the cuts: the order callers see
    for source_name, value in circuit.inputs.items():
        if value in needed or value in cuts:
            copied[value] = copy.input(source_name, _tensor_type(value))
    for value in cuts:
        if value not in copied:
            copied[value] = copy.input(value.name, _tensor_type(value))
    for source_name, value in circuit.weights.items():
        if value in needed:
            copied[value] = copy.weight(source_name, _tensor_type(value))
    for source_name, value in circuit.states.items():
        copied[value] = copy.state(source_name, value.type)  # type: ignore[arg-type]
    for call in circuit.calls:
        if call not in needed:
            continue
        cut_names = {value.name for value in call.results if value in cuts}
        if cut_names:
            raise CircuitError(
                f"circuit {circuit.name!r}: {call} is cut at {sorted(cut_names)} and needed all the same"
            )
        results = copy.copy_call(call, *(copied[arg] for arg in call.args))
        copied.update(zip(call.results, results, strict=True))
    for output_name, value in outputs.items():
        copy.output(output_name, copied[value])
    for state_name, value in circuit.state_outputs.items():
        copy.state_output(state_name, copied[value])
    return copy


def _needed(circuit: Circuit, outputs: Mapping[str, Value], cuts: tuple[Value, ...]) -> set[Call | Value]:
    graph = circuit.dataflow()
    for value in cuts:
        maker = value.call or value
        for _, reader in list(graph.out_edges(maker)):
            if all(arg in cuts for arg in reader.args if (arg.call or arg) is maker):
                graph.remove_edge(maker, reader)
    needed: set[Call | Value] = set()
    for value in (*outputs.values(), *circuit.state_outputs.values()):
        if value in cuts:
            continue
        maker = value.call or value
        needed |= {maker, *nx.ancestors(graph, maker)}
    return needed


def _tensor_type(value: Value) -> TensorType:
    if not isinstance(value.type, TensorType):
        raise CircuitError(f"{value!r}: expected a tensor to cut at, got a state; states are threaded, not fed back")
    return value.type
