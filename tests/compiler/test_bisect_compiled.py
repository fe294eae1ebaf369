"""Bisection of compiled programs: each suspect is built by Inductor, and a planted fault is found at its own call."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from circuit import Circuit, f32
from compiler import CompiledPartRunner, find_culprit, read_repro, reference_run, replay, write_repro
from compiler.inductor import has_cxx_compiler
from nodes import LayerNorm, Linear
from tests.support.planted_faults import FAULTS, plant

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not has_cxx_compiler(), reason="needs a C++ compiler"),
]


def test_compiled_fault_is_found_and_its_repro_fails_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    circuit = Circuit("small")
    x = circuit.input("x", f32("n", 12))
    y = Linear()(x, circuit.weight("w", f32(7, 12))).named("y")
    z = LayerNorm(eps=1e-6)(y, circuit.weight("gain", f32(7)), circuit.weight("bias", f32(7))).named("z")
    circuit.output("out", z)
    generator = torch.Generator().manual_seed(3)
    sizes = {"w": (7, 12), "gain": (7,), "bias": (7,)}
    weights = {name: torch.randn(size, generator=generator) for name, size in sizes.items()}
    inputs = {"x": torch.randn(3, 12, generator=generator)}
    run = reference_run(circuit, inputs=inputs, weights=weights, states={})
    runner = CompiledPartRunner()
    plant(monkeypatch, FAULTS["eps of the key norm"])
    culprit = find_culprit(run, runner, dtype=torch.float32)
    assert culprit is not None
    assert [circuit.calls[index].results[0].name for index in culprit.calls] == ["z"]
    write_repro(tmp_path / "repro", run, culprit, runner, dtype=torch.float32, seen_in="a test")
    repro = read_repro(tmp_path / "repro")
    assert repro.record.is_compiled
    assert replay(repro, runner).is_reproduced
