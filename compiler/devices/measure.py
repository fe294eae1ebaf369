"""Measure the machine at hand: how fast its memory copies, and on a GPU how long a graph waits between kernels."""

import os
import platform
import statistics
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import torch

from compiler.devices.device import THIS_MACHINE, Device, Figure

COPY_BYTES = 256 << 20  # beyond any cache of a CPU's share; a GPU copies four times as much
NUM_SAMPLES = 15
GRAPH_KERNELS = 200


def measure_this_machine(file: Path) -> Device:
    """Measure memory and, where there is one, the GPU; write the figures to `file` and return them.

    Rates are medians over many copies: a machine that is shared gives less than it has. Takes a few seconds.
    """
    device = _gpu() if torch.cuda.is_available() else _cpu()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(to_toml(device), encoding="utf-8")
    return device


def to_toml(device: Device) -> str:
    """Return a device as TOML, the form its file has."""
    lines = [f"title = {_quoted(device.title)}"]
    for key, figure in device.figures().items():
        lines += ["", f"[{key}]", f"value = {figure.value!r}", f"source = {_quoted(figure.source)}"]
        lines += [f"note = {_quoted(figure.note)}"] if figure.note else []
    return "\n".join(lines) + "\n"


def _cpu() -> Device:
    threads = torch.get_num_threads()
    elements = COPY_BYTES // 4
    source, target = torch.ones(elements), torch.empty(elements)
    seconds = _median_seconds(lambda: target.copy_(source))
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return Device(
        name=THIS_MACHINE,
        title=f"this machine: {platform.processor() or platform.machine()} CPU, {threads} threads",
        copy_rate_gbps=Figure(
            value=2 * COPY_BYTES / seconds / 1e9,
            source=f"measured here: median of {NUM_SAMPLES} copies of {COPY_BYTES >> 20} MiB, {threads} threads",
            note="bytes read plus bytes written; writes may cost a read more, so reading alone can be faster",
        ),
        capacity_gb=Figure(value=pages / 1e9, source="asked of the operating system here"),
        num_multiprocessors=Figure(
            value=os.cpu_count() or 1, source="asked of the operating system here", note="logical cores"
        ),
    )


def _gpu() -> Device:
    facts = torch.cuda.get_device_properties(0)
    elements = 4 * COPY_BYTES // 4
    source, target = torch.ones(elements, device="cuda"), torch.empty(elements, device="cuda")

    def copy() -> None:
        target.copy_(source)
        torch.cuda.synchronize()

    rate = 2 * 4 * COPY_BYTES / _median_seconds(copy) / 1e9
    asked = "asked of the driver here"
    return Device(
        name=THIS_MACHINE,
        title=f"this machine: {facts.name}",
        copy_rate_gbps=Figure(value=rate, source=f"measured here: median of {NUM_SAMPLES} copies of 1 GiB on the GPU"),
        capacity_gb=Figure(value=facts.total_memory / 1e9, source=asked),
        l2_mb=Figure(value=facts.L2_cache_size / 1e6, source=asked),
        num_multiprocessors=Figure(value=facts.multi_processor_count, source=asked),
        launch_gap_us=Figure(
            value=_graph_gap_seconds() * 1e6,
            source=f"measured here: a graph of {GRAPH_KERNELS} kernels of one element each, per kernel",
            note="includes the tiny kernel itself",
        ),
    )


def _graph_gap_seconds() -> float:
    value = torch.zeros(1, device="cuda")
    value.add_(1)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(GRAPH_KERNELS):
            value.add_(1)

    def replay() -> None:
        graph.replay()
        torch.cuda.synchronize()

    return _median_seconds(replay) / GRAPH_KERNELS


def _median_seconds(run: Callable[[], object]) -> float:
    run()
    samples = []
    for _ in range(NUM_SAMPLES):
        began = perf_counter()
        run()
        samples.append(perf_counter() - began)
    return statistics.median(samples)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{"".join(char if char.isprintable() else " " for char in escaped)}"'
