"""The CPU backend: circuits through torch.export and Inductor to ahead-of-time packages.

The public names load on first use, so that running a package does not wait for the import of torch's compiler.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from compiler.inductor.build import BuildJob, build_packages
    from compiler.inductor.driver import DRIVER
    from compiler.inductor.export import LoweredCircuit, export_circuit
    from compiler.inductor.package import INDUCTOR_OPTIONS, build_driver, build_package
    from compiler.inductor.program import PackagedProgram
    from compiler.inductor.toolchain import has_cxx_compiler, require_cxx_compiler

_MODULES = {
    "BuildJob": "compiler.inductor.build",
    "LoweredCircuit": "compiler.inductor.export",
    "PackagedProgram": "compiler.inductor.program",
    "DRIVER": "compiler.inductor.driver",
    "INDUCTOR_OPTIONS": "compiler.inductor.package",
    "build_driver": "compiler.inductor.package",
    "build_package": "compiler.inductor.package",
    "build_packages": "compiler.inductor.build",
    "export_circuit": "compiler.inductor.export",
    "has_cxx_compiler": "compiler.inductor.toolchain",
    "require_cxx_compiler": "compiler.inductor.toolchain",
}

__all__ = [
    "DRIVER",
    "INDUCTOR_OPTIONS",
    "BuildJob",
    "LoweredCircuit",
    "PackagedProgram",
    "build_driver",
    "build_package",
    "build_packages",
    "export_circuit",
    "has_cxx_compiler",
    "require_cxx_compiler",
]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'compiler.inductor' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
