"""Every invariant of a legal circuit, one function each. `verify` runs them all and raises the first fault."""

from circuit.errors import CircuitError, VerifyError
from circuit.graph import Call, Circuit, Value
from circuit.state_type import StateType


def verify(circuit: Circuit) -> None:
    """Raise `VerifyError` or `TypeRuleError` for the first broken invariant; return nothing when all hold."""
    check_order(circuit)
    check_types(circuit)
    check_single_writer(circuit)
    check_no_stale_reads(circuit)
    check_states_reach_outputs(circuit)
    check_nothing_unused(circuit)


def check_order(circuit: Circuit) -> None:
    """Every argument is a source or the result of an earlier call of this circuit."""
    defined = {*circuit.inputs.values(), *circuit.weights.values(), *circuit.states.values()}
    for index, call in enumerate(circuit.calls):
        for arg in call.args:
            if arg not in defined:
                raise _fault(circuit, index, call, f"{arg!r} is not defined before it; move its maker up")
        defined.update(call.results)
    for name, value in (*circuit.outputs.items(), *circuit.state_outputs.items()):
        if value not in defined:
            raise VerifyError(f"circuit {circuit.name!r}: output {name!r} is {value!r}, which no call makes", at=name)


def check_types(circuit: Circuit) -> None:
    """Every result has the type that its node infers from the arguments."""
    for index, call in enumerate(circuit.calls):
        try:
            inferred = call.node.result_types(*(arg.type for arg in call.args))
        except CircuitError as error:
            error.add_note(f"in {_place(circuit, index, call)}")
            raise
        if len(call.results) != len(inferred):
            raise _fault(circuit, index, call, f"expected {len(inferred)} results, got {len(call.results)}")
        for value, expected in zip(call.results, inferred, strict=True):
            if value.type != expected:
                raise _fault(circuit, index, call, f"expected %{value.name}: {expected}, got {value!r}")


def check_single_writer(circuit: Circuit) -> None:
    """Each state version has at most one writer, so that the write can be done in place."""
    writers: dict[Value, int] = {}
    for index, call in enumerate(circuit.calls):
        for value in _written(call):
            if value in writers:
                first = circuit.calls[writers[value]]
                message = f"%{value.name} is written already, by {first}; take the version that call returned"
                raise _fault(circuit, index, call, message)
            writers[value] = index


def check_no_stale_reads(circuit: Circuit) -> None:
    """Nothing reads a version of a state after the call that makes its successor."""
    replaced: dict[Value, Call] = {}
    for index, call in enumerate(circuit.calls):
        for arg in call.args:
            if arg in replaced:
                message = (
                    f"reads %{arg.name} after {replaced[arg]} replaced it; "
                    f"read the new version, or move this call before the write"
                )
                raise _fault(circuit, index, call, message)
        replaced.update(dict.fromkeys(_written(call), call))


def check_states_reach_outputs(circuit: Circuit) -> None:
    """The last version of every declared state is its state output."""
    successor = {
        call.args[call.node.ports.index(port)]: call.results[position]
        for call in circuit.calls
        for position, port in enumerate(call.node.writes)
    }
    for name, state in circuit.states.items():
        last = state
        while last in successor:
            last = successor[last]
        got = circuit.state_outputs.get(name)
        if got is not last:
            raise VerifyError(
                f"circuit {circuit.name!r}: state {name!r} ends as %{last.name}, its state output is "
                f"{f'%{got.name}' if got else 'missing'}; make %{last.name} the state output of {name!r}",
                at=name,
            )


def check_nothing_unused(circuit: Circuit) -> None:
    """Every declared source is read, and every call contributes to an output; dead parts hide wiring mistakes."""
    needed: set[Value] = {*circuit.outputs.values(), *circuit.state_outputs.values()}
    for call in reversed(circuit.calls):
        if needed.isdisjoint(call.results):
            message = f"circuit {circuit.name!r}: {call} reaches no output; remove it or wire its result"
            raise VerifyError(message, at=call.results[0].name)
        needed.update(call.args)
    for source in (*circuit.inputs.values(), *circuit.weights.values()):
        if source not in needed:
            message = f"circuit {circuit.name!r}: {source.kind} {source!r} is never read; wire or remove it"
            raise VerifyError(message, at=source.name)


def _written(call: Call) -> list[Value]:
    written = [call.args[call.node.ports.index(port)] for port in call.node.writes]
    assert all(isinstance(value.type, StateType) for value in written)
    return written


def _fault(circuit: Circuit, index: int, call: Call, message: str) -> VerifyError:
    return VerifyError(f"{_place(circuit, index, call)}: {message}", at=call.results[0].name)


def _place(circuit: Circuit, index: int, call: Call) -> str:
    return f"circuit {circuit.name!r}, at call {index}: {call}"
