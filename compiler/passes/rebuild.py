"""Copy a circuit with some values cut into inputs, some replaced, and only the wanted outputs kept."""

from collections.abc import Mapping

from circuit import Circuit, CircuitError, TensorType, Value


def rebuild(
    circuit: Circuit,
    name: str,
    *,
    outputs: Mapping[str, Value],
    cuts: tuple[Value, ...] = (),
    replaced: Mapping[Value, Value] | None = None,
) -> Circuit:
    """Return a circuit of the calls that `outputs` and every state output need, names and blocks kept.

    A value in `cuts` becomes an input of its own name; a key of `replaced` is read as the value it maps to, which must
    have its type and be made before it. What only those needed is gone. Every state stays, with its state output, so no
    cache write is lost.
    """
    substitute = _substitutes(circuit, replaced or {})
    wanted = {key: substitute.get(value, value) for key, value in outputs.items()}
    needed = _needed_values(circuit, wanted, cuts=frozenset(cuts), substitute=substitute)
    copy = Circuit(name)
    copied: dict[Value, Value] = {}
    # declared inputs first, in their old order, then the cuts: the order callers see
    for source_name, value in circuit.inputs.items():
        if value in needed:
            copied[value] = copy.input(source_name, _tensor_type(value))
    for value in cuts:
        if value in needed and value not in copied:
            copied[value] = copy.input(value.name, _tensor_type(value))
    for source_name, value in circuit.weights.items():
        if value in needed:
            copied[value] = copy.weight(source_name, _tensor_type(value))
    for source_name, value in circuit.states.items():
        copied[value] = copy.state(source_name, value.type)  # type: ignore[arg-type]
    for call in circuit.calls:
        kept = [value for value in call.results if value in needed and value not in cuts]
        if not kept:
            continue
        if any(value in cuts for value in call.results):
            raise CircuitError(f"circuit {circuit.name!r}: {call} is cut and needed all the same; cut all its results")
        results = copy.copy_call(call, *(copied[substitute.get(arg, arg)] for arg in call.args))
        copied.update(zip(call.results, results, strict=True))
    for output_name, value in wanted.items():
        copy.output(output_name, copied[value])
    for state_name, value in circuit.state_outputs.items():
        copy.state_output(state_name, copied[value])
    return copy


def _substitutes(circuit: Circuit, replaced: Mapping[Value, Value]) -> dict[Value, Value]:
    """Return what each replaced value is read as in the end, where one replacement is replaced itself."""
    made_at = {value: index for index, value in enumerate(circuit.values)}
    for old, new in replaced.items():
        if old.type != new.type:
            raise CircuitError(f"circuit {circuit.name!r}: {old!r} cannot be replaced by {new!r} of another type")
        if made_at[new] >= made_at[old]:
            raise CircuitError(f"circuit {circuit.name!r}: {old!r} cannot be replaced by {new!r}, which is made later")
    ends = dict(replaced)
    # a replacement is made before what it replaces, so its own end is known when values are gone through in order
    for old in sorted(replaced, key=made_at.__getitem__):
        ends[old] = ends.get(replaced[old], replaced[old])
    return ends


def _needed_values(
    circuit: Circuit, wanted: Mapping[str, Value], *, cuts: frozenset[Value], substitute: Mapping[Value, Value]
) -> set[Value]:
    needed = {*wanted.values(), *circuit.state_outputs.values()}
    for call in reversed(circuit.calls):
        if any(value in needed and value not in cuts for value in call.results):
            needed |= {substitute.get(arg, arg) for arg in call.args}
    return needed


def _tensor_type(value: Value) -> TensorType:
    if not isinstance(value.type, TensorType):
        raise CircuitError(f"{value!r}: expected a tensor to cut at, got a state; states are threaded, not fed back")
    return value.type
