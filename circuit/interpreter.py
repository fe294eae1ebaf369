"""The oracle: run a circuit call by call with the nodes' references, every edge observable.

Nothing is changed in place: states go in, new states come out, so a run that fails leaves every tensor as it was.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from circuit.errors import BindingError
from circuit.graph import Circuit, Value
from circuit.state_type import StateType
from circuit.tensor_type import DTYPE_NAMES, TensorType, dtype_name, match_sizes

Observer = Callable[[Value, Tensor], None]


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a run leaves: outputs and next states by name, and the sizes that the named dims took."""

    outputs: dict[str, Tensor]
    states: dict[str, Tensor]
    dims: dict[str, int] = field(default_factory=dict)


@torch.no_grad()
def interpret(
    circuit: Circuit,
    *,
    inputs: Mapping[str, Tensor],
    weights: Mapping[str, Tensor],
    states: Mapping[str, Tensor],
    observe: Observer | None = None,
) -> RunResult:
    """Run `circuit` on tensors by name; `observe` is shown every value and its tensor, sources first.

    Raises `BindingError` for a missing, surplus or ill-typed tensor before any node runs; weights may be a superset.
    An exception inside a node carries a note with the call.
    """
    dims: dict[str, int] = {}
    tensors: dict[Value, Tensor] = {}
    for what, declared, given in (
        ("input", circuit.inputs, inputs),
        ("state", circuit.states, states),
        ("weight", circuit.weights, weights),
    ):
        surplus = [] if what == "weight" else sorted(set(given) - set(declared))
        if surplus:
            raise BindingError(f"circuit {circuit.name!r}: no {what} {surplus[0]!r}; it declares {sorted(declared)}")
        for name, value in declared.items():
            if name not in given:
                raise BindingError(f"circuit {circuit.name!r}: {what} {name!r} is missing; it has type {value.type}")
            tensors[value] = given[name]
    # names that stand alone are bound by all sources before any expression over them is checked
    for ordered in (lambda value: not _has_expression(value), _has_expression):
        for value, tensor in tensors.items():
            if ordered(value):
                check_tensor(tensor, value, dims, where=f"circuit {circuit.name!r}, {value.kind}")

    last_use = _last_uses(circuit)
    if observe is not None:
        for value, tensor in tensors.items():
            observe(value, tensor)
    for index, call in enumerate(circuit.calls):
        try:
            made = call.node.reference(*(tensors[arg] for arg in call.args))
            results = made if isinstance(made, tuple) else (made,)
            for value, tensor in zip(call.results, results, strict=True):
                tensors[value] = tensor
                check_tensor(tensor, value, dims, where=type(call.node).__name__)
                if observe is not None:
                    observe(value, tensor)
        except Exception as error:
            error.add_note(f"in circuit {circuit.name!r}, at call {index}: {call}")
            raise
        for value in last_use.get(index, ()):
            del tensors[value]
    return RunResult(
        outputs={name: tensors[value] for name, value in circuit.outputs.items()},
        states={name: tensors[value] for name, value in circuit.state_outputs.items()},
        dims=dims,
    )


def check_tensor(tensor: Tensor, value: Value, dims: dict[str, int], *, where: str) -> None:
    """Raise `BindingError` unless `tensor` has the value's dtype and sizes; newly met dims are added to `dims`."""
    declared: TensorType = value.type.tensor if isinstance(value.type, StateType) else value.type
    if not isinstance(tensor, Tensor):
        raise BindingError(f"{where} {value!r}: expected a tensor, got {type(tensor).__name__}")
    if tensor.dtype != declared.dtype:
        got = DTYPE_NAMES.get(tensor.dtype, str(tensor.dtype))
        raise BindingError(f"{where} {value!r}: expected dtype {dtype_name(declared.dtype)}, got {got}")
    if fault := match_sizes(declared, tensor.shape, dims):
        raise BindingError(f"{where} {value!r}: {fault}; the tensor is {list(tensor.shape)}")


def _has_expression(value: Value) -> bool:
    declared = value.type.tensor if isinstance(value.type, StateType) else value.type
    return any(not (dim.is_Integer or dim.is_Symbol) for dim in declared.shape)


def _last_uses(circuit: Circuit) -> dict[int, list[Value]]:
    kept = {*circuit.outputs.values(), *circuit.state_outputs.values()}
    last: dict[Value, int] = {}
    for index, call in enumerate(circuit.calls):
        last.update(dict.fromkeys((*call.args, *call.results), index))
    uses: dict[int, list[Value]] = {}
    for value, index in last.items():
        if value not in kept:
            uses.setdefault(index, []).append(value)
    return uses
