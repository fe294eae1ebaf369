"""What a compile needs of the machine."""

from torch._inductor.cpp_builder import get_cpp_compiler
from torch._inductor.exc import InvalidCxxCompiler

from circuit import LoweringError


def has_cxx_compiler() -> bool:
    """Whether a C++ compiler answers, which only building a package needs."""
    try:
        get_cpp_compiler()
    except (InvalidCxxCompiler, OSError):
        return False
    return True


def require_cxx_compiler() -> None:
    """Raise LoweringError, one line, when there is no C++ compiler."""
    if not has_cxx_compiler():
        raise LoweringError(
            "compile: expected a C++ compiler, g++ on PATH or the one that CXX names, got none; install one, "
            "or compile on a machine that has one and bring the artifact"
        )
