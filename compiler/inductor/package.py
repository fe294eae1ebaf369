"""Ahead-of-time packages: native code of one circuit at fixed sizes, built once and loaded without a compiler."""

import os
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from circuit import BindingError, Circuit, StateType, TensorType, Value, dtype_name, match_sizes
from compiler.inductor.trace import argument_order, export_circuit

INDUCTOR_OPTIONS: dict[str, object] = {
    # rounds to bf16 where the reference does; measured to cost nothing
    "emulate_precision_casts": True,
    # a fused multiply-add rounds once where the reference rounds twice
    "cpp.enable_floating_point_contract_flag": "off",
}


def build_package(circuit: Circuit, dims: Mapping[str, int], path: Path, *, num_threads: int) -> None:
    """Compile `circuit` at these sizes into the file `path` (.pt2). Needs a C++ compiler.

    `num_threads` is baked into the loops. The file appears whole or not at all.
    """
    exported = export_circuit(circuit, dims)
    partial = path.with_name(f".{path.stem}.partial.pt2")
    try:
        torch._inductor.aoti_compile_and_package(
            exported,
            package_path=str(partial),
            inductor_configs={**INDUCTOR_OPTIONS, "cpp.threads": num_threads},
        )
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


class PackagedProgram:
    """A loaded package of a circuit; runs on tensors by name and changes the states in place.

    Every dtype, shape and stride is checked before native code sees a pointer: it checks none of them itself.
    """

    def __init__(self, circuit: Circuit, dims: Mapping[str, int], path: Path) -> None:
        self.circuit = circuit
        self.dims = dict(dims)
        self._arguments = argument_order(circuit)
        self._loaded = torch._inductor.aoti_load_package(str(path))

    def run(
        self, *, inputs: Mapping[str, Tensor], states: Mapping[str, Tensor], weights: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Return the outputs by name. `BindingError` for a tensor that is missing or does not fit."""
        tables: dict[str, Mapping[str, Tensor]] = {"input": inputs, "state": states, "weight": weights}
        bound = dict(self.dims)
        tensors = [self._checked(value, tables[value.kind], bound) for value in self._arguments]
        results = self._loaded.loader.boxed_run(tensors)
        return dict(zip(self.circuit.outputs, results, strict=True))

    def _checked(self, value: Value, table: Mapping[str, Tensor], bound: dict[str, int]) -> Tensor:
        where = f"package of {self.circuit.name!r}, {value.kind} {value!r}"
        if value.name not in table:
            raise BindingError(f"{where}: missing; pass a tensor of its type")
        tensor = table[value.name]
        declared: TensorType = value.type.tensor if isinstance(value.type, StateType) else value.type
        if tensor.dtype != declared.dtype:
            raise BindingError(f"{where}: expected dtype {dtype_name(declared.dtype)}, got {tensor.dtype}")
        if fault := match_sizes(declared, tensor.shape, bound):
            raise BindingError(f"{where}: {fault}; the package was built for {self.dims}")
        if not tensor.is_contiguous() or tensor.device.type != "cpu":
            raise BindingError(f"{where}: expected a contiguous CPU tensor, got strides {tensor.stride()}")
        return tensor
