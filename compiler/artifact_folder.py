"""Where an artifact is written: beside its place first, and moved there when it is whole."""

import os
import shutil
import tempfile
from collections.abc import Iterator
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


def check_output(output: Path) -> None:
    """Raise CircuitError unless `output` is free, an empty folder, or an artifact that may be replaced."""
    if not output.exists():
        return
    if not output.is_dir():
        raise CircuitError(f"{output}: expected a folder for the artifact, got a file; name another place")
    if any(output.iterdir()) and not is_artifact_folder(output):
        raise CircuitError(
            f"{output}: expected a new folder or an artifact to replace, got a folder with other files; "
            "name another place"
        )


@contextmanager
def replacing(output: Path) -> Iterator[Path]:
    """Yield a new folder beside `output`; at the end of the body it takes its place, an exception removes it.

    An artifact that lies there is kept until then. Raises CircuitError for a place that holds other files.
    """
    output = output.resolve()
    check_output(output)
    output.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{output.name}.", suffix=".partial", dir=output.parent))
    try:
        yield fresh
        # mkdtemp keeps others out; an artifact is read like any folder
        fresh.chmod(0o777 & ~_umask())
        _swap(fresh, output)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _swap(fresh: Path, output: Path) -> None:
    """Put `fresh` in the place of `output`; what lay there comes back when that fails."""
    # it may have changed while the compile ran
    check_output(output)
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
