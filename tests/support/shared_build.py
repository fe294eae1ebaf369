"""One build for all tests of a run, whichever process needs it first: compiling costs tens of seconds."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

TIMEOUT_S = 1200


def shared_build(tmp_path_factory: pytest.TempPathFactory, name: str, build: Callable[[Path], None]) -> Path:
    """Return a folder that `build` wrote, once for every worker of the run; it must appear whole, as by a rename."""
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent
    folder, claim = root / name, root / f"{name}.claim"
    try:
        # one process alone can make a folder; the others wait for it
        claim.mkdir()
    except FileExistsError:
        _wait(folder, claim)
        return folder
    try:
        build(folder)
    except BaseException:
        (claim / "failed").touch()
        raise
    return folder


def _wait(folder: Path, claim: Path) -> None:
    end = time.monotonic() + TIMEOUT_S
    while not folder.exists():
        if (claim / "failed").exists() or time.monotonic() > end:
            pytest.fail(f"{folder.name}: the build of another worker failed; its report says why")
        time.sleep(0.2)
