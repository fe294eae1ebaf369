"""Run a part of a circuit as a compiled program: built where it is asked for, thrown away after."""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

import compiler.inductor as inductor
from circuit import Circuit, LoweringError
from compiler.bisect import PartTensors, states_by_version


@dataclass(frozen=True, slots=True)
class CompiledPartRunner:
    """Compiles each part by Inductor, at the sizes of its run; needs a C++ compiler, and many seconds a part."""

    backend: str = "inductor"
    is_compiled: bool = True
    num_threads: int = 1

    def run(self, part: Circuit, tensors: PartTensors, dims: Mapping[str, int]) -> dict[str, Tensor]:
        """See PartRunner. Raises LoweringError for another backend, and without a C++ compiler."""
        if self.backend != "inductor":
            raise LoweringError(f"backend {self.backend!r}: expected inductor, which compiles; run it op by op")
        inductor.require_cxx_compiler()
        states = {name: tensor.clone() for name, tensor in tensors.states.items()}
        with tempfile.TemporaryDirectory(prefix="circuit-part-") as folder:
            path = Path(folder) / "part.so"
            inductor.build_package(part, dims, path, num_threads=self.num_threads)
            inductor.build_driver(path.parent)
            program = inductor.PackagedProgram(part, dims, path)
            inputs = {name: tensor.contiguous() for name, tensor in tensors.inputs.items()}
            made = program.run(inputs=inputs, states=states, weights=tensors.weights)
        outputs = {name: tensor[0] for name, tensor in made.items()}
        return {**outputs, **states_by_version(part, states)}
