"""Calls of the console script inside the test's process, so that torch is imported once."""

import json
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from typing import Any
from unittest.mock import patch

import pytest

from drafts.cli import main


@dataclass(frozen=True, slots=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def record(self) -> dict[str, Any]:
        """The one JSON object of standard output; anything beside it is a fault."""
        assert self.out.count("\n") == 1
        return json.loads(self.out, parse_constant=_refuse)

    @property
    def error(self) -> str:
        """The one line of an error; a traceback or a second line is a fault."""
        assert self.err.startswith("error: ")
        assert self.err.count("\n") == 1
        return self.err.removeprefix("error: ").rstrip("\n")


def circuit(*arguments: object) -> Outcome:
    """Run `circuit ARGUMENTS` to its exit."""
    out, err = StringIO(), StringIO()
    argv = ["circuit", *map(str, arguments)]
    with redirect_stdout(out), redirect_stderr(err), patch.object(sys, "argv", argv), pytest.raises(SystemExit) as end:
        main()
    assert isinstance(end.value.code, int)
    return Outcome(end.value.code, out.getvalue(), err.getvalue())


def _refuse(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")
