"""Cut calls out of a circuit, with whatever they read as sources, so that they run alone on recorded tensors.

before:  %a = F()(%x)   %b = Linear()(%a, %w)   %c = G()(%b)        output y = %c
after:   input %a   weight %w   %b = Linear()(%a, %w)               output b = %b          cut out: the call of %b
"""

from collections.abc import Collection, Mapping

from circuit import BindingError, Circuit, StateType, Value


def cut_out(circuit: Circuit, calls: Collection[int], *, dims: Mapping[str, int], keeps_inner: bool = True) -> Circuit:
    """Return the circuit of these calls, by index, in their order; every value keeps its name, with `dims` bound.

    What they read from outside becomes an input, a state or a weight. Outputs are the results that are read outside or
    that the circuit puts out; with `keeps_inner` those that are read inside only, too. A state that is written comes
    out under the name of the version that came in. Raises BindingError for no calls and for an index out of range.
    """
    chosen = sorted(set(calls))
    if not chosen or not 0 <= chosen[0] <= chosen[-1] < len(circuit.calls):
        raise BindingError(
            f"cut_out: expected calls of {circuit.name!r}, 0 to {len(circuit.calls) - 1}, got {chosen or 'none'}"
        )
    part = Circuit(f"{circuit.name}.part")
    copied: dict[Value, Value] = {}
    for index in chosen:
        call = circuit.calls[index]
        for arg in call.args:
            if arg not in copied:
                copied[arg] = _source(part, arg, dims)
        copied.update(zip(call.results, part.copy_call(call, *(copied[arg] for arg in call.args)), strict=True))
    last = dict(part.states)
    for call in part.calls:
        owners = {value: name for name, value in last.items()}
        for position, port in enumerate(call.node.writes):
            last[owners[call.args[call.node.ports.index(port)]]] = call.results[position]
    for name, value in last.items():
        part.state_output(name, value)
    inside = set(chosen)
    read_inside = {arg for index in chosen for arg in circuit.calls[index].args}
    read_outside = {arg for index, call in enumerate(circuit.calls) if index not in inside for arg in call.args}
    read_outside.update(circuit.outputs.values())
    for value in (value for index in chosen for value in circuit.calls[index].results):
        is_inner = value in read_inside and value not in read_outside
        if not isinstance(value.type, StateType) and (keeps_inner or not is_inner):
            part.output(value.name, copied[value])
    return part


def _source(part: Circuit, value: Value, dims: Mapping[str, int]) -> Value:
    # a part may lack the value that binds a name, and is run at one size
    if isinstance(value.type, StateType):
        return part.state(value.name, value.type.bind(dims))
    bound = value.type.bind(dims)
    return part.weight(value.name, bound) if value.kind == "weight" else part.input(value.name, bound)
