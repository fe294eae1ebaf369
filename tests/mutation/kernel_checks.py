"""Which launches run a kernel's file, and the scenes that a mutant of it is held to, all read from the sources.

A lowering names the kernels that it launches as "file.kernel"; a kernel's file imports others. So the rules that run a
file, and the tests of these rules, are found and never listed.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from compiler.region import Region
from compiler.registry import region_rules
from tests.mutation.mutants import ROOT
from tests.support.launches import LaunchScene

KERNELS = ROOT / "compiler" / "kernels"
TESTS = ROOT / "tests" / "compiler" / "triton"
SIXTEEN = tuple(range(2, 18))


@functools.cache
def scenes() -> dict[str, LaunchScene]:
    """Tiny heads over odd sizes: one row and several, groups, pools of one, a grammar, later drafts, context rows."""
    return {
        "three rows": LaunchScene((18, 3, 41), has_grammar=True, has_confidence=True),
        "one row": LaunchScene((22,), padding=0),
        "sixteen rows in groups": LaunchScene(
            SIXTEEN, padding=0, n_routed_experts=12, n_group=3, topk_group=2, num_experts_per_tok=3
        ),
        "pools of one": LaunchScene((18, 5), index_kpool=1, index_topk=3),
        "a later draft": LaunchScene((18, 3), program="next"),
        "several tiles": LaunchScene(SIXTEEN, padding=0, kv_lora_rank=601, hidden_size=531, moe_intermediate_size=131),
        "context rows": LaunchScene((3, 18), program="context"),
    }


def rules_of(file: str) -> tuple[str, ...]:
    """Return the rules whose launches run a kernel's file."""
    stems = {stem for stem in _stems() if Path(file).stem in _reached(stem)}
    return tuple(
        rule.name
        for rule in region_rules("triton")
        if not rule.is_planned and _launched(_lowering(rule.function)) & stems
    )


def check_rule(rule: str) -> None:
    """Hold a rule's launches to its reference in every scene that has its region."""
    for scene in scenes().values():
        if any(isinstance(call.node, Region) and call.node.rule == rule for call in scene.compiled.circuit.calls):
            scene.check_region(rule)


def tests_of(items: Sequence[pytest.Item], rule: str) -> list[pytest.Item]:
    """Return the tests of the files that check a rule's region."""
    return [item for item in items if item.path.parent == TESTS and _checks(item.path, rule)]


@functools.cache
def _checks(path: Path, rule: str) -> bool:
    text = path.read_text()
    return "check_region" in text and f'"{rule}"' in text and path.stem != "test_region_tags"


@functools.cache
def _stems() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in KERNELS.glob("*.py") if path.stem != "__init__"))


@functools.cache
def _reached(stem: str) -> frozenset[str]:
    """A file's own stem, and those of the kernel files that it imports, however far."""
    tree = ast.parse((KERNELS / f"{stem}.py").read_text())
    imported = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    direct = {name.rsplit(".", 1)[-1] for name in imported if name.startswith("compiler.kernels.")}
    return frozenset({stem}.union(*map(_reached, direct)))


def _lowering(function: Callable[..., object]) -> Path:
    return ROOT / f"{function.__module__.replace('.', '/')}.py"


@functools.cache
def _launched(lowering: Path) -> frozenset[str]:
    return frozenset(re.findall(r'"(\w+)\.\w+"', lowering.read_text()))
