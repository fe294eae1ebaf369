"""The example scripts run as the README says, from the repository's root."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def output_of(script: str) -> str:
    run = subprocess.run(
        [sys.executable, f"examples/{script}"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=300
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_swap_the_head_drafts_alike_before_and_after() -> None:
    eager, circuit = output_of("swap_the_head.py").splitlines()
    assert eager.startswith("eager [")
    assert circuit.startswith("circuit:reference [")
    assert eager.removeprefix("eager ") == circuit.removeprefix("circuit:reference ")


def test_declare_a_node_prints_text_value_and_document() -> None:
    printed = output_of("declare_a_node.py")
    assert "%capped: f32[n, 32] = Squash(limit=30.0)(%linear_1)" in printed
    assert "8 * 9 = 72 is squashed to 29.510" in printed
    assert "- node: Squash" in printed
