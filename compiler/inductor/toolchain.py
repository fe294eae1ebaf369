"""What a compile needs of the machine."""

import shutil

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


def _found() -> str | None:
    # torch's own search remembers what it once found
    named = config.cpp.cxx if isinstance(config.cpp.cxx, tuple) else (config.cpp.cxx,)
    return next((path for name in named if name and (path := shutil.which(name)) is not None), None)
