"""Errors as people read them: one line, in one form, whatever raised them."""

import torch

from circuit.errors import CircuitError, RankError

MAX_LINE = 1000  # characters
# what to do about each package that an installation may lack
PACKAGES = {
    "transformers": "pip install 'draft-circuit[hf]'",
    "tokenizers": "pip install 'draft-circuit[hf]'",
    "triton": "the launches for a GPU are Triton's, for Linux alone; leave --backend triton out elsewhere",
}


def explain(error: Exception) -> tuple[str, bool]:
    """Return the line that says what is wrong, and whether the input is to blame rather than the program."""
    if isinstance(error, ModuleNotFoundError) and (package := (error.name or "").split(".")[0]) in PACKAGES:
        return f"expected the package {package}, got none; {PACKAGES[package]}", True
    if isinstance(error, RankError):
        # another rank's fault, which its own output names
        return one_line(error.report()), False
    if isinstance(error, CircuitError):
        return one_line(error.report()), True
    if isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename else ""
        return one_line(f"{place}{error.strerror or error}; check the path and its permissions"), True
    if isinstance(error, ValueError):
        return one_line(str(error)), True
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return "out of memory; use a smaller checkpoint, fewer tokens or --dtype bf16", True
    return one_line(f"{type(error).__name__}: {error}; a fault of ours: run again with --debug and report it"), False


def one_line(text: str) -> str:
    """Return `text` on one line, control characters of file contents shown as escapes, cut at MAX_LINE."""
    joined = "; ".join(line.strip() for line in text.splitlines() if line.strip())
    shown = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in joined)
    return shown if len(shown) <= MAX_LINE else shown[: MAX_LINE - 3] + "..."
