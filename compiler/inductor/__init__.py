"""The CPU backend: circuits through torch.export and Inductor to ahead-of-time packages."""

from compiler.inductor.build import BuildJob, build_packages
from compiler.inductor.export import LoweredCircuit, export_circuit
from compiler.inductor.package import PackagedProgram, build_package
from compiler.inductor.toolchain import has_cxx_compiler, require_cxx_compiler

__all__ = [
    "BuildJob",
    "LoweredCircuit",
    "PackagedProgram",
    "build_package",
    "build_packages",
    "export_circuit",
    "has_cxx_compiler",
    "require_cxx_compiler",
]
