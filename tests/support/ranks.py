"""Real ranks for a test: processes joined by gloo, each with a time limit, and one clear failure for all of them.

A test names a function of its module; every rank calls it with its rank and the arguments, and what it returns comes
back in the order of ranks. The processes of a pool serve many tests: a process costs seconds, a group milliseconds.
"""

from __future__ import annotations

import itertools
import multiprocessing
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

TIMEOUT_S = 60.0  # of one call on all ranks, a process's first call included
EXCHANGE_TIMEOUT_S = 20.0  # of one exchange: shorter, so that a rank left alone says so itself


class RankFailure(AssertionError):
    """What went wrong on which ranks."""


class RankPool:
    """Processes 0 .. n-1, of which a call takes the first `num_ranks`."""

    def __init__(self, num_processes: int, folder: Path) -> None:
        self._num_processes, self._folder = num_processes, folder
        self._numbers = itertools.count()
        self._workers: list[tuple[Any, Connection]] = []

    def run(
        self,
        num_ranks: int,
        function: Callable[..., Any],
        *args: Any,
        timeout_s: float = TIMEOUT_S,
        exchange_timeout_s: float = EXCHANGE_TIMEOUT_S,
    ) -> list[Any]:
        """Return what `function(rank, *args)` returned on each rank of a new process group.

        Raises RankFailure with every rank's traceback where one raised, or names the ranks that did not come back in
        time, which are killed.
        """
        if not self._workers:
            self._start()
        store = self._folder / f"store{next(self._numbers)}"
        for rank in range(num_ranks):
            self._workers[rank][1].send((rank, num_ranks, str(store), exchange_timeout_s, function, args))
        answers: dict[int, tuple[bool, Any]] = {}
        deadline = time.monotonic() + timeout_s
        for rank in range(num_ranks):
            process, pipe = self._workers[rank]
            try:
                if pipe.poll(max(0.0, deadline - time.monotonic())):
                    answers[rank] = pipe.recv()
            except EOFError:
                answers[rank] = (False, f"the process ended, exit code {process.exitcode}")
        missing = [rank for rank in range(num_ranks) if rank not in answers]
        faults = [f"rank {rank} of {num_ranks}:\n{text}" for rank, (is_ok, text) in answers.items() if not is_ok]
        if missing:
            faults.append(f"ranks {missing} of {num_ranks} did not come back within {timeout_s:g} s: they hang")
        if faults:
            # what they wait for is gone, so no later call may meet them
            self.close()
            raise RankFailure("\n\n".join(faults))
        return [answers[rank][1] for rank in range(num_ranks)]

    def close(self) -> None:
        """End the processes; the next run starts new ones."""
        for process, pipe in self._workers:
            pipe.close()
            process.kill()
            process.join()
        self._workers = []

    def _start(self) -> None:
        context = multiprocessing.get_context("forkserver")
        # one import of torch for all of them
        context.set_forkserver_preload(["torch", "torch.distributed", "drafts.proposer", "drafts.runner"])
        for _ in range(self._num_processes):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self._workers.append((process, ours))


def _serve(pipe: Connection) -> None:
    torch.set_num_threads(1)
    while True:
        try:
            call = pipe.recv()
        except EOFError:
            return
        pipe.send(_call(*call))


def _call(
    rank: int, num_ranks: int, store: str, exchange_timeout_s: float, function: Callable[..., Any], args: Any
) -> tuple[bool, Any]:
    dist = torch.distributed
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{store}",
            rank=rank,
            world_size=num_ranks,
            timeout=timedelta(seconds=exchange_timeout_s),
        )
        return True, function(rank, *args)
    except BaseException as error:
        return False, "".join(traceback.format_exception(error))
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
