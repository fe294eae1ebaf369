"""Build ahead-of-time packages: native code of one circuit at fixed sizes, run without a compiler by program.py."""

import os
import re
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import torch

from circuit import Circuit, LoweringError
from compiler.inductor.bf16_products import bf16_products
from compiler.inductor.driver import DRIVER
from compiler.inductor.export import export_circuit
from compiler.inductor.toolchain import cxx_compiler

DRIVER_SOURCE = Path(__file__).with_name("driver.cpp")

INDUCTOR_OPTIONS: dict[str, object] = {
    # rounds to bf16 where the reference does; measured to cost nothing
    "emulate_precision_casts": True,
    # a fused multiply-add rounds once where the reference rounds twice
    "cpp.enable_floating_point_contract_flag": "off",
    # one allocation in place of some sixty a step, each of them dearer than the arithmetic on so small a buffer
    "memory_planning": True,
    # a vectorised loop for the rest of every loop takes the compiler longer than it saves
    "cpp.enable_loop_tail_vec": False,
}


def build_package(
    circuit: Circuit, dims: Mapping[str, int], path: Path, *, num_threads: int, native_products: bool = True
) -> None:
    """Compile `circuit` at these sizes into the shared library `path` (.so). Needs a C++ compiler.

    `num_threads` is baked into the loops. `native_products`: whether bf16_products.cpp goes into it where that pays and
    this machine can run it. The file appears whole or not at all; `build_driver` makes what runs it.
    """
    with bf16_products(is_on=native_products):
        exported = export_circuit(circuit, dims)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".build-") as folder:
        archive = Path(folder) / "package.pt2"
        torch._inductor.aoti_compile_and_package(
            exported,
            package_path=str(archive),
            inductor_configs={**INDUCTOR_OPTIONS, "cpp.threads": num_threads},
        )
        os.replace(_library_in(archive, Path(folder)), path)


def build_driver(folder: Path) -> Path:
    """Compile the driver of the packages in `folder`, into it; returns its path.

    `LoweringError` has the C++ compiler's first error.
    """
    compiler, home = cxx_compiler(), Path(torch.__file__).parent
    path, partial = folder / DRIVER, folder / f".{DRIVER}.partial"
    command = [compiler, "-std=c++17", "-O2", "-fPIC", "-shared", f"-I{home / 'include'}", str(DRIVER_SOURCE)]
    try:
        done = subprocess.run(
            [*command, "-o", str(partial), f"-L{home / 'lib'}", "-ltorch_cpu", "-ldl"],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            lines = done.stderr.splitlines() or ["no message"]
            first = next((line for line in lines if "error" in line), lines[0])
            raise LoweringError(f"{compiler} cannot build {DRIVER_SOURCE.name}: {first}")
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    return path


def _library_in(archive: Path, folder: Path) -> Path:
    """Take the one shared library out of what torch packs; the rest is its sources."""
    with zipfile.ZipFile(archive) as packed:
        libraries = [name for name in packed.namelist() if name.endswith(".so")]
        if len(libraries) != 1:
            raise LoweringError(f"torch made {len(libraries)} libraries of one program, expected 1")
        # an operator outside torch's C interface would be called through a table that only torch's own loader sets up
        tables = [name for name in packed.namelist() if re.search(r"extern.*\.json$|custom_objs", name)]
        if any(b'"nodes":[]' not in packed.read(name).replace(b" ", b"") for name in tables):
            raise LoweringError(f"the program calls operators outside of it ({', '.join(tables)}); lower them")
        library = folder / "library.so"
        with packed.open(libraries[0]) as source, library.open("wb") as target:
            shutil.copyfileobj(source, target)
    library.chmod(0o755)
    return library
