"""Where an artifact is written: beside its place first, and moved there when it is whole."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from circuit import CircuitError
from compiler.artifact import CIRCUIT, MANIFEST, PACKAGES, PLAN


def is_artifact_folder(folder: Path) -> bool:
    """Whether the folder is an artifact by its names: a manifest, and nothing that a compile does not write."""
    if not (folder / MANIFEST).is_file():
        return False
    packages = folder / PACKAGES
    held = [*packages.iterdir()] if packages.is_dir() else []
    return {entry.name for entry in folder.iterdir()} <= {MANIFEST, CIRCUIT, PLAN, PACKAGES} and all(
        entry.suffix in (".so", ".pt2")
        for entry in held  # what an earlier format held may be replaced too
    )


def check_output(
    output: Path, *, what: str = "an artifact", is_one: Callable[[Path], bool] = is_artifact_folder
) -> None:
    """Raise CircuitError unless `output` is free, an empty folder, or one of its kind that may be replaced.

    `what` is the kind's name, `is_one` tells a folder of that kind.
    """
    if not output.exists():
        return
    if not output.is_dir():
        raise CircuitError(f"{output}: expected a folder for {what}, got a file; name another place")
    if any(output.iterdir()) and not is_one(output):
        raise CircuitError(
            f"{output}: expected a new folder or {what} to replace, got a folder with other files; name another place"
        )


@contextmanager
def replacing(
    output: Path, *, what: str = "an artifact", is_one: Callable[[Path], bool] = is_artifact_folder
) -> Iterator[Path]:
    """Yield a new folder beside `output`; at the end of the body it takes its place, an exception removes it.

    What lies there, see check_output, is kept until then. Raises CircuitError for a place that holds other files.
    """
    output = output.resolve()
    check_output(output, what=what, is_one=is_one)
    output.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{output.name}.", suffix=".partial", dir=output.parent))
    try:
        yield fresh
        # mkdtemp keeps others out; an artifact is read like any folder
        fresh.chmod(0o777 & ~_umask())
        # it may have changed while the body ran
        check_output(output, what=what, is_one=is_one)
        _swap(fresh, output)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _swap(fresh: Path, output: Path) -> None:
    """Put `fresh` in the place of `output`; what lay there comes back when that fails."""
    if not output.exists():
        os.rename(fresh, output)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{output.name}.", suffix=".old", dir=output.parent))
    os.rename(output, old)
    try:
        os.rename(fresh, output)
    except OSError:
        os.rename(old, output)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
