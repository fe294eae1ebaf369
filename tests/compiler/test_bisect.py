"""Bisection: a planted fault is found at its own call, a right program has none, and a repro shows it again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from circuit import BindingError, Circuit, CircuitError, LoweringError, f32, interpret, load_document, verify
from compiler import (
    Culprit,
    OpByOpRunner,
    ReferenceRun,
    cut_out,
    find_culprit,
    read_repro,
    reference_run,
    replay,
    run_op_by_op,
    smallest_failing,
    write_repro,
)
from nodes import Add, Linear, RmsNorm
from tests.support.head_scene import DECISIONS, Scene
from tests.support.planted_faults import FAULTS, Fault, plant, with_result

RUNNER = OpByOpRunner("inductor")
F32 = torch.float32


@pytest.fixture(scope="module")
def run() -> ReferenceRun:
    return reference_of(Scene({}))


def reference_of(scene: Scene) -> ReferenceRun:
    circuit = scene.binding.step(is_first=True)
    given = {name: scene.inputs[name] for name in circuit.inputs}
    return reference_run(circuit, inputs=given, weights=scene.binding.weights, states=scene.states)


def names(run: ReferenceRun, culprit: Culprit) -> tuple[str, ...]:
    return tuple(value.name for index in culprit.calls for value in run.circuit.calls[index].results)


@pytest.mark.parametrize("decisions", DECISIONS)
def test_right_lowerings_have_no_culprit(decisions: str) -> None:
    assert find_culprit(reference_of(Scene(DECISIONS[decisions])), RUNNER, dtype=F32) is None


@pytest.mark.parametrize("name", FAULTS)
def test_planted_fault_is_found_at_its_own_call(name: str, run: ReferenceRun, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, FAULTS[name])
    culprit = find_culprit(run, RUNNER, dtype=F32)
    assert culprit is not None
    assert names(run, culprit) == FAULTS[name].at
    if culprit.difference is None:
        assert culprit.error
    else:
        assert culprit.difference.edge in FAULTS[name].at


def test_fault_that_a_whole_forward_hides_is_found_alone(run: ReferenceRun, monkeypatch: pytest.MonkeyPatch) -> None:
    # within 1e-5, the bound of what carries differences, yet AppendCache promises the same bits
    shift = with_result(lambda cache: cache.mul_(1 + 1e-6))
    plant(monkeypatch, Fault("AppendCache", shift, ()))
    culprit = find_culprit(run, RUNNER, dtype=F32)
    assert culprit is not None
    assert names(run, culprit) in (("next_latent_cache",), ("next_index_keys",))
    assert culprit.difference is not None
    assert "bitwise" in culprit.difference.reason


@pytest.mark.parametrize("guilty", [{5}, {0}, {12}, {3, 9}, {0, 12}, {1, 2, 11}])
def test_smallest_failing_set_is_the_guilty_one(guilty: set[int]) -> None:
    runs: list[int] = []

    def fails(items: Any) -> bool:
        runs.append(len(items))
        return guilty <= set(items)

    assert set(smallest_failing(range(13), fails)) == guilty
    if len(guilty) == 1:
        assert len(runs) <= 8


def test_op_by_op_leaves_the_states_that_it_is_given(run: ReferenceRun) -> None:
    tensors = run.tensors_of(run.circuit)
    before = {name: tensor.clone() for name, tensor in tensors.states.items()}
    result = run_op_by_op(
        run.circuit, backend="inductor", inputs=tensors.inputs, weights=tensors.weights, states=tensors.states
    )
    for name, tensor in tensors.states.items():
        assert torch.equal(tensor.nan_to_num(7.0), before[name].nan_to_num(7.0))
        assert not torch.equal(result.states[name].nan_to_num(7.0), before[name].nan_to_num(7.0))


def test_backend_without_code_and_a_missing_tensor_are_refused_by_name(run: ReferenceRun) -> None:
    with pytest.raises(LoweringError, match="backend 'gpu'"):
        find_culprit(run, OpByOpRunner("gpu"), dtype=F32)
    with pytest.raises(BindingError, match="'token' is missing"):
        run_op_by_op(run.circuit, backend="inductor", inputs={}, weights={}, states={})


def test_every_call_cut_out_is_legal_and_gives_what_it_gave(run: ReferenceRun) -> None:
    for index, call in enumerate(run.circuit.calls):
        part = cut_out(run.circuit, [index], dims=run.dims)
        verify(part)
        tensors = run.tensors_of(part)
        result = interpret(part, inputs=tensors.inputs, weights=tensors.weights, states=tensors.states)
        made = [*result.outputs.values(), *(result.states[name] for name in call_states(part))]
        for value, tensor in zip(
            sorted(call.results, key=lambda one: one.name in call_states(part)), made, strict=True
        ):
            assert torch.equal(tensor.nan_to_num(7.0), run.values[value].nan_to_num(7.0)), call


def call_states(part: Circuit) -> list[str]:
    return [name for name, value in part.state_outputs.items() if value is not part.states[name]]


def test_part_keeps_what_is_read_outside_only_where_asked() -> None:
    circuit = Circuit("toy")
    x, w = circuit.input("x", f32("n", 8)), circuit.weight("w", f32(8, 8))
    a = Linear()(x, w).named("a")
    b = RmsNorm(eps=1e-6)(a, circuit.weight("gain", f32(8))).named("b")
    circuit.output("y", Add()(b, a).named("c"))
    assert list(cut_out(circuit, [0, 1], dims={}, keeps_inner=False).outputs) == ["a", "b"]
    assert list(cut_out(circuit, [1, 2], dims={}, keeps_inner=False).outputs) == ["c"]
    assert list(cut_out(circuit, [1, 2], dims={}).outputs) == ["b", "c"]
    for calls in ([], [3], [-1]):
        with pytest.raises(BindingError, match="0 to 2"):
            cut_out(circuit, calls, dims={})


def written(run: ReferenceRun, folder: Path) -> Path:
    culprit = find_culprit(run, RUNNER, dtype=F32)
    assert culprit is not None
    write_repro(folder, run, culprit, RUNNER, dtype=F32, seen_in="draft 1")
    return folder


@pytest.mark.parametrize("name", ["eps of the key norm", "slots off by one", "a lowering that raises"])
def test_repro_shows_the_fault_again_and_passes_once_it_is_mended(
    name: str, run: ReferenceRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        plant(patch, FAULTS[name])
        folder = written(run, tmp_path / "repro")
        again = replay(read_repro(folder), RUNNER)
        assert again.is_reproduced
        assert again.is_expected_as_recorded
        assert again.is_actual_as_recorded
    part = load_document(folder / "circuit.yaml")
    assert len(part.calls) == 1
    assert "circuit bisect --replay" in (folder / "README.md").read_text()
    assert set(load_file(folder / "expected.safetensors")) >= set(load_file(folder / "actual.safetensors"))
    mended = replay(read_repro(folder), RUNNER)
    assert not mended.is_reproduced
    assert mended.is_expected_as_recorded
    assert not mended.is_actual_as_recorded


def test_repro_replaces_a_repro_and_nothing_else(
    run: ReferenceRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, FAULTS["eps of the key norm"])
    folder = written(run, tmp_path / "repro")
    written(run, folder)
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(CircuitError, match="a folder with other files"):
        written(run, folder)
    with pytest.raises(CircuitError, match="a folder with other files"):
        read_repro(folder)
    assert (folder / "notes.txt").read_text() == "mine"
    (tmp_path / "file").write_text("")
    with pytest.raises(CircuitError, match="got a file"):
        written(run, tmp_path / "file")


def test_failed_write_leaves_nothing(run: ReferenceRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, FAULTS["eps of the key norm"])

    def full(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("compiler.repro.save_file", full)
    with pytest.raises(OSError, match="No space"):
        written(run, tmp_path / "repro")
    assert list(tmp_path.iterdir()) == []


def _cut_record(folder: Path) -> None:
    (folder / "repro.json").write_text((folder / "repro.json").read_text()[:40])


def _newer_record(folder: Path) -> None:
    record = json.loads((folder / "repro.json").read_text())
    (folder / "repro.json").write_text(json.dumps(record | {"format": 2}))


def _cut_tensors(folder: Path) -> None:
    (folder / "inputs.safetensors").write_bytes((folder / "inputs.safetensors").read_bytes()[:30])


def _no_expected(folder: Path) -> None:
    save_file({"other": torch.zeros(1)}, folder / "expected.safetensors")


def _stray_names(folder: Path) -> None:
    save_file({"other": torch.zeros(1)}, folder / "inputs.safetensors")


def _no_document(folder: Path) -> None:
    (folder / "circuit.yaml").unlink()


@pytest.mark.parametrize("damage", [_cut_record, _newer_record, _cut_tensors, _no_expected, _stray_names, _no_document])
def test_damaged_repro_is_refused_with_its_file(
    damage: Any, run: ReferenceRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, FAULTS["eps of the key norm"])
    folder = written(run, tmp_path / "repro")
    damage(folder)
    with pytest.raises(CircuitError, match=str(folder)):
        read_repro(folder)
