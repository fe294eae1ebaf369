"""Build several packages side by side, each in a process of its own: a compile keeps one core busy."""

import multiprocessing
import signal
import time
import warnings
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
    """One package to build: a circuit, the sizes it fixes, the threads of its loops, and the file it becomes.

    native_products: whether bf16_products.cpp may go into it.
    """

    circuit: Circuit
    dims: Mapping[str, int]
    num_threads: int
    path: Path
    native_products: bool = True


def build_packages(
    jobs: Sequence[BuildJob], *, num_workers: int, on_built: Callable[[BuildJob, float], None] | None = None
) -> None:
    """Build every job's file; `on_built` is told each as it is done, and its seconds, in this process.

    Raises LoweringError that names the package that failed; files already built stay.
    """
    # spawned, not forked: the parent may hold OpenMP threads, and a forked child would wait for them for ever
    context = multiprocessing.get_context("spawn")
    strangers = set(multiprocessing.active_children())
    with ProcessPoolExecutor(max_workers=max(1, num_workers), mp_context=context, initializer=_start_worker) as pool:
        running = {
            pool.submit(
                _build, to_document(job.circuit), dict(job.dims), job.num_threads, str(job.path), job.native_products
            ): job
            for job in jobs
        }
        try:
            for future in as_completed(running):
                job = running[future]
                if (error := future.exception()) is not None:
                    raise LoweringError(f"package {job.path.name}: {_first_line(error)}") from error
                if on_built is not None:
                    on_built(job, future.result())
        except BaseException:
            # one that compiles would be waited for, up to minutes
            for worker in set(multiprocessing.active_children()) - strangers:
                worker.terminate()
            pool.shutdown(cancel_futures=True)
            raise


def _start_worker() -> None:
    # the parent reports an interrupt; a terminal sends it to its children too
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # of torch's own calls of its own functions, once a worker
    warnings.simplefilter("ignore", FutureWarning)


def _build(document: dict[str, Any], dims: dict[str, int], num_threads: int, path: str, native_products: bool) -> float:
    torch.set_num_threads(1)
    began = time.perf_counter()
    build_package(from_document(document), dims, Path(path), num_threads=num_threads, native_products=native_products)
    return time.perf_counter() - began


def _first_line(error: BaseException) -> str:
    """The line that says most: a C++ compiler's own first error, else the message's first line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or ["no message"]
    of_compiler = [line for line in lines if "error: " in line]
    return f"{type(error).__name__}: {(of_compiler or lines)[0]}"
