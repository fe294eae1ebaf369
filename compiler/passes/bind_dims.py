"""Bind dims: put numbers for named dims, once a program's sizes are known.

before:  input %x: bf16[n, 256]     %y: bf16[n, 96] = Linear()(%x, %w)
after:   input %x: bf16[4, 256]     %y: bf16[4, 96] = Linear()(%x, %w)
"""

from collections.abc import Mapping

from circuit import Circuit, StateType, TensorType, Value


def bind_dims(circuit: Circuit, dims: Mapping[str, int]) -> Circuit:
    """Return the circuit with the dims of `dims` as numbers in every type; names not in it stay. Changes no value."""
    bound = Circuit(circuit.name)
    copied: dict[Value, Value] = {}
    for name, value in circuit.inputs.items():
        copied[value] = bound.input(name, _tensor(value).bind(dims))
    for name, value in circuit.weights.items():
        copied[value] = bound.weight(name, _tensor(value).bind(dims))
    for name, value in circuit.states.items():
        assert isinstance(value.type, StateType)
        copied[value] = bound.state(name, value.type.bind(dims))
    for call in circuit.calls:
        copied.update(zip(call.results, bound.copy_call(call, *(copied[arg] for arg in call.args)), strict=True))
    for name, value in circuit.outputs.items():
        bound.output(name, copied[value])
    for name, value in circuit.state_outputs.items():
        bound.state_output(name, copied[value])
    return bound


def _tensor(value: Value) -> TensorType:
    assert isinstance(value.type, TensorType)
    return value.type
