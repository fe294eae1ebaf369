"""Where a command writes: results on standard output, progress and errors on standard error."""

import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table


class Screen:
    """The two consoles of a command, and its one JSON object.

    `out` takes what people read and is silent with `--json`; `err` takes progress, drawn on a terminal; elsewhere a
    bar is one plain line at its start, and a step is silent. With `is_silent` nothing is written at all, for a rank
    beside the one that speaks.
    """

    def __init__(self, *, as_json: bool, is_silent: bool = False) -> None:
        self.as_json = as_json
        self._is_silent = is_silent
        self.out = Console(quiet=as_json or is_silent, highlight=False, emoji=False, markup=False)
        self.err = Console(stderr=True, quiet=is_silent, highlight=False, emoji=False, markup=False)

    def emit(self, record: Mapping[str, Any]) -> None:
        """Write `record` as one line of JSON when asked for; numbers that JSON lacks become null."""
        if self.as_json and not self._is_silent:
            sys.stdout.write(json.dumps(_plain(record), allow_nan=False) + "\n")
            sys.stdout.flush()

    def note(self, line: str) -> None:
        """Say a line that is neither result nor error, on standard error."""
        self.err.print(line, style="dim", soft_wrap=True)

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Show that `what` is going on, with the seconds it takes; leaves nothing behind on a terminal."""
        with self._progress(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()) as progress:
            progress.add_task(what, total=None)
            yield

    @contextmanager
    def stages(self) -> Iterator[Callable[[str], None]]:
        """Show which stage of a longer work goes on; the function it yields takes the next stage's name."""
        with self._progress(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()) as progress:
            task = progress.add_task("starting", total=None)

            def next_stage(what: str) -> None:
                if not self.err.is_terminal:
                    self.err.print(f"{what} ...")
                progress.update(task, description=what)

            yield next_stage

    @contextmanager
    def bar(self, what: str, total: int) -> Iterator[Callable[[int], None]]:
        """Show a bar over `total` units; the function it yields takes the number of units that were finished."""
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        if not self.err.is_terminal:
            self.err.print(f"{what} ...")
        with self._progress(*columns) as progress:
            task = progress.add_task(what, total=total)
            yield lambda finished: progress.advance(task, finished)

    def _progress(self, *columns: Any) -> Progress:
        return Progress(*columns, console=self.err, transient=True, disable=not self.err.is_terminal)


def facts(rows: Mapping[str, str]) -> Table:
    """Return a borderless table of names and what is true of them; long texts wrap beside their name."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in rows.items():
        table.add_row(f"  {name}", text)
    return table


def plural(count: int, noun: str) -> str:
    """Return `1 call` or `2,000 calls`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(held) for key, held in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(held) for held in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
