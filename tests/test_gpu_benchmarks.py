"""The benchmarks of a GPU where there is none: they say so, and leave with a status that no measurement has."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, which they would measure")
@pytest.mark.parametrize("name", ["propose_gpu", "launches_gpu"])
def test_benchmark_without_a_gpu_says_so_and_measures_nothing(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [name, "--json"])
    main = runpy.run_path(str(ROOT / "benchmarks" / f"{name}.py"))["main"]
    assert main() == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == f"{name}: there is no CUDA device; run it on a machine with a GPU, nothing was measured\n"
