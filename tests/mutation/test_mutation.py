"""Mutants of references and lowerings are caught by the parity and golden checks: every one of them, some minutes."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from nodes import RmsNorm
from tests.mutation.equivalents import missing, read_equivalents
from tests.mutation.mutants import ROOT, SOURCES, Mutant, layer_files, mutants_of, planted

TIMEOUT_S = 1800


def rms_norm_mutant(after: str) -> Mutant:
    return next(one for one in mutants_of(ROOT / "nodes" / "rms_norm.py", "nodes") if one.after == after)


@pytest.mark.parametrize("layer", SOURCES)
def test_every_file_with_arithmetic_has_mutants(layer: str) -> None:
    empty = {path.stem for path in layer_files(layer) if not mutants_of(path, layer)}
    # a lookup and two views: there is nothing in them that an operator changes
    assert empty <= {"argmax", "embedding", "split_heads", "token_of_row", "linear"}
    assert len(layer_files(layer)) > 10


def test_mutant_runs_while_it_is_planted_and_no_longer() -> None:
    node, x, gain = RmsNorm(eps=1e-5), torch.tensor([[3.0, 4.0]]), torch.tensor([1.0, 2.0])
    before = node.reference(x, gain)
    with planted(rms_norm_mutant("weight")):
        assert torch.equal(node.reference(x, gain), gain)
    assert torch.equal(node.reference(x, gain), before)


def test_mutant_of_another_source_is_refused() -> None:
    mutant = rms_norm_mutant("weight")
    gone = Mutant(**{**vars(mutant), "before": "weight * no_longer_there"})
    with pytest.raises(LookupError, match="no such mutant"), planted(gone):
        pass


def test_equivalent_mutants_still_exist_and_have_a_reason() -> None:
    reasons = read_equivalents()
    mutants = [one for layer in SOURCES for path in layer_files(layer) for one in mutants_of(path, layer)]
    assert missing(reasons, mutants) == []
    assert all(len(reason) > 10 for reason in reasons.values())


@pytest.mark.slow
@pytest.mark.interpreted
def test_mutants_are_caught() -> None:
    command = [sys.executable, "-m", "tests.mutation.score", "--jobs", "2"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-2000:]
