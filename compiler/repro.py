"""A repro folder: one part of a circuit that a backend gets wrong, with all that is needed to see it again.

    FOLDER/README.md              what was found, and the command that replays it
    FOLDER/repro.json             backend, how it ran, the model's dtype, the calls, the first edge out of bound
    FOLDER/circuit.yaml           the part as a document
    FOLDER/region.yaml            of a single fused region: the circuit that it stands for
    FOLDER/inputs.safetensors     input/NAME, weight/NAME, state/NAME: what the part is run on
    FOLDER/expected.safetensors   by value name: what its references give
    FOLDER/actual.safetensors     by value name: what the lowerings gave; empty where they raised

It is data: a replay reads a document and tensors, and runs only this project's own nodes and lowerings.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from circuit import DTYPES, Circuit, CircuitError, Value, dtype_name, load_document, save_document, to_text
from compiler.artifact_folder import check_output, replacing
from compiler.bisect import FAULTS, Culprit, PartRunner, PartTensors, ReferenceRun, compare_part, reference_run
from compiler.cut_out import cut_out
from compiler.edge_bounds import EdgeBounds
from compiler.parity import EdgeDifference
from compiler.region import Region

RECORD, README, CIRCUIT, REGION = "repro.json", "README.md", "circuit.yaml", "region.yaml"
INPUTS, EXPECTED, ACTUAL = "inputs.safetensors", "expected.safetensors", "actual.safetensors"
FILES = {RECORD, README, CIRCUIT, REGION, INPUTS, EXPECTED, ACTUAL}


class ReproRecord(BaseModel):
    """What repro.json holds: `calls` as text, `edge` the first value out of bound, `error` how the lowering raised."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    format: Literal[1] = 1
    backend: str
    is_compiled: bool
    dtype: str
    seen_in: str
    calls: tuple[str, ...] = Field(strict=False)
    edge: str
    relative_l2: float | None
    bound: float | None
    reason: str
    error: str
    dims: dict[str, int]


@dataclass(frozen=True, slots=True)
class Repro:
    """A repro folder that was read: its record, its part, what it runs on, and what came out."""

    folder: Path
    record: ReproRecord
    part: Circuit
    tensors: PartTensors
    expected: dict[str, Tensor]
    actual: dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Replay:
    """What a replay shows: every edge of the part now, or how the lowering raised, and whether it is as recorded."""

    differences: tuple[EdgeDifference, ...]
    error: str
    is_expected_as_recorded: bool
    is_actual_as_recorded: bool

    @property
    def is_reproduced(self) -> bool:
        """Whether the part still goes wrong."""
        return bool(self.error) or any(not difference.is_within_bound for difference in self.differences)


def is_repro_folder(folder: Path) -> bool:
    """Whether the folder is a repro by its names: a record, and nothing that a bisection does not write."""
    return (folder / RECORD).is_file() and {entry.name for entry in folder.iterdir()} <= FILES


def check_repro_output(folder: Path) -> None:
    """Raise CircuitError unless `folder` is free, empty, or a repro that may be replaced."""
    check_output(folder, what="a repro", is_one=is_repro_folder)


def write_repro(
    folder: Path, run: ReferenceRun, culprit: Culprit, runner: PartRunner, *, dtype: torch.dtype, seen_in: str
) -> None:
    """Write a culprit's repro; `folder` is new, empty or a repro to replace, and appears whole or not at all.

    `seen_in` says for people which run it was found in. Raises CircuitError for a folder with other files.
    """
    part = cut_out(run.circuit, culprit.calls, dims=run.dims, keeps_inner=not runner.is_compiled)
    tensors = run.tensors_of(part)
    named = {
        **{f"input/{name}": tensor for name, tensor in tensors.inputs.items()},
        **{f"weight/{name}": tensor for name, tensor in tensors.weights.items()},
        **{f"state/{name}": tensor for name, tensor in tensors.states.items()},
    }
    shown = {value.name for value in shown_values(part)}
    expected = {value.name: tensor for value, tensor in run.values.items() if value.name in shown}
    missed = culprit.difference
    record = ReproRecord(
        backend=runner.backend,
        is_compiled=runner.is_compiled,
        dtype=dtype_name(dtype),
        seen_in=seen_in,
        calls=tuple(str(run.circuit.calls[index]) for index in culprit.calls),
        edge="" if missed is None else missed.edge,
        relative_l2=None if missed is None else missed.relative_l2,
        bound=None if missed is None else missed.bound,
        reason="" if missed is None else missed.reason,
        error=culprit.error,
        dims=run.dims,
    )
    regions = [call.node for call in part.calls if isinstance(call.node, Region)]
    with replacing(folder, what="a repro", is_one=is_repro_folder) as fresh:
        save_document(part, fresh / CIRCUIT)
        if len(part.calls) == len(regions) == 1:
            save_document(regions[0].circuit, fresh / REGION)
        for name, held in ((INPUTS, named), (EXPECTED, expected), (ACTUAL, culprit.actual)):
            save_file({key: tensor.contiguous().clone() for key, tensor in held.items()}, fresh / name)
        (fresh / README).write_text(_readme(record, part), encoding="utf-8")
        (fresh / RECORD).write_text(record.model_dump_json(indent=2) + "\n", encoding="utf-8")


