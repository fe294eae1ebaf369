"""Run a circuit by a backend's lowerings, call by call and eagerly, so that every edge is there to be compared.

It is the arithmetic of a compiled program before its compiler has seen it: where this is right and the program is
wrong, the compiler's own part is to blame; where this is wrong, one call is.
"""

import importlib
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from circuit import BindingError, Call, Circuit, LoweringError, RunResult, StateType, Value, check_tensor
from compiler.registry import Lowering, lowering_of

# what registers each backend's lowerings; it may load a compiler, which nobody waits for who does not ask
LOWERED_BACKENDS = {"inductor": "compiler.inductor.lowering", "triton": "compiler.triton.rules"}
LAUNCHED = "triton"  # its lowerings make launches, which run in a program

Observer = Callable[[Value, Tensor], None]


def load_lowerings(backend: str) -> None:
    """Import what registers a backend's lowerings; `LoweringError` for a backend that has none."""
    if backend not in LOWERED_BACKENDS:
        raise LoweringError(f"backend {backend!r}: expected one that has lowerings: {', '.join(LOWERED_BACKENDS)}")
    importlib.import_module(LOWERED_BACKENDS[backend])


@torch.no_grad()
def run_op_by_op(
    circuit: Circuit,
    *,
    backend: str,
    inputs: Mapping[str, Tensor],
    weights: Mapping[str, Tensor],
    states: Mapping[str, Tensor],
    observe: Observer | None = None,
) -> RunResult:
    """Run every call by its lowering, or by its reference where it has none; the states handed in stay as they are.

    `observe` is shown every value and its tensor, sources first; a state's tensor is written by later calls. Raises
    `BindingError` for a missing or ill-typed tensor, `LoweringError` for a backend whose lowerings make launches, and
    for a lowering that writes an argument other than the states its node writes. These, and an exception of a lowering,
    carry a note with the call.
    """
    load_lowerings(backend)
    if backend == LAUNCHED:
        raise LoweringError(
            f"backend {backend!r}: its lowerings make launches and do not run op by op; see LaunchProgram"
        )
    values: dict[Value, Tensor] = {}
    for kind, declared, given in (
        ("input", circuit.inputs, inputs),
        ("state", circuit.states, states),
        ("weight", circuit.weights, weights),
    ):
        for name, value in declared.items():
            if name not in given:
                raise BindingError(f"circuit {circuit.name!r}: {kind} {name!r} is missing; it has type {value.type}")
            values[value] = given[name].clone() if kind == "state" else given[name]
    if observe is not None:
        for value, tensor in values.items():
            observe(value, tensor)
    dims: dict[str, int] = {}
    # names that stand alone are bound before any expression over them is checked
    for value in sorted(values, key=_has_expression):
        check_tensor(values[value], value, dims, where=f"circuit {circuit.name!r}, {value.kind}")
    for index, call in enumerate(circuit.calls):
        try:
            made = _run_call(call, lowering_of(call.node, backend), [values[arg] for arg in call.args])
            for value, tensor in zip(call.results, made, strict=True):
                check_tensor(tensor, value, dims, where=type(call.node).__name__)
        except Exception as error:
            error.add_note(f"in circuit {circuit.name!r}, at call {index}: {call}")
            raise
        for value, tensor in zip(call.results, made, strict=True):
            values[value] = tensor
            if observe is not None:
                observe(value, tensor)
    return RunResult(
        outputs={name: values[value] for name, value in circuit.outputs.items()},
        states={name: values[value] for name, value in circuit.state_outputs.items()},
        dims=dims,
    )


def _run_call(call: Call, lowering: Lowering | None, arguments: list[Tensor]) -> tuple[Tensor, ...]:
    node = call.node
    if lowering is None:
        made = node.reference(*arguments)
        return made if isinstance(made, tuple) else (made,)
    # a lowering that writes where it may not is seen by torch's own count of writes
    kept = [(port, tensor) for port, tensor in zip(node.ports, arguments, strict=True) if port not in node.writes]
    counts = [tensor._version for _, tensor in kept]
    made = lowering.function(node, *arguments)
    for (port, tensor), count in zip(kept, counts, strict=True):
        if tensor._version != count:
            raise LoweringError(
                f"{type(node).__name__}.{port}: its lowering on {lowering.backend} writes this argument, which others "
                "read; copy it first"
            )
    return made if isinstance(made, tuple) else (made,)


def _has_expression(value: Value) -> bool:
    declared = value.type.tensor if isinstance(value.type, StateType) else value.type
    return any(not (dim.is_Integer or dim.is_Symbol) for dim in declared.shape)
