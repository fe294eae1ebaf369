"""`circuit compile`: a checkpoint's drafter as native programs in a folder."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.table import Table
from rich.text import Text

from compiler import DRIVER_FILE, Manifest, check_output
from compiler.inductor import require_cxx_compiler
from drafts.cache import DEFAULT_MAX_NUM_DRAFTS
from drafts.commands.screen import Screen, plural
from drafts.commands.session import DTYPES
from drafts.commands.subject import checkpoint_folder
from drafts.compile_drafter import bound_circuit, compile_drafter
from drafts.config import read_config
from drafts.programs import program_keys
from drafts.proposer import DraftProposer

DEFAULT_CONTEXT = 1024
MAX_BATCH = 64


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """What to compile: chains of `num_drafts`, per batch and context; `contexts` in cache rows, None the default."""

    num_drafts: int
    batches: str
    contexts: str | None
    dtype_name: str
    num_jobs: int | None


def compile_checkpoint(checkpoint: Path, output: Path, options: CompileOptions, screen: Screen) -> None:
    """Compile the checkpoint's drafter into `output` and print each program's size and time."""
    config = read_config(checkpoint_folder(checkpoint), dtype=DTYPES[options.dtype_name])
    longest = config.max_position_embeddings
    batches = numbers(options.batches, "--batch", 1, MAX_BATCH)
    default = (min(DEFAULT_CONTEXT, longest),)
    contexts = default if options.contexts is None else numbers(options.contexts, "--context", 1, longest)
    if min(contexts) < options.num_drafts:
        raise ValueError(f"--context: expected room for {options.num_drafts} drafts, got {min(contexts)}; ask for more")
    # what is sure to fail does so before anything large is read
    check_output(output)
    require_cxx_compiler()
    torch.set_num_threads(1)
    with screen.step("loading the drafter"):
        proposer = DraftProposer.from_checkpoint(
            checkpoint, dtype=config.dtype, max_seq_len=1, max_num_drafts=DEFAULT_MAX_NUM_DRAFTS
        )
        binding = bound_circuit(proposer, checkpoint)
    num_programs = len(program_keys(binding, num_drafts=options.num_drafts, batches=batches, contexts=contexts))
    seconds: dict[str, float] = {}
    began = time.perf_counter()
    with screen.bar(f"compiling {plural(num_programs, 'program')}", num_programs) as advance:

        def built(name: str, elapsed: float) -> None:
            seconds[name] = elapsed
            screen.err.print(f"  {name}  {elapsed:.1f} s", style="dim")
            advance(1)

        manifest = compile_drafter(
            proposer,
            checkpoint,
            output,
            num_drafts=options.num_drafts,
            batches=batches,
            contexts=contexts,
            num_workers=options.num_jobs,
            on_built=built,
        )
    _report(screen, output, manifest, seconds=seconds, total=time.perf_counter() - began)


def numbers(text: str, option: str, low: int, high: int) -> tuple[int, ...]:
    """Read `1,2,4`; ValueError for anything but whole numbers from low to high."""
    parts = [part.strip() for part in text.split(",")]
    found = [int(part) for part in parts if part.isascii() and part.isdecimal() and len(part) <= len(str(high))]
    if len(found) != len(parts) or not all(low <= number <= high for number in found):
        raise ValueError(f"{option}: expected numbers from {low} to {high} such as {low},{min(4, high)}, got {text!r}")
    return tuple(sorted(set(found)))


def _report(screen: Screen, output: Path, manifest: Manifest, *, seconds: dict[str, float], total: float) -> None:
    sizes = {program.name: (output / program.file).stat().st_size for program in manifest.programs}
    table = Table(box=None, padding=(0, 2), header_style="dim")
    table.add_column("program", no_wrap=True)
    for column in ("bytes", "seconds"):
        table.add_column(column, justify="right")
    for program in manifest.programs:
        table.add_row(program.name, f"{sizes[program.name]:,}", f"{seconds[program.name]:.1f}")
    screen.out.print(table)
    screen.out.print()
    num_bytes = sum(sizes.values()) + (output / DRIVER_FILE).stat().st_size
    screen.out.print(
        Text(f"{output}  {num_bytes:,} bytes in {total:.1f} s, digest {manifest.digest[:16]}"), soft_wrap=True
    )
    screen.emit(
        {
            "ok": True,
            "artifact": str(output),
            "digest": manifest.digest,
            "seconds": total,
            "bytes": num_bytes,
            "programs": _program_records(sizes, seconds),
        }
    )


def _program_records(sizes: dict[str, int], seconds: dict[str, float]) -> Sequence[dict[str, object]]:
    return [{"name": name, "bytes": size, "seconds": seconds[name]} for name, size in sizes.items()]
