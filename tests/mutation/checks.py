"""The suite's parity and golden checks that a mutant must fail, in the order of what they cost.

They run in one process on what is loaded once: lowerings on the cases of their tags, golden vectors through the
circuit as the interpreter and as the lowerings run it, and the node's own tests, its conformance among them.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch
from _pytest.runner import runtestprotocol
from torch import Tensor

import compiler.inductor.lowering  # noqa: F401 - importing it registers the lowerings
from circuit import Circuit, TensorType, Value, node_types, snake_case
from compiler.op_by_op import run_op_by_op
from compiler.registry import lowered_nodes, lowering_of, region_rules
from drafts.binding import bind_head
from drafts.cache import default_block_size
from drafts.config import DraftConfig
from drafts.decisions import Decisions
from tests.golden import checks as golden
from tests.golden.circuit_head import STATES, CircuitHead, circuit_head
from tests.golden.replay import CacheTensors, Edges, GoldenCase, HeadFactory, load_cases
from tests.mutation import kernel_checks
from tests.mutation.mutants import ROOT, Mutant
from tests.support.tag_cases import TagCase, check_tag, tag_cases
from tests.support.tag_forms import FORMS, take_form

Check = Callable[[], None]

VECTORS = ROOT / "tests" / "golden" / "vectors"
# what they hold between them: pool edges, dropped pools, ties, no tail, groups, rewinds, bf16
GOLDEN = ("o05", "o04", "o07", "o06", "o08", "o09", "o03")
NODE_TESTS = ROOT / "tests" / "nodes"
# of a test over all nodes the items say which one they are about
TEST_FOLDERS = {
    "nodes": ("tests/nodes",),
    "inductor": ("tests/compiler/inductor/test_lowerings.py",),
    "triton": ("tests/compiler/triton",),
}
BY_NAME = {"test_conformance.py"}


class LoweredHead(CircuitHead):
    """The head's circuit run by the Inductor lowerings, call by call."""

    def _run(self, program: Circuit, inputs: dict[str, Tensor], tensors: CacheTensors) -> tuple[Edges, CacheTensors]:
        edges: dict[str, Tensor] = {}

        def record(value: Value, tensor: Tensor) -> None:
            if value.kind == "result" and isinstance(value.type, TensorType):
                edges[value.name] = tensor

        result = run_op_by_op(
            program,
            backend="inductor",
            inputs={name: inputs[name] for name in program.inputs},
            weights=self.binding.weights,
            states=dict(zip(STATES, tensors, strict=True)),
            observe=record,
        )
        edges |= {name: inputs[name] for name in ("selected", "chosen") if name in program.inputs}
        latent, index_keys, tail = (result.states[name] for name in STATES)
        return edges, (latent, index_keys, tail)


def lowered_head(config: DraftConfig, weights: dict[str, Tensor], decisions: Decisions) -> LoweredHead:
    block_size = default_block_size(config.index_kpool)
    return LoweredHead(bind_head(config, weights, decisions, block_size=block_size, max_num_drafts=16))


HEADS: dict[str, HeadFactory] = {"nodes": circuit_head, "inductor": lowered_head}


def checks_of(mutant: Mutant, items: Sequence[pytest.Item]) -> Iterator[tuple[str, Check]]:
    """Yield the checks of a mutant with their names, cheapest first; `items` are the tests to choose from."""
    if mutant.layer == "triton":
        rules = kernel_checks.rules_of(mutant.file)
        for rule in rules:
            yield f"region {rule}", functools.partial(kernel_checks.check_rule, rule)
        for rule in rules:
            yield f"tests of {rule}", functools.partial(check_items, kernel_checks.tests_of(items, rule))
        return
    types = _node_types(mutant)
    for node_type in types or lowered_nodes("inductor"):
        if node_type in lowered_nodes("inductor"):
            yield f"tags of {node_type}", functools.partial(check_tags, node_type)
    for case in golden_cases():
        yield f"golden {case.name}", functools.partial(check_golden, case, HEADS[mutant.layer])
    if mutant.layer == "nodes":
        for node_type in types:
            yield f"tests of {node_type}", functools.partial(check_items, own_tests(items, node_type))


def rehearse(layer: str, items: Sequence[pytest.Item]) -> None:
    """Run a layer's checks on the sources as they are: it loads what they share, and a fault here is no mutant's.

    Of the tests of regions, minutes long, only what `check_rule` does is rehearsed.
    """
    if layer == "triton":
        for rule in region_rules("triton"):
            kernel_checks.check_rule(rule.name)
        return
    for node_type in lowered_nodes("inductor"):
        check_tags(node_type)
    for case in golden_cases():
        check_golden(case, HEADS[layer])
    if layer == "nodes":
        check_items([item for item in items if item.path.parent == NODE_TESTS])


def check_tags(node_type: str) -> None:
    """Every case of a node type, in every form that its lowering takes."""
    for form in FORMS:
        with pytest.MonkeyPatch.context() as patch:
            take_form(patch, form)
            for case in _tag_cases(node_type):
                lowering = lowering_of(case.node, "inductor")
                assert lowering is not None
                check_tag(case, lowering)


def check_golden(case: GoldenCase, factory: HeadFactory) -> None:
    """Drafts, edges and final cache of a golden case, as tests/golden holds them."""
    golden.main_play.cache_clear()
    golden.check_drafts_and_edges(case, factory)
    golden.check_final_cache(case, factory)


def own_tests(items: Sequence[pytest.Item], node_type: str) -> list[pytest.Item]:
    """The tests of tests/nodes that name the node in their file, and the conformance of its case."""
    marks = (f"[{snake_case(node_type)}-", f"[{node_type}]")
    return [
        item
        for item in items
        if (any(mark in item.nodeid for mark in marks) if item.path.name in BY_NAME else _names(item.path, node_type))
    ]


def check_items(items: Sequence[pytest.Item]) -> None:
    """Tests that pytest has collected, until the first that fails."""
    for item in items:
        for report in runtestprotocol(item, nextitem=None, log=False):
            assert not report.failed, f"{item.nodeid}: {report.longreprtext.splitlines()[-1]}"


@functools.cache
def _names(path: Path, node_type: str) -> bool:
    return path.parent == NODE_TESTS and re.search(rf"\b{node_type}\b", path.read_text()) is not None


@functools.cache
def golden_cases() -> tuple[GoldenCase, ...]:
    cases = {case.name.split("_")[0]: case for case in load_cases(VECTORS)}
    return tuple(cases[name] for name in GOLDEN)


@functools.cache
def _tag_cases(node_type: str) -> tuple[TagCase, ...]:
    return tuple(tag_cases(node_type))


def _node_types(mutant: Mutant) -> tuple[str, ...]:
    """The node type that a file is about; none for one that several lowerings share."""
    stem = Path(mutant.file).stem
    return tuple(name for name in node_types() if snake_case(name) == stem)


def one_thread() -> None:
    """Sizes are tiny, and workers with threads of their own wait for one another."""
    torch.set_num_threads(1)
