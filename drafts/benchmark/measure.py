"""One benchmark case: build the variants, hold that they draft alike, time them, set them beside the floor."""

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from drafts.benchmark.protocol import Timing, read_bandwidth, time_interleaved
from drafts.benchmark.variants import COMPILE_OPTIONS, Prepared, compiled_by_torch, compiled_circuit, eager
from drafts.compile_drafter import touched_bytes
from drafts.config import DraftConfig


@dataclass(frozen=True, slots=True)
class BenchResult:
    """Times of one case. bytes: what a whole chain reads of weights and cache; floor_us: that at read_gbps.

    agreement: share of drafts in which a variant gives the eager head's token; in bf16, near ties may fall either way.
    """

    timings: Mapping[str, Timing]
    agreement: Mapping[str, float]
    bytes: int
    read_gbps: float
    num_threads: int

    @property
    def floor_us(self) -> float:
        """Microseconds that reading the chain's bytes costs at the measured bandwidth."""
        return self.bytes / self.read_gbps / 1e3


def measure(
    config: DraftConfig,
    weights: Mapping[str, Tensor],
    *,
    num_rows: int,
    context: int,
    num_drafts: int,
    num_threads: int,
    seconds: float = 5.0,
    with_torch_compile: bool = True,
    compiled_in: Path | None = None,
    on_stage: Callable[[str], None] = lambda stage: None,
) -> BenchResult:
    """Measure one chain of `num_drafts` drafts of `num_rows` sequences with `context` cache rows.

    `compiled_in`: a folder to take the circuit's package from, or to leave it in; None compiles it anew.
    Fails on a recompile: torch.compile that recompiles falls back to eager after a while, and would be timed as that.
    """
    torch.set_num_threads(num_threads)
    on_stage("filling the cache")
    prepared = Prepared(config, weights, num_rows=num_rows, context=context, drafts=num_drafts)
    runs = {"eager": eager(prepared)}
    with tempfile.TemporaryDirectory() as folder, torch._dynamo.config.patch(error_on_recompile=True):
        on_stage("compiling the circuit")
        runs["circuit"] = compiled_circuit(prepared, compiled_in or Path(folder), num_threads=num_threads)
        if with_torch_compile:
            for name, options in COMPILE_OPTIONS.items():
                on_stage(f"compiling {name}")
                runs[name] = compiled_by_torch(prepared, options=options)
                runs[name]()
        on_stage("timing")
        ids = {name: run() for name, run in runs.items()}
        timings = time_interleaved(runs, seconds=seconds)
    num_bytes = touched_bytes(prepared.binding, num_rows=num_rows, context=context) * num_drafts
    return BenchResult(
        timings=timings,
        agreement={name: float((drafts == ids["eager"]).float().mean()) for name, drafts in ids.items()},
        bytes=num_bytes,
        read_gbps=read_bandwidth(num_bytes // num_drafts),
        num_threads=num_threads,
    )
