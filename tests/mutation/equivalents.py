"""Mutants that no test can tell from the source, each with the reason: equivalent.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.mutation.mutants import Mutant

FILE = Path(__file__).with_name("equivalent.toml")

Key = tuple[str, str, str, str, int]


def read_equivalents(file: Path = FILE) -> dict[Key, str]:
    """Return the reason of each equivalent mutant, by its key."""
    reasons: dict[Key, str] = {}
    for entry in tomllib.loads(file.read_text(encoding="utf-8"))["equivalent"]:
        for change in entry["changes"]:
            before, after, *number = change
            reasons[entry["file"], entry["function"], before, after, *(number or [1])] = entry["reason"]  # type: ignore[index]
    return reasons


def missing(reasons: Mapping[Key, str], mutants: Sequence[Mutant]) -> list[Key]:
    """Return the entries that name no mutant of the sources any more."""
    held = {mutant.key for mutant in mutants}
    return [key for key in reasons if key not in held]
