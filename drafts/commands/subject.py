"""What a command is pointed at: a circuit document, a checkpoint folder or an artifact."""

import os
from pathlib import Path
from typing import Literal

from circuit import CircuitError
from compiler import MANIFEST

DOCUMENT_SUFFIXES = (".yaml", ".yml", ".json")
Kind = Literal["document", "checkpoint", "artifact"]


def kind_of(path: Path) -> Kind:
    """Tell by its form what `path` is; raises CircuitError for what is neither."""
    if (path / "config.json").is_file():
        return "checkpoint"
    # a link that leads nowhere is a damaged artifact rather than none
    if os.path.lexists(path / MANIFEST):
        return "artifact"
    if path.is_dir():
        raise CircuitError(
            f"{path}: expected a circuit document, a checkpoint folder or an artifact, got a folder without "
            f"config.json or {MANIFEST}; check the path"
        )
    if not path.exists():
        raise CircuitError(
            f"{path}: expected a circuit document, a checkpoint folder or an artifact, got no such path; check it"
        )
    if path.name == "config.json":
        raise CircuitError(f"{path}: expected a checkpoint folder, got its config.json; name the folder {path.parent}")
    if path.suffix not in DOCUMENT_SUFFIXES:
        raise CircuitError(
            f"{path}: expected a circuit document ({', '.join(DOCUMENT_SUFFIXES)}) or a checkpoint folder, "
            f"got a file {path.suffix or 'without a suffix'}; name one of these"
        )
    return "document"


def checkpoint_folder(path: Path) -> Path:
    """Return `path` when it is a folder with a config.json; raises CircuitError otherwise."""
    if not path.is_dir() or not (path / "config.json").is_file():
        got = "a folder without one" if path.is_dir() else "a file" if path.exists() else "no such path"
        raise CircuitError(f"{path}: expected a checkpoint folder with config.json, got {got}; check the path")
    return path
