"""How the cost of a propose grows with context, batch and drafts: eager head and compiled circuit, at SMALL bf16.

    python benchmarks/growth_cpu.py --plot docs/images/growth_cpu.png     # about ten minutes on two quiet cores
    python benchmarks/growth_cpu.py --contexts 1024,4096 --batches 1 --drafts 1,3 --json

One axis varies at a time, from context 1024, batch 1, three drafts. The two take turns in one process; medians. Beside
them stands the floor: the bytes that a chain reads, at the bandwidth that reading so much had in the same run.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from drafts.benchmark.measure import BenchResult, measure
from drafts.benchmark.sizes import random_weights, sized_config

START = {"context": 1024, "batch": 1, "drafts": 3}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--contexts", default="1024,4096,16384,65536")
    parser.add_argument("--batches", default="1,2,4,8,16")
    parser.add_argument("--drafts", default="1,2,4,8")
    parser.add_argument("--dtype", choices=("bf16", "f32"), default="bf16")
    parser.add_argument("--seconds", type=float, default=3.0, help="time of each case")
    parser.add_argument("--plot", type=Path, help="write the three curves as a picture; needs matplotlib")
    parser.add_argument("--json", action="store_true", help="one JSON object a line instead of the table")
    arguments = parser.parse_args()
    axes = {
        name: [int(part) for part in text.split(",")]
        for name, text in (
            ("context", arguments.contexts),
            ("batch", arguments.batches),
            ("drafts", arguments.drafts),
        )
    }
    rows = []
    if not arguments.json:
        print(
            f"{'axis':<9}{'context':>9}{'batch':>7}{'drafts':>8}"
            f"{'eager us':>12}{'circuit us':>12}{'ratio':>8}{'floor us':>10}"
        )
    for axis, case in _cases(axes):
        result = _measured(
            case, getattr(torch, {"bf16": "bfloat16", "f32": "float32"}[arguments.dtype]), arguments.seconds
        )
        eager, ours = (result.timings[name].median_us for name in ("eager", "circuit"))
        rows.append({"axis": axis, **case, "eager_us": eager, "circuit_us": ours, "floor_us": result.floor_us})
        if arguments.json:
            print(json.dumps(rows[-1]), flush=True)
        else:
            cells = "".join(f"{case[name]:>{width}}" for name, width in (("context", 9), ("batch", 7), ("drafts", 8)))
            print(
                f"{axis:<9}{cells}{eager:>12,.0f}{ours:>12,.0f}{eager / ours:>8.1f}{result.floor_us:>10,.0f}",
                flush=True,
            )
    if arguments.plot:
        _plot(rows, arguments.plot)
    return 0


def _cases(axes: dict[str, list[int]]) -> Iterator[tuple[str, dict[str, int]]]:
    for axis, values in axes.items():
        for value in values:
            yield axis, START | {axis: value}


def _measured(case: dict[str, int], dtype: torch.dtype, seconds: float) -> BenchResult:
    config = sized_config("small", dtype)
    return measure(
        config,
        random_weights(config),
        num_rows=case["batch"],
        context=case["context"],
        num_drafts=case["drafts"],
        num_threads=1,
        seconds=seconds,
        with_torch_compile=False,
        compiled_in=_cache(),
    )


_folder = tempfile.TemporaryDirectory()


def _cache() -> Path:
    """Packages of this run: K is no part of one, so every K takes the same."""
    return Path(_folder.name)


def _plot(rows: list[dict[str, object]], path: Path) -> None:
    import matplotlib  # noqa: PLC0415 - only a picture needs it

    matplotlib.use("Agg")
    from matplotlib import pyplot  # noqa: PLC0415

    figure, panels = pyplot.subplots(1, 3, figsize=(12, 3.6), constrained_layout=True)
    for panel, axis in zip(panels, ("context", "batch", "drafts"), strict=True):
        held = [row for row in rows if row["axis"] == axis]
        x = [row[axis] for row in held]
        for name, label, style in (
            ("eager", "eager head", "o--"),
            ("circuit", "circuit", "s-"),
            ("floor", "floor", ":"),
        ):
            panel.plot(x, [row[f"{name}_us"] for row in held], style, label=label)
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.set_xticks(x, [f"{value:,}" for value in x])
        panel.minorticks_off()
        panel.set_xlabel({"context": "context, cache rows", "batch": "sequences", "drafts": "drafts K"}[axis])
        panel.grid(visible=True, alpha=0.3)
    panels[0].set_ylabel("propose, microseconds")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    sys.exit(main())
