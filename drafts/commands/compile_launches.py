"""`circuit compile --backend triton`: a drafter's launches and kernels for a GPU, from its config alone."""

import time
from dataclasses import dataclass
from pathlib import Path

from rich.text import Text

from compiler import check_output
from compiler.triton import TARGETS, LaunchManifest, is_launch_artifact, num_kernels
from drafts.commands.compile import DEFAULT_CONTEXT, numbers
from drafts.commands.grid import Grid, show
from drafts.commands.plan_subject import plan_subject
from drafts.commands.screen import Screen, plural
from drafts.compile_launches import WHAT, compile_launches, plan_programs
from drafts.plan_drafter import bind_without_weights
from drafts.triton_runner import MAX_ROWS

DEFAULT_TARGET = "sm_90"
NARROW = 92  # columns of a terminal; below, a kernel is named without its file


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """What to compile; `contexts` in cache rows, None the default; `dtype_name` None for what the config says.

    has_random_weights: the subject is a config, and only its sizes matter.
    """

    num_drafts: int
    batches: str
    contexts: str | None
    dtype_name: str | None
    target: str
    has_random_weights: bool
    num_jobs: int | None


def compile_for_gpu(subject: Path, output: Path, options: LaunchOptions, screen: Screen) -> None:
    """Compile the launches of a checkpoint's or a config's drafter into `output` and print each kernel's code."""
    if options.target not in TARGETS:
        raise ValueError(f"--target: expected one of {', '.join(TARGETS)}, got {options.target!r}")
    found = plan_subject(str(subject), dtype_name=options.dtype_name)
    if subject.is_file() and not options.has_random_weights:
        raise ValueError(
            f"{subject}: a config has no weights; add --random-weights to compile for its sizes alone, or name a "
            "checkpoint"
        )
    longest = found.config.max_position_embeddings
    batches = numbers(options.batches, "--batch", 1, MAX_ROWS)
    default = (min(DEFAULT_CONTEXT, longest),)
    contexts = default if options.contexts is None else numbers(options.contexts, "--context", 1, longest)
    check_output(output, what=WHAT, is_one=is_launch_artifact)
    began = time.perf_counter()
    binding = bind_without_weights(found.config, found.decisions, where=str(subject))
    with screen.step("planning"):
        programs = plan_programs(binding, num_drafts=options.num_drafts, batches=batches, contexts=contexts)
    count = num_kernels([program.launches for program in programs])
    with screen.bar(f"compiling {plural(count, 'kernel')} for {options.target}", count) as advance:
        manifest = compile_launches(
            binding,
            programs,
            output,
            subject=found.name,
            target=options.target,
            num_workers=options.num_jobs,
            on_compiled=lambda: advance(1),
        )
    _report(screen, output, manifest, seconds=time.perf_counter() - began)


def _report(screen: Screen, output: Path, manifest: LaunchManifest, *, seconds: float) -> None:
    print_launches(screen, manifest)
    screen.out.print()
    made = f"{plural(len(manifest.kernels), 'kernel')} for {manifest.target} in {seconds:.1f} s"
    screen.out.print(Text(f"{output}  {made}, digest {manifest.digest[:16]}"), soft_wrap=True)
    screen.emit({"ok": True, "artifact": str(output), "seconds": seconds, **manifest.model_dump(mode="json")})


def print_launches(screen: Screen, manifest: LaunchManifest) -> None:
    """Print a manifest's programs, and what each kernel takes of a multiprocessor."""
    programs = tuple(
        (
            program.name,
            str(program.num_launches),
            f"{program.num_launches / program.num_drafts:g}" if program.num_drafts else "",
            f"{program.arena_bytes / 1e3:,.0f}",
        )
        for program in manifest.programs
    )
    is_narrow = screen.out.width < NARROW
    kernels = tuple(
        (
            kernel.kernel.rpartition(".")[2] if is_narrow else kernel.kernel,
            str(kernel.registers),
            str(kernel.spilled_bytes),
            f"{kernel.shared_bytes / 1024:.0f}",
            str(kernel.num_warps),
            str(kernel.blocks_per_multiprocessor),
            str(kernel.wide_loads),
            str(kernel.tensor_core_products),
        )
        for kernel in manifest.kernels
    )
    columns = ("kernel", "registers", "spilled", "smem KB", "warps", "per SM", "16 B loads", "mma")
    title = "kernels, program by program; one that an earlier program has is not listed again"
    grids = (
        Grid(("program", "launches", "per draft", "arena, KB"), programs, texts=("program",)),
        Grid(columns, kernels, texts=("kernel",), title=title),
    )
    show(screen, grids, as_markdown=False)
