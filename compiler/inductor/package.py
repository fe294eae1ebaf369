"""Build ahead-of-time packages: native code of one circuit at fixed sizes, run without a compiler by program.py."""

import os
from collections.abc import Mapping
from pathlib import Path

import torch

from circuit import Circuit
from compiler.inductor.export import export_circuit

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
