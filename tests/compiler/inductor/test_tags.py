"""Every Inductor lowering, run eagerly, keeps the tag it claims on random and adversarial inputs; see tag_cases.py."""

from __future__ import annotations

from dataclasses import replace

import pytest

import compiler.inductor.lowering  # noqa: F401 - importing it registers the lowerings
from compiler.registry import BITWISE, Lowering, lowered_nodes, lowering_of, tolerance
from tests.support.planted_faults import with_attributes
from tests.support.tag_cases import TagCase, check_tag, has_tag_cases, tag_cases
from tests.support.tag_forms import FORMS, take_form

LOWERED = lowered_nodes("inductor")
# run eagerly it is the reference's own operators; a compiler vectorises them, and the tolerance is for that
SAME_EAGERLY = {"TopkRouter"}


def lowering_for(node_type: str) -> Lowering:
    lowering = lowering_of(tag_cases(node_type)[0].node, "inductor")
    assert lowering is not None
    return lowering


def keeps(case: TagCase, lowering: Lowering) -> bool:
    try:
        check_tag(case, lowering)
    except AssertionError:
        return False
    return True


def test_every_lowered_node_has_cases_of_its_own() -> None:
    assert [name for name in LOWERED if not has_tag_cases(name)] == []


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("node_type", LOWERED)
def test_lowering_keeps_its_tag(node_type: str, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    take_form(monkeypatch, form)
    for case in tag_cases(node_type):
        check_tag(case, lowering_for(node_type))


@pytest.mark.parametrize("node_type", LOWERED)
def test_tag_that_is_too_strong_fails(node_type: str) -> None:
    lowering = lowering_for(node_type)
    if lowering.numerics.kind != "tolerance":
        assert lowering.numerics == BITWISE, "a lowering that is the reference needs no file"
        return
    for claimed in (BITWISE, tolerance(1e-9, "planted: more than float32 can keep")):
        too_strong = replace(lowering, numerics=claimed)
        is_kept = all(keeps(case, too_strong) for case in tag_cases(node_type))
        assert is_kept == (node_type in SAME_EAGERLY), f"{node_type} as {claimed}"


@pytest.mark.parametrize(
    ("node_type", "wrong"),
    [
        # what the demo model's own inputs cannot tell from right, docs/parity.md
        ("LayerNorm", {"eps": 1e-5}),
        ("LayerNorm", {"eps": 0.0}),
        ("RoutedExperts", {"limit": 1e9}),
        ("SparseMlaAttention", {"scale": 0.5001}),
        ("IndexerScores", {"pool": 3}),
        ("TopkRouter", {"norm_topk_prob": False}),
    ],
)
def test_attribute_that_is_not_the_nodes_fails(node_type: str, wrong: dict[str, object]) -> None:
    lowering = lowering_for(node_type)
    planted = replace(lowering, function=with_attributes(**wrong)(lowering.function))
    assert not all(keeps(case, planted) for case in tag_cases(node_type))
