"""How variants are timed: interleaved in one process, the order rotated, medians and spread."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter

import torch


@dataclass(frozen=True, slots=True)
class Timing:
    """Microseconds of one variant over all rounds: median, 20th and 80th percentile."""

    median_us: float
    p20_us: float
    p80_us: float
    num_rounds: int


def time_interleaved(
    variants: Mapping[str, Callable[[], object]],
    *,
    seconds: float,
    min_rounds: int = 20,
    on_round: Callable[[int], None] | None = None,
) -> dict[str, Timing]:
    """Call every variant once a round, starting with another one each time, for `seconds` or `min_rounds`."""
    names = list(variants)
    for name in names:
        for _ in range(3):
            variants[name]()
    samples: dict[str, list[float]] = {name: [] for name in names}
    start, rounds = perf_counter(), 0
    while rounds < min_rounds or perf_counter() - start < seconds:
        shift = rounds % len(names)
        for name in names[shift:] + names[:shift]:
            before = perf_counter()
            variants[name]()
            samples[name].append((perf_counter() - before) * 1e6)
        rounds += 1
        if on_round is not None:
            on_round(rounds)
    return {name: timing_of(values) for name, values in samples.items()}


def read_bandwidth(num_bytes: int, *, seconds: float = 1.0) -> float:
    """Return GB/s of summing a float32 buffer of `num_bytes`, the least that reading so much can cost."""
    buffer = torch.ones(max(1, num_bytes // 4))
    timing = time_interleaved({"read": buffer.sum}, seconds=seconds, min_rounds=10)["read"]
    return buffer.nbytes / timing.p20_us / 1e3


def timing_of(values: Sequence[float]) -> Timing:
    """Return median and spread of samples in microseconds."""
    ordered = sorted(values)
    return Timing(
        median_us=statistics.median(ordered),
        p20_us=ordered[len(ordered) // 5],
        p80_us=ordered[(len(ordered) * 4) // 5],
        num_rounds=len(ordered),
    )