def read_repro(folder: Path) -> Repro:
    """Read a repro folder; `CircuitError`, one line, for one that is missing, damaged or holds other files."""
    if not folder.is_dir() or not is_repro_folder(folder):
        got = "a folder with other files or without it" if folder.is_dir() else "no such folder"
        raise CircuitError(f"{folder}: expected a repro folder with {RECORD}, got {got}; name what bisect wrote")
    try:
        record = ReproRecord.model_validate_json((folder / RECORD).read_bytes())
    except ValidationError as error:
        fault = error.errors()[0]
        place = ".".join(str(part) for part in fault["loc"]) or "the document"
        raise CircuitError(f"{folder / RECORD}: {place}: {fault['msg']}; write the repro anew") from None
    if record.dtype not in DTYPES:
        raise CircuitError(f"{folder / RECORD}: dtype: expected one of {', '.join(DTYPES)}, got {record.dtype!r}")
    named = _load(folder / INPUTS)
    kinds: dict[str, dict[str, Tensor]] = {"input": {}, "weight": {}, "state": {}}
    for key, tensor in named.items():
        kind, _, name = key.partition("/")
        if kind not in kinds or not name:
            raise CircuitError(f"{folder / INPUTS}: expected input/, weight/ or state/ names, got {key!r}")
        kinds[kind][name] = tensor
    part = load_document(folder / CIRCUIT)
    expected, actual = _load(folder / EXPECTED), _load(folder / ACTUAL)
    tensors = PartTensors(kinds["input"], kinds["weight"], kinds["state"])
    if missing := [value.name for value in shown_values(part) if value.name not in expected]:
        raise CircuitError(f"{folder / EXPECTED}: expected the value {missing[0]!r}, got none; write the repro anew")
    return Repro(folder, record, part, tensors, expected, actual)


def replay(repro: Repro, runner: PartRunner) -> Replay:
    """Run the part again, by references and by lowerings, and compare; raises BindingError for tensors that misfit."""
    tensors, part = repro.tensors, repro.part
    run = reference_run(part, inputs=tensors.inputs, weights=tensors.weights, states=tensors.states)
    reference = {value.name: run.values[value] for value in shown_values(part)}
    is_expected = _same(reference, {name: repro.expected[name] for name in reference})
    try:
        actual = runner.run(part, tensors, repro.record.dims)
    except FAULTS as error:
        return Replay((), f"{type(error).__name__}: {error}", is_expected, not repro.actual)
    bounds = EdgeBounds(backend=runner.backend, dtype=DTYPES[repro.record.dtype], is_compiled=runner.is_compiled)
    differences = compare_part(part, reference, actual, bounds=bounds)
    return Replay(tuple(differences), "", is_expected, _same(actual, repro.actual))


def shown_values(part: Circuit) -> list[Value]:
    """Return what a part's run shows: its outputs, and the last versions of the states that it writes."""
    written = [value for name, value in part.state_outputs.items() if value is not part.states[name]]
    return [*part.outputs.values(), *written]


def _load(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise CircuitError(f"{path}: expected readable tensors, got {error}; write the repro anew") from None


def _same(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(
        tensor.dtype == right[name].dtype
        and tensor.shape == right[name].shape
        and torch.equal(tensor.reshape(-1).view(torch.uint8), right[name].reshape(-1).view(torch.uint8))
        for name, tensor in left.items()
    )


def _readme(record: ReproRecord, part: Circuit) -> str:
    how = "compiled" if record.is_compiled else "call by call"
    if record.error:
        found = f"The lowering raised: {record.error.splitlines()[0]}"
    else:
        found = (
            f"The first edge out of bound is `{record.edge}`: relative L2 {record.relative_l2:.3g}, allowed "
            f"{'the same bits' if record.bound == 0 else f'{record.bound:.3g}'} ({record.reason})."
        )
    calls = "\n".join(f"    {call}" for call in record.calls)
    return (
        f"# {record.backend}, {how}: wrong by itself\n\n"
        f"Seen in {record.seen_in}. The smallest set of calls that fails:\n\n{calls}\n\n{found}\n\n"
        "Replay it, exit code 1 while it still fails:\n\n    circuit bisect --replay .\n\n"
        f"The part, `{CIRCUIT}`, runs on `{INPUTS}`; `{EXPECTED}` is what its references give, `{ACTUAL}` what the\n"
        f"lowerings gave.\n\n```\n{to_text(part)}\n```\n"
    )
