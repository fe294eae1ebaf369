"""What a compile needs of the machine."""

import shutil
import subprocess
from functools import cache

from torch._inductor import config

from circuit import LoweringError


def has_cxx_compiler() -> bool:
    """Whether a C++ compiler that Inductor would take is on PATH now, which only building a package needs."""
    return _found() is not None


def require_cxx_compiler() -> None:
    """Raise LoweringError, one line, when there is no C++ compiler."""
    cxx_compiler()


def cxx_compiler() -> str:
    """Return the path of the C++ compiler that Inductor would take; LoweringError, one line, when there is none."""
    found = _found()
    if found is None:
        raise LoweringError(
            "compile: expected a C++ compiler, g++ on PATH or the one that CXX names, got none; install one, "
            "or compile on a machine that has one and bring the artifact"
        )
    return found


def compiles_avx512_bf16() -> bool:
    """Whether there is a C++ compiler, and it knows AVX512-BF16 of this machine."""
    found = _found()
    return found is not None and "__AVX512BF16__" in _macros(found)


@cache
def _macros(compiler: str) -> str:
    # what it defines for the flag that Inductor gives it
    command = [compiler, "-march=native", "-dM", "-E", "-x", "c++", "/dev/null"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def _found() -> str | None:
    # torch's own search remembers what it once found
    named = config.cpp.cxx if isinstance(config.cpp.cxx, tuple) else (config.cpp.cxx,)
    return next((path for name in named if name and (path := shutil.which(name)) is not None), None)
