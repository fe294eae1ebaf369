"""LaunchSteps: one draft, or context rows, launch by launch, with what every region makes shown as it is made."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from circuit import Circuit, RunResult, Value
from compiler import Compiled, DerivedWeights
from compiler.triton import LaunchProgram
from drafts.binding import DraftBinding
from drafts.bisect_drafter import Prepare
from drafts.triton_runner import compile_for_launches, launch_plan


@dataclass(frozen=True, slots=True)
class _Step:
    """A compiled circuit at one number of rows."""

    compiled: Compiled
    program: LaunchProgram
    derived: DerivedWeights


class LaunchSteps:
    """Runs circuits like the interpreter, by their Triton launches; a StepRunner, see executions.py.

    Shows results of regions: what a launch keeps to itself is not there to be shown.
    """

    def __init__(self, binding: DraftBinding) -> None:
        self._binding = binding
        self._steps: dict[tuple[str, tuple[tuple[int, ...], ...]], _Step] = {}

    def __call__(
        self,
        circuit: Circuit,
        *,
        inputs: Mapping[str, Tensor],
        weights: Mapping[str, Tensor],
        states: Mapping[str, Tensor],
        observe: Callable[[Value, Tensor], None],
    ) -> RunResult:
        """Run the launches on copies of the states; see StepRunner."""
        shapes = tuple(tuple(tensor.shape) for tensor in (*inputs.values(), *states.values()))
        key = (circuit.name, shapes)
        if key not in self._steps:
            self._steps[key] = self._made(circuit, inputs, states)
        step = self._steps[key]
        made = step.compiled.circuit
        written = {name: tensor.clone() for name, tensor in states.items()}
        for name, value in made.inputs.items():
            observe(value, inputs[name])
        for name, value in made.states.items():
            observe(value, written[name])
        step.derived.refresh(weights)
        step.program.bind(states=written, weights={**weights, **step.derived.tensors})
        step.program.memory.feed(inputs)
        step.program.launch(1, observe=lambda name, tensor: observe(made.value(name), tensor.clone()))
        outputs = {name: step.program.memory.tensor(view).clone() for name, view in step.program.plan.outputs.items()}
        return RunResult(outputs, written)

    def _made(self, circuit: Circuit, inputs: Mapping[str, Tensor], states: Mapping[str, Tensor]) -> _Step:
        compiled = compiled_like(self._binding, circuit, inputs, states)
        device: torch.device = states["latent_cache"].device
        program = LaunchProgram(launch_plan(compiled, name=circuit.name), device=device)
        return _Step(compiled, program, DerivedWeights(compiled.derived, self._binding.weights))


def compiled_like(
    binding: DraftBinding, circuit: Circuit, inputs: Mapping[str, Tensor], states: Mapping[str, Tensor]
) -> Compiled:
    """Run the Triton backend's passes at the sizes of these tensors."""
    table = inputs["block_table"]
    return compile_for_launches(
        binding,
        circuit,
        num_rows=table.shape[0],
        max_blocks=table.shape[1],
        num_blocks=states["latent_cache"].shape[0],
        num_sequences=states["tail"].shape[0],
    )


def fused_at(binding: DraftBinding) -> Prepare:
    """Return what turns a program into its fused circuit and the weights that this reads; see DrafterBisection."""

    def prepare(
        circuit: Circuit, inputs: Mapping[str, Tensor], states: Mapping[str, Tensor]
    ) -> tuple[Circuit, Mapping[str, Tensor]]:
        compiled = compiled_like(binding, circuit, inputs, states)
        derived = DerivedWeights(compiled.derived, binding.weights)
        return compiled.circuit, {**binding.weights, **derived.tensors}

    return prepare
