"""Each mutant is judged in a process of its own, forked from one that has loaded everything: torch takes seconds.

So a mutant that crashes, hangs or writes over memory takes nothing along; it counts as caught, as a test run would
count it.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tests.mutation.mutants import Mutant, planted

TIMEOUT_S = 600.0  # the longest tests of a region take minutes on a busy machine
CRASHED, HUNG = "a crash", "a hang"

# a name and a check that raises where it finds a fault
Checks = Callable[[Mutant], Iterator[tuple[str, Callable[[], None]]]]


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant: the check that caught it, none for a survivor."""

    mutant: Mutant
    caught_by: str
    message: str = ""
    seconds: float = 0.0


@dataclass
class _Child:
    mutant: Mutant
    pid: int
    started: float
    said: bytes = b""


def judge(mutants: Sequence[Mutant], checks: Checks, *, num_workers: int) -> Iterator[Outcome]:
    """Yield the outcome of each mutant, as they come."""
    waiting, running = list(reversed(mutants)), dict[int, _Child]()
    while waiting or running:
        while waiting and len(running) < num_workers:
            mutant = waiting.pop()
            reader, pid = _start(mutant, checks)
            running[reader] = _Child(mutant, pid, time.monotonic())
        readable, _, _ = select.select(list(running), [], [], 1.0)
        for reader in readable:
            said = os.read(reader, 1 << 16)
            running[reader].said += said
            if not said:
                yield _finished(reader, running.pop(reader))
        for reader, child in list(running.items()):
            if time.monotonic() - child.started > TIMEOUT_S:
                os.kill(child.pid, signal.SIGKILL)
                _finished(reader, running.pop(reader))
                yield Outcome(child.mutant, HUNG, f"longer than {TIMEOUT_S:.0f} s", TIMEOUT_S)


def find_catcher(mutant: Mutant, checks: Checks) -> tuple[str, str]:
    """Return the name of the first check that the planted mutant fails, and what it said; empty for a survivor."""
    with planted(mutant):
        for name, check in checks(mutant):
            try:
                check()
            except Exception as error:
                lines = str(error).strip().splitlines() or [""]
                return name, f"{type(error).__name__}: {lines[0]}"[:300]
    return "", ""


def _start(mutant: Mutant, checks: Checks) -> tuple[int, int]:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        return reader, pid
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        name, message = find_catcher(mutant, checks)
        os.write(writer, f"{name}\n{message}".encode())
        os._exit(0)
    except BaseException as error:
        os.write(writer, f"!\n{type(error).__name__}: {error}".encode())
        os._exit(1)


def _finished(reader: int, child: _Child) -> Outcome:
    os.close(reader)
    os.waitpid(child.pid, 0)
    seconds = time.monotonic() - child.started
    if not child.said:
        return Outcome(child.mutant, CRASHED, "", seconds)
    name, _, message = child.said.decode().partition("\n")
    if name == "!":
        raise RuntimeError(f"{child.mutant}: the check of it failed itself: {message}")
    return Outcome(child.mutant, name, message, seconds)
