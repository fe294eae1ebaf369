"""Ranks of a command: what torchrun says of this process, and the processes of `--nproc`."""

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

GRACE_S = 10.0  # a rank whose peer failed says so itself, once its exchange is lost
STOP_S = 5.0
POLL_S = 0.05
EXIT_BAD_INPUT = 2


@dataclass(frozen=True, slots=True)
class StartedRank:
    """This process among those that were started together; rank 0 of 1 where it was started alone."""

    rank: int = 0
    num_ranks: int = 1


def started_rank() -> StartedRank:
    """Return what torchrun, or `--nproc`, put into the environment; ValueError for what is no rank of a world."""
    given = {name: os.environ.get(name) for name in ("RANK", "WORLD_SIZE")}
    if None in given.values():
        return StartedRank()
    try:
        rank, num_ranks = (int(str(text)) for text in given.values())
    except ValueError:
        rank, num_ranks = -1, 0
    if not 0 <= rank < num_ranks:
        raise ValueError(
            f"RANK {given['RANK']!r} of WORLD_SIZE {given['WORLD_SIZE']!r}: expected a rank and the number of ranks; "
            "start the command with torchrun, or leave both unset"
        )
    return StartedRank(rank, num_ranks)


def launch_ranks(num_ranks: int, arguments: Sequence[str]) -> int:
    """Run the command line once a rank on this machine and return its exit code: that of the first rank that failed.

    Rank 0 has this process's output. What another rank says is shown where it was the first to fail.
    """
    port = str(_free_port())
    with tempfile.TemporaryDirectory() as folder:
        running: list[subprocess.Popen[bytes]] = []
        try:
            for rank in range(num_ranks):
                world = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(num_ranks)}
                environment = {**os.environ, **world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
                command = [sys.executable, "-m", "drafts", *arguments]
                if rank == 0:
                    running.append(subprocess.Popen(command, env=environment))
                    continue
                with open(f"{folder}/{rank}", "wb") as said:
                    running.append(subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=said))
            first = _wait(running)
        finally:
            _stop(running)
        if first is None:
            return 0
        # bad input is the same on all ranks, and rank 0 has said so; else the rank that failed first knows why
        if running[0].returncode == EXIT_BAD_INPUT:
            return EXIT_BAD_INPUT
        if first != 0:
            with open(f"{folder}/{first}", encoding="utf-8", errors="replace") as told:
                sys.stderr.write(told.read())
        # a rank that was ended by a signal has a negative code
        return running[first].returncode if running[first].returncode > 0 else 1


def _wait(running: Sequence["subprocess.Popen[bytes]"]) -> int | None:
    """Return the first rank that failed, the others given time to end; None when all ended well."""
    first: int | None = None
    deadline = float("inf")
    while any(process.poll() is None for process in running) and time.monotonic() < deadline:
        failed = [rank for rank, process in enumerate(running) if process.returncode not in (None, 0)]
        if failed and first is None:
            first, deadline = failed[0], time.monotonic() + GRACE_S
        time.sleep(POLL_S)
    if first is None:
        first = next((rank for rank, process in enumerate(running) if process.poll() not in (None, 0)), None)
    return first


def _stop(running: Sequence["subprocess.Popen[bytes]"]) -> None:
    for process in running:
        if process.poll() is None:
            process.terminate()
    for process in running:
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
