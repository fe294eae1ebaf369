"""Compile a drafter for a GPU from its config alone: the launches of every program and the code of every kernel."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from circuit import save_document, to_text
from compiler import (
    CIRCUIT,
    PLAN,
    Plan,
    ProgramPlan,
    digest_of,
    plan_compiled,
    replacing,
    sources_digest,
    target_of,
)
from compiler.triton import (
    LaunchManifest,
    LaunchPlan,
    compile_kernels,
    is_launch_artifact,
    write_launches,
)
from drafts.binding import DraftBinding
from drafts.triton_runner import MAX_CONTEXT_ROWS, compile_for_launches, launch_circuit, launch_plan

WHAT = "an artifact for a GPU"


@dataclass(frozen=True, slots=True)
class PlannedProgram:
    """One program's launches, its plan, and the sizes it fixes: num_drafts, num_rows and max_rows."""

    launches: LaunchPlan
    plan: ProgramPlan
    sizes: dict[str, int]


def plan_programs(
    binding: DraftBinding, *, num_drafts: int, batches: Sequence[int], contexts: Sequence[int]
) -> tuple[PlannedProgram, ...]:
    """Return chains per batch and context (in rows), and context rows; no weight is read.

    Raises LoweringError for a region without a kernel.
    """
    size = binding.state_layout.block_size
    tables = sorted({-(-rows // size) for rows in contexts})
    wanted = [(num_drafts, batch, blocks) for batch in sorted(set(batches)) for blocks in tables]
    wanted.append((0, MAX_CONTEXT_ROWS, tables[-1]))
    planned = []
    for drafts, rows, blocks in wanted:
        name = f"{'chain' if drafts else 'context'}_rows{rows}_context{blocks * size}"
        circuit = launch_circuit(binding, num_drafts=drafts)
        extent = {"num_blocks": rows * blocks + 1, "num_sequences": rows + 1}
        compiled = compile_for_launches(binding, circuit, num_rows=rows, max_blocks=blocks, **extent)
        dims = {**binding.dims, "n": rows, "max_blocks": blocks, **extent}
        plan = plan_compiled(compiled, name=name, target=target_of("triton"), dims=dims)
        sizes = {"num_drafts": drafts, "num_rows": rows, "max_rows": blocks * size}
        planned.append(PlannedProgram(launch_plan(compiled, name=name), plan, sizes))
    return tuple(planned)


def compile_launches(
    binding: DraftBinding,
    programs: Sequence[PlannedProgram],
    output: Path,
    *,
    subject: str,
    target: str,
    num_workers: int | None = None,
    on_compiled: Callable[[], None] | None = None,
) -> LaunchManifest:
    """Write the programs' launches, and the code of their kernels for `target`, `sm_90`, into the folder `output`.

    `on_compiled` is told after each kernel. Raises CircuitError for a folder with other files.
    """
    layout = binding.state_layout
    fields = {
        "target": target,
        "subject": subject,
        "compiler_digest": sources_digest("triton"),
        "binding": {
            **binding.decisions.model_dump(),
            "dtype": str(binding.config.dtype).removeprefix("torch."),
            "block_size": layout.block_size,
            "max_num_drafts": layout.max_num_drafts,
        },
        "circuit_digest": digest_of(to_text(binding.circuit)),
    }
    plans = [program.launches for program in programs]
    with replacing(output, what=WHAT, is_one=is_launch_artifact) as folder:
        codes = []
        for code in compile_kernels(plans, target=target, num_workers=num_workers or os.cpu_count() or 1):
            codes.append(code)
            if on_compiled is not None:
                on_compiled()
        save_document(binding.circuit, folder / CIRCUIT)
        text = Plan(backend="triton", programs=tuple(program.plan for program in programs)).model_dump_json(indent=1)
        (folder / PLAN).write_text(text + "\n", encoding="utf-8")
        return write_launches(folder, [(program.launches, program.sizes) for program in programs], codes, fields)
