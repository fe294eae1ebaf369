"""Every region rule has tests of its launches, held to the bound of its tag; a tag that is too strong fails there."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from compiler import registry
from compiler.registry import BITWISE, region_rules, tolerance
from tests.support.launches import LaunchScene, tag_bound

FOLDER = Path(__file__).parent
RULES = [rule.name for rule in region_rules("triton") if not rule.is_planned]


def checked_rules(file: Path) -> set[str]:
    """The rules that a file hands to `check_region`, or to a function that does, by name."""
    tree = ast.parse(file.read_text())
    return {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and node.value in RULES}


def test_every_rule_has_a_file_that_checks_its_region() -> None:
    files = [file for file in FOLDER.glob("test_*.py") if "check_region" in file.read_text() and file != Path(__file__)]
    checked = set().union(*map(checked_rules, files))
    assert RULES
    assert set(RULES) - checked == set()


@pytest.mark.parametrize("rule", RULES)
def test_regions_are_held_to_the_tag_in_float32(rule: str) -> None:
    (numerics,) = (held.numerics for held in region_rules("triton") if held.name == rule)
    assert numerics.kind == "tolerance"
    assert tag_bound(rule, torch.float32) == numerics.bound


@pytest.mark.interpreted
@pytest.mark.parametrize("claimed", [BITWISE, tolerance(1e-9, "planted: more than float32 can keep")], ids=str)
@pytest.mark.parametrize("rule", ["entry", "o_proj"])
def test_tag_that_is_too_strong_fails(rule: str, claimed: registry.Numerics, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = LaunchScene((18, 3, 41), padding=0)
    scene.check_region(rule)
    key = ("triton", rule)
    monkeypatch.setitem(registry._RULES, key, replace(registry._RULES[key], numerics=claimed))
    with pytest.raises(AssertionError, match=f"{rule}.*differs by"):
        scene.check_region(rule)


@pytest.mark.interpreted
def test_latent_of_several_tiles_is_combined_whole() -> None:
    # tiles of the latent shrink with the rows; at sixteen the released 512 take more than one
    scene = LaunchScene(tuple(range(2, 18)), padding=0, kv_lora_rank=601, num_attention_heads=2, num_key_value_heads=2)
    scene.check_region("sparse_mla")
