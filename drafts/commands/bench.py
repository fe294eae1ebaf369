"""`circuit bench`: the time of one chain, eager, by torch.compile and compiled, beside the floor."""

import os
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from drafts.benchmark.measure import BenchResult, measure
from drafts.benchmark.sizes import DEFAULT_CONTEXT, checkpoint_head, random_weights, sized_config
from drafts.commands.prompts import demo_checkpoint
from drafts.commands.screen import Screen
from drafts.commands.subject import checkpoint_folder
from drafts.compile_drafter import ONE_THREAD_BYTES

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
LABELS = {
    "eager": "eager head",
    "torch_compile": "torch.compile",
    "torch_compile_best": "torch.compile, best preset",
    "circuit": "circuit",
}


def bench(
    size: str,
    screen: Screen,
    *,
    batch: int,
    dtype: str,
    num_drafts: int,
    context: int | None,
    num_threads: int | None,
    seconds: float,
) -> None:
    """Measure one case and print it; `size` is small, large, demo or a checkpoint folder."""
    if size in DEFAULT_CONTEXT:
        config = sized_config(size, DTYPES[dtype])
        weights = random_weights(config)
    else:
        folder = demo_checkpoint() if size == "demo" else checkpoint_folder(Path(size))
        config, weights = checkpoint_head(folder, DTYPES[dtype])
    rows = context or min(DEFAULT_CONTEXT.get(size, 1024), config.max_position_embeddings)
    threads = num_threads or _threads(sum(weight.nbytes for weight in weights.values()))
    with screen.stages() as on_stage:
        result = measure(
            config,
            weights,
            num_rows=batch,
            context=rows,
            num_drafts=num_drafts,
            num_threads=threads,
            seconds=seconds,
            on_stage=on_stage,
        )
    _print(screen, result, title=f"{size} {dtype}, batch {batch}, {num_drafts} drafts, context {rows}")
    screen.emit({"size": size, "dtype": dtype, "batch": batch, "drafts": num_drafts, "context": rows, **record(result)})


def record(result: BenchResult) -> dict[str, Any]:
    """Return a result as one JSON object: medians in microseconds, spreads beside them."""
    return {
        **{f"{name}_us": timing.median_us for name, timing in result.timings.items()},
        **{f"{name}_p20_us": timing.p20_us for name, timing in result.timings.items()},
        **{f"{name}_p80_us": timing.p80_us for name, timing in result.timings.items()},
        "agreement": dict(result.agreement),
        "floor_us": result.floor_us,
        "read_gbps": result.read_gbps,
        "bytes": result.bytes,
        "threads": result.num_threads,
        "rounds": next(iter(result.timings.values())).num_rounds,
    }


def _threads(weight_bytes: int) -> int:
    return 1 if weight_bytes <= 4 * ONE_THREAD_BYTES else os.cpu_count() or 1


def _print(screen: Screen, result: BenchResult, *, title: str) -> None:
    table = Table(title=title, title_justify="left")
    for column in ("", "median us", "20 to 80 %", "circuit is", "same drafts"):
        table.add_column(column, justify="left" if not column else "right")
    ours = result.timings["circuit"].median_us
    for name, label in LABELS.items():
        if name not in result.timings:
            continue
        timing = result.timings[name]
        ratio = "" if name == "circuit" else f"{timing.median_us / ours:.2f}x faster"
        spread = f"{timing.p20_us:,.0f} to {timing.p80_us:,.0f}"
        table.add_row(label, f"{timing.median_us:,.0f}", spread, ratio, f"{result.agreement[name]:.0%}")
    table.add_row("floor", f"{result.floor_us:,.0f}", "", f"{result.floor_us / ours:.0%} of it used", "", style="dim")
    screen.out.print(table)
    screen.out.print(
        f"{result.bytes / 1e6:,.1f} MB read a chain at {result.read_gbps:.1f} GB/s, measured; "
        f"{result.num_threads} thread{'s' if result.num_threads > 1 else ''}"
    )
