"""Find the smallest set of calls whose lowerings give other results than their references do.

The reference runs once and every value of it is kept. A set of calls then runs by its lowerings, cut out of the
circuit and fed what the reference made, and each of its results is held to its own bound (edge_bounds.py). A set that
fails is halved until none of its parts fails alone: one call for most faults, several where only their sum is wrong.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from circuit import Circuit, CircuitError, StateType, Value, interpret
from compiler.cut_out import cut_out
from compiler.edge_bounds import EdgeBounds
from compiler.op_by_op import load_lowerings, run_op_by_op
from compiler.parity import EdgeDifference, compare_edge
from compiler.registry import lowering_of

Item = TypeVar("Item")

# how a lowering at fault may raise
FAULTS = (CircuitError, RuntimeError, ValueError, IndexError, TypeError)


@dataclass(frozen=True, slots=True)
class PartTensors:
    """What a part is run on: inputs, weights and states by name."""

    inputs: dict[str, Tensor]
    weights: dict[str, Tensor]
    states: dict[str, Tensor]


class PartRunner(Protocol):
    """Runs a part of a circuit by lowerings; the tensors handed in stay as they are."""

    @property
    def backend(self) -> str:
        """Whose lowerings it runs."""
        ...

    @property
    def is_compiled(self) -> bool:
        """Whether a compiler has seen them; else they run call by call."""
        ...

    def run(self, part: Circuit, tensors: PartTensors, dims: Mapping[str, int]) -> dict[str, Tensor]:
        """Return outputs by name, and each state by the name of the last version that the part makes."""
        ...


@dataclass(frozen=True, slots=True)
class OpByOpRunner:
    """Lowerings call by call, eagerly."""

    backend: str
    is_compiled: bool = False

    def run(self, part: Circuit, tensors: PartTensors, dims: Mapping[str, int]) -> dict[str, Tensor]:
        """See PartRunner; the sizes are those of the tensors."""
        del dims
        # a lowering at fault may write what it was handed
        inputs = {name: tensor.clone() for name, tensor in tensors.inputs.items()}
        result = run_op_by_op(part, backend=self.backend, inputs=inputs, weights=tensors.weights, states=tensors.states)
        return {**result.outputs, **states_by_version(part, result.states)}


@dataclass(frozen=True, slots=True)
class ReferenceRun:
    """A circuit, the tensor that every value of it had under the interpreter, and the sizes of its named dims."""

    circuit: Circuit
    values: dict[Value, Tensor]
    dims: dict[str, int]

    def tensors_of(self, part: Circuit) -> PartTensors:
        """Return what a part that was cut out of the circuit is run on."""
        held = {value.name: tensor for value, tensor in self.values.items()}
        return PartTensors(
            {name: held[name] for name in part.inputs},
            {name: held[name] for name in part.weights},
            {name: held[name] for name in part.states},
        )


@dataclass(frozen=True, slots=True)
class Culprit:
    """The smallest set of calls that fails, by index: the first edge of it out of bound, or how it raised.

    actual: what the lowerings gave, by value name; nothing where they raised.
    """

    calls: tuple[int, ...]
    difference: EdgeDifference | None
    error: str = ""
    actual: Mapping[str, Tensor] = field(default_factory=dict)


def reference_run(
    circuit: Circuit,
    *,
    inputs: Mapping[str, Tensor],
    weights: Mapping[str, Tensor],
    states: Mapping[str, Tensor],
) -> ReferenceRun:
    """Interpret the circuit and keep every value; raises what `interpret` raises."""
    values: dict[Value, Tensor] = {}
    given = {name: inputs[name] for name in circuit.inputs if name in inputs}
    result = interpret(circuit, inputs=given, weights=weights, states=states, observe=values.__setitem__)
    return ReferenceRun(circuit, values, result.dims)


def find_culprit(run: ReferenceRun, runner: PartRunner, *, dtype: torch.dtype) -> Culprit | None:
    """Return the smallest failing set of calls; None where all calls together, and each alone, are within bound.

    Op by op only calls that have a lowering are suspects, and all of them run alone in the end, for a whole forward's
    bound may hide what a call's own tag does not allow. Compiled, every call is a suspect. `dtype` is the model's.
    """
    load_lowerings(runner.backend)
    suspects = [
        index
        for index, call in enumerate(run.circuit.calls)
        if runner.is_compiled or lowering_of(call.node, runner.backend) is not None
    ]
    if not suspects:
        return None

    tried: dict[tuple[int, ...], Culprit | None] = {}

    def failure(calls: Sequence[int]) -> Culprit | None:
        key = tuple(sorted(calls))
        if key not in tried:
            # a compiled set takes many seconds
            tried[key] = _failure(run, runner, key, dtype=dtype)
        return tried[key]

    if failure(suspects) is not None:
        smallest = smallest_failing(suspects, lambda calls: failure(calls) is not None)
        return failure(smallest)
    if runner.is_compiled:
        return None
    return next((found for index in suspects if (found := failure([index])) is not None), None)


def smallest_failing(items: Sequence[Item], fails: Callable[[Sequence[Item]], bool]) -> list[Item]:
    """Return items of which all together fail and none can be left out; `items` themselves fail.

    Halves first, then smaller parts and what remains without them: some 2 log2(n) runs for one faulty item.
    """
    held, num_parts = list(items), 2
    while len(held) > 1:
        size = -(-len(held) // num_parts)
        parts = [held[start : start + size] for start in range(0, len(held), size)]
        if (part := next((part for part in parts if fails(part)), None)) is not None:
            held, num_parts = part, 2
            continue
        rests = [[item for item in held if item not in part] for part in parts] if len(parts) > 2 else []
        if (rest := next((rest for rest in rests if fails(rest)), None)) is not None:
            held, num_parts = rest, max(num_parts - 1, 2)
            continue
        if num_parts >= len(held):
            break
        num_parts = min(len(held), 2 * num_parts)
    return held


def compare_part(
    part: Circuit,
    expected: Mapping[str, Tensor],
    actual: Mapping[str, Tensor],
    *,
    bounds: EdgeBounds,
) -> list[EdgeDifference]:
    """Compare what a part gave with what its reference gives, by value name, in the order of its calls.

    Of a state, block 0 or sequence 0 is left out: it belongs to nobody.
    """
    differing: set[Value] = set()
    differences = []
    for call in part.calls:
        for value in call.results:
            if value.name not in actual:
                # not shown, so nobody knows that it is the same
                differing.add(value)
                continue
            bound = bounds.of(value, is_exact=lambda arg: arg not in differing)
            sides = [_owned(value, side[value.name]) for side in (actual, expected)]
            difference = compare_edge(value.name, *sides, step=0, bound=bound)
            if not difference.is_bitwise_equal:
                differing.add(value)
            differences.append(difference)
    return differences


def states_by_version(part: Circuit, states: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return written states by the name of the version that the part leaves, in place of the one it took."""
    return {
        value.name: states[name] for name, value in part.state_outputs.items() if value is not part.states.get(name)
    }


def _failure(run: ReferenceRun, runner: PartRunner, calls: tuple[int, ...], *, dtype: torch.dtype) -> Culprit | None:
    part = cut_out(run.circuit, calls, dims=run.dims, keeps_inner=not runner.is_compiled)
    try:
        actual = runner.run(part, run.tensors_of(part), run.dims)
    except FAULTS as error:
        # a lowering that raises is at fault as well; what we ran it on, the reference ran on
        return Culprit(calls, None, f"{type(error).__name__}: {error}")
    expected = {value.name: run.values[value] for index in calls for value in run.circuit.calls[index].results}
    bounds = EdgeBounds(backend=runner.backend, dtype=dtype, is_compiled=runner.is_compiled)
    differences = compare_part(part, expected, actual, bounds=bounds)
    missed = next((difference for difference in differences if not difference.is_within_bound), None)
    return None if missed is None else Culprit(calls, replace(missed, where=run.circuit.name), actual=actual)


def _owned(value: Value, tensor: Tensor) -> Tensor:
    return tensor[1:] if isinstance(value.type, StateType) else tensor
