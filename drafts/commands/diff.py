"""`circuit diff`: what differs between two circuits, and between what was compiled of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

import nodes  # noqa: F401 - documents name nodes, and importing them declares them
from circuit import Circuit, Difference, load_document
from circuit import diff as diff_circuits
from compiler import CIRCUIT, PLAN, Manifest, Plan, read_manifest, read_plan
from drafts.cache import DEFAULT_MAX_NUM_DRAFTS, default_block_size
from drafts.commands.describe import node_tags
from drafts.commands.screen import Screen
from drafts.commands.subject import checkpoint_folder, kind_of
from drafts.config import read_config
from drafts.decisions import default_decisions
from drafts.glm5_next import mtp_head

# fields of a manifest that name what it was made from and how, in the order in which they are shown
MANIFEST_FIELDS = (
    "backend",
    "torch_version",
    "machine",
    "cpu_capability",
    "cpu_features",
    "compiler_digest",
    "native_products",
)


@dataclass(frozen=True, slots=True)
class Subject:
    """One side: its circuit, and for an artifact what it was compiled to; `sizes` are its packages' bytes."""

    path: Path
    circuit: Circuit
    manifest: Manifest | None = None
    plan: Plan | None = None

    @property
    def fields(self) -> dict[str, str]:
        """What the manifest says of versions, weights and binding, by name."""
        if self.manifest is None:
            return {}
        held = {name: _short(getattr(self.manifest, name)) for name in MANIFEST_FIELDS}
        held |= {f"binding.{name}": str(value) for name, value in self.manifest.binding.items()}
        return held | {f"weights.{name}": _short(digest) for name, digest in self.manifest.weights.items()}

    @property
    def tags(self) -> dict[str, str]:
        """How each node type is lowered and what that promises."""
        held: dict[str, list[str]] = {}
        for node, lowering, numerics in node_tags(() if self.plan is None else self.plan.programs):
            held.setdefault(node, []).append(f"{lowering}, {numerics}")
        return {node: "; ".join(sorted(ways)) for node, ways in held.items()}

    @property
    def programs(self) -> dict[str, dict[str, int]]:
        """Per program its calls, the bytes a run reads and writes, the arena's bytes, and its threads."""
        if self.manifest is None or self.plan is None:
            return {}
        records = {record.name: record for record in self.manifest.programs}
        return {
            plan.name: {
                "calls": len(plan.calls),
                "bytes_read": plan.bytes_read,
                "bytes_written": plan.bytes_written,
                "arena_bytes": plan.arena_bytes,
                "threads": records[plan.name].num_threads,
            }
            for plan in self.plan.programs
            if plan.name in records
        }

    @property
    def sizes(self) -> dict[str, int]:
        """Per program its package's bytes."""
        programs = () if self.manifest is None else self.manifest.programs
        return {program.name: (self.path / program.file).stat().st_size for program in programs}


def diff(a: Path, b: Path, screen: Screen) -> bool:
    """Print what B has other than A, `-` for A and `+` for B; True when nothing that was compared differs."""
    before, after = _subject(a), _subject(b)
    circuits = diff_circuits(before.circuit, after.circuit)
    is_compiled = before.manifest is not None and after.manifest is not None
    changes: dict[str, dict[str, tuple[Any, Any]]] = {}
    if is_compiled:
        changes = {
            "versions and weights": _changes(before.fields, after.fields),
            "lowerings": _changes(before.tags, after.tags),
            "programs": _changes(before.programs, after.programs),
        }
    is_same = not circuits and not any(changes.values())
    if is_compiled:
        # a C++ compiler may make a few bytes more of the same program another day
        changes["package bytes"] = _changes(before.sizes, after.sizes)
    _print(screen, circuits, changes)
    screen.out.print("no difference" if is_same else f"\n- {a}\n+ {b}", soft_wrap=True)
    screen.emit(
        {
            "ok": True,
            "same": is_same,
            "circuit": {
                "added": circuits.added,
                "removed": circuits.removed,
                "changed": [{"name": one.name, "before": one.before, "after": one.after} for one in circuits.changed],
            },
            "compared": "circuits and programs" if is_compiled else "circuits",
            **{kind.replace(" ", "_"): _records(held) for kind, held in changes.items()},
        }
    )
    return is_same


def _subject(path: Path) -> Subject:
    kind = kind_of(path)
    if kind == "document":
        return Subject(path, load_document(path))
    if kind == "artifact":
        manifest = read_manifest(path, for_this_machine=False)
        return Subject(path, load_document(path / CIRCUIT), manifest, read_plan(path / PLAN))
    config = read_config(checkpoint_folder(path))
    # as a proposer lays it out that is asked for nothing else, and as it is compiled
    head = mtp_head(
        config,
        default_decisions(config),
        block_size=default_block_size(config.index_kpool),
        max_num_drafts=DEFAULT_MAX_NUM_DRAFTS,
    )
    return Subject(path, head)


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return (before, after) by name where they differ; None on the side that lacks it."""
    names = [*before, *(name for name in after if name not in before)]
    return {name: (before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)}


def _records(changes: Mapping[str, tuple[Any, Any]]) -> dict[str, dict[str, Any]]:
    return {name: {"before": before, "after": after} for name, (before, after) in changes.items()}


def _print(screen: Screen, circuits: Difference, changes: Mapping[str, Mapping[str, tuple[Any, Any]]]) -> None:
    if circuits:
        screen.out.print(Text("circuit", style="bold"))
        for line in str(circuits).splitlines():
            screen.out.print(Text(line, style="red" if line.startswith("-") else "green"), soft_wrap=True)
    for kind, held in changes.items():
        if not held:
            continue
        screen.out.print(Text(kind, style="bold"))
        table = Table.grid(padding=(0, 2))
        for name, (before, after) in held.items():
            table.add_row(f"  {name}", Text(_spelled(before), style="red"), Text(_spelled(after), style="green"))
        screen.out.print(table)


def _spelled(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, Mapping):
        return ", ".join(f"{name.replace('_', ' ')} {number:,}" for name, number in value.items())
    return f"{value:,}" if isinstance(value, int) else str(value)


def _short(value: Any) -> str:
    """Digests by their first 16 digits, lists by commas."""
    if isinstance(value, tuple):
        return ", ".join(value)
    return value[:16] if isinstance(value, str) and len(value) == 64 else str(value)
