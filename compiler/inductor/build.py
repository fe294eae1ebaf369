"""Build several packages side by side, each in a process of its own: a compile keeps one core busy."""

import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from circuit import Circuit, LoweringError, from_document, to_document
from compiler.inductor.package import build_package


@dataclass(frozen=True, slots=True)
class BuildJob:
    """One package to build: a circuit, the sizes it fixes, the threads of its loops, and the file it becomes."""

    circuit: Circuit
    dims: Mapping[str, int]
    num_threads: int
    path: Path


def build_packages(
    jobs: Sequence[BuildJob], *, num_workers: int, on_built: Callable[[BuildJob], None] | None = None
) -> None:
    """Build every job's file; `on_built` is called as each is done, in this process.

    Raises LoweringError that names the package that failed; files already built stay.
    """
    # spawned, not forked: the parent may hold OpenMP threads, and a forked child would wait for them for ever
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=max(1, num_workers), mp_context=context) as pool:
        running = {
            pool.submit(_build, to_document(job.circuit), dict(job.dims), job.num_threads, str(job.path)): job
            for job in jobs
        }
        try:
            for future in as_completed(running):
                job = running[future]
                if (error := future.exception()) is not None:
                    raise LoweringError(f"package {job.path.name}: {_first_line(error)}") from error
                if on_built is not None:
                    on_built(job)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _build(document: dict[str, Any], dims: dict[str, int], num_threads: int, path: str) -> None:
    torch.set_num_threads(1)
    build_package(from_document(document), dims, Path(path), num_threads=num_threads)


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"
