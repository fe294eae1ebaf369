"""Running a part of a fused circuit by its launches, for the search of a wrong one."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from circuit import Circuit
from compiler.bisect import PartTensors, states_by_version
from compiler.triton.emission import BACKEND, emit
from compiler.triton.program import LaunchProgram


@dataclass(frozen=True, slots=True)
class LaunchPartRunner:
    """Regions launch by launch; a PartRunner over circuits that the Triton backend's passes made."""

    backend: str = BACKEND
    is_compiled: bool = False

    def run(self, part: Circuit, tensors: PartTensors, dims: Mapping[str, int]) -> dict[str, Tensor]:
        """See PartRunner; the sizes stand in the part."""
        del dims
        device = next(iter((*tensors.weights.values(), *tensors.inputs.values()))).device
        program = LaunchProgram(emit(part, name=part.name), device=device)
        states = {name: tensor.clone() for name, tensor in tensors.states.items()}
        program.bind(states=states, weights=tensors.weights)
        program.memory.feed(tensors.inputs)
        made: dict[str, Tensor] = {}
        program.launch(program.plan.num_steps, observe=lambda name, tensor: made.__setitem__(name, tensor.clone()))
        outputs = {name: made[value.name] for name, value in part.outputs.items()}
        return {**outputs, **states_by_version(part, states)}
