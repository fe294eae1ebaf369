"""From a circuit to an exported torch program of ATen ops, weights and states as inputs, states written in place."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

import compiler.inductor.lowering  # noqa: F401 - importing them registers them
from circuit import Circuit, LoweringError, Node, StateType, Value
from compiler.inductor.program import argument_order
from compiler.registry import lowering_of

# the cache's extent belongs to the proposer that allocated it, not to the program
DYNAMIC_DIMS = ("num_blocks", "num_sequences")


class LoweredCircuit(nn.Module):
    """A circuit as a torch module: arguments are inputs, states and weights in declared order, results the outputs.

    States are changed in place. Each node runs its Inductor lowering, or its reference where it has none or where
    `lowers` says no; a node that writes state has no other way than its lowering.
    """

    def __init__(self, circuit: Circuit, *, lowers: Callable[[Node], bool] = lambda node: True) -> None:
        super().__init__()
        self._lowerings = [lowering_of(call.node, "inductor") if lowers(call.node) else None for call in circuit.calls]
        self.circuit = circuit
        self.arguments = argument_order(circuit)

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Run the calls in order; `tensors` follow `arguments`."""
        values: dict[Value, Tensor] = dict(zip(self.arguments, tensors, strict=True))
        for call, lowering in zip(self.circuit.calls, self._lowerings, strict=True):
            arguments = [values[arg] for arg in call.args]
            if lowering is None and call.node.writes:
                raise LoweringError(f"{type(call.node).__name__}: a node that writes state needs an inductor lowering")
            made = call.node.reference(*arguments) if lowering is None else lowering.function(call.node, *arguments)
            values.update(zip(call.results, made if isinstance(made, tuple) else (made,), strict=True))
        # the driver hands out results row by row, and a reference may leave a transposed view
        return tuple(values[value].contiguous() for value in self.circuit.outputs.values())


def export_circuit(circuit: Circuit, dims: Mapping[str, int]) -> ExportedProgram:
    """Trace a circuit with these sizes of its named dims; those of DYNAMIC_DIMS stay open.

    `LoweringError` names the dims that `dims` lacks.
    """
    arguments = argument_order(circuit)
    examples, dynamic = [], []
    for value in arguments:
        declared = value.type.tensor if isinstance(value.type, StateType) else value.type
        if missing := declared.free_dims() - set(dims):
            raise LoweringError(f"export of {circuit.name!r}: {value!r} needs a size for {', '.join(sorted(missing))}")
        examples.append(torch.zeros(declared.bind(dims).sizes(), dtype=declared.dtype))
        dynamic.append({axis: Dim.DYNAMIC for axis, dim in enumerate(declared.shape) if str(dim) in DYNAMIC_DIMS})
    with torch.no_grad():
        return torch.export.export(
            LoweredCircuit(circuit), tuple(examples), dynamic_shapes={"tensors": tuple(dynamic)}, strict=False
        )
