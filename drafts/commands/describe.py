"""`circuit inspect`: what an artifact holds, where it can run, and how its nodes were lowered."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from compiler import PLAN, Manifest, Plan, ProgramPlan, read_manifest, read_plan, why_foreign
from drafts.commands.screen import Screen, facts


def describe(folder: Path, screen: Screen) -> None:
    """Check the artifact and print it; one of another machine or torch is shown, with the reason it cannot run here."""
    manifest = read_manifest(folder, for_this_machine=False)
    plan = read_plan(folder / PLAN)
    sizes = {program.name: (folder / program.file).stat().st_size for program in manifest.programs}
    foreign = why_foreign(manifest)
    screen.out.print(Text.assemble((str(folder), "bold"), f"  {manifest.backend}\n"), soft_wrap=True)
    screen.out.print(
        facts(
            {
                "digest": manifest.digest,
                "circuit": manifest.circuit_digest,
                "compiler": f"{manifest.compiler_digest}  sources of the backend",
                "versions": f"torch {manifest.torch_version}, {manifest.machine}, {manifest.cpu_capability}",
                "runs here": f"no: {foreign}" if foreign else "yes",
                "checkpoint": f"{manifest.checkpoint}  from here, {len(manifest.weights)} weights by fingerprint",
                "binding": "\n".join(f"{name:<16} {value}" for name, value in manifest.binding.items()),
                "files": f"{sum(sizes.values()):,} bytes of packages",
            }
        )
    )
    screen.out.print()
    screen.out.print(_program_table(manifest, plan, sizes))
    screen.out.print()
    screen.out.print(_node_table(plan.programs))
    if rules := {name: why for program in plan.programs for name, why in program.unfired_rules.items()}:
        screen.out.print("\nrules that did not fire", style="dim")
        screen.out.print(facts(rules))
    screen.emit({"ok": True, "artifact": str(folder), **record(manifest, plan, sizes), "why_foreign": foreign or None})


def record(manifest: Manifest, plan: Plan, sizes: dict[str, int]) -> dict[str, Any]:
    """Return the manifest as JSON readers get it, each program with its size and its plan."""
    plans = {program.name: program for program in plan.programs}
    programs = [
        {
            **program.model_dump(mode="json"),
            "bytes": sizes[program.name],
            "bytes_read": plans[program.name].bytes_read,
            "bytes_written": plans[program.name].bytes_written,
            "flops": plans[program.name].flops,
            "plan": plans[program.name].model_dump(mode="json"),
        }
        for program in manifest.programs
        if program.name in plans
    ]
    return manifest.model_dump(mode="json") | {"programs": programs}


def node_tags(programs: Sequence[ProgramPlan]) -> Counter[tuple[str, str, str]]:
    """Return how many calls there are of each (node, lowering, numerics tag), over all programs, in plan order."""
    return Counter((call.node_type, call.lowering, call.numerics) for program in programs for call in program.calls)


def _program_table(manifest: Manifest, plan: Plan, sizes: dict[str, int]) -> Table:
    plans = {program.name: program for program in plan.programs}
    table = Table(box=None, padding=(0, 2), header_style="dim")
    table.add_column("program", no_wrap=True)
    for column in ("calls", "threads", "reads, KB", "package, KB"):
        table.add_column(column, justify="right", no_wrap=True)
    for program in manifest.programs:
        held = plans.get(program.name)
        table.add_row(
            program.name,
            "" if held is None else str(len(held.calls)),
            str(program.num_threads),
            "" if held is None else f"{held.bytes_read / 1e3:,.0f}",
            f"{sizes[program.name] / 1e3:,.0f}",
        )
    return table


def _node_table(programs: Sequence[ProgramPlan]) -> Table:
    table = Table(box=None, padding=(0, 2), header_style="dim")
    table.add_column("node", no_wrap=True)
    table.add_column("calls", justify="right")
    table.add_column("lowered by", no_wrap=True)
    table.add_column("numerics", overflow="fold")
    for (node, lowering, numerics), count in node_tags(programs).items():
        # a lowering is named after its node
        name = lowering if lowering.startswith("reference") else "its lowering"
        table.add_row(node, str(count), name, numerics)
    return table
