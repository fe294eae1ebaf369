"""The artifact of a compile for a GPU: the launches of each program as data, and the machine code of each kernel.

    manifest.json   what it is, for which device, every file's hash
    circuit.yaml    the drafter's circuit
    plan.json       calls, rules, costs, as for every backend
    launches/       a document per program: kernels, grids, arguments, buffers
    kernels/        one cubin per distinct kernel

It is read as data and never run: a runner emits the same launches and lets triton compile them where they run.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from circuit import CircuitError
from compiler.artifact import CIRCUIT, MANIFEST, PLAN, digest_of, file_digest
from compiler.triton.ahead_of_time import MachineCode, compile_launch
from compiler.triton.document import code_key, launch_document
from compiler.triton.emission import LaunchPlan
from compiler.triton.launch import Launch

FORMAT: Literal[1] = 1
LAUNCHES, KERNELS = "launches", "kernels"
TARGETS = {"sm_80": 80, "sm_89": 89, "sm_90": 90, "sm_100": 100, "sm_120": 120}

_Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
_Count = Annotated[int, Field(ge=0, le=1 << 50)]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class KernelRecord(_Record):
    """One kernel's machine code: what it takes of a multiprocessor, and the file that holds it."""

    launch: str
    kernel: str
    registers: _Count
    spilled_bytes: _Count
    shared_bytes: _Count
    num_warps: _Count
    wide_loads: _Count
    tensor_core_products: _Count
    blocks_per_multiprocessor: _Count
    file: Annotated[str, Field(pattern=r"^kernels/[0-9a-f]{64}\.cubin$")]
    file_sha256: _Digest


class LaunchesRecord(_Record):
    """One program: drafts of its chain (0 for context rows), rows, the longest sequence, and its launches' file."""

    name: str
    num_drafts: _Count
    num_rows: _Count
    max_rows: _Count
    num_launches: _Count
    arena_bytes: _Count
    file: Annotated[str, Field(pattern=r"^launches/[A-Za-z0-9_.]+\.json$")]
    file_sha256: _Digest


class LaunchManifest(_Record):
    """What an artifact for a GPU holds and what it was made from."""

    format: Literal[1]
    backend: Literal["triton"]
    target: Literal["sm_80", "sm_89", "sm_90", "sm_100", "sm_120"]
    torch_version: str
    triton_version: str
    compiler_digest: _Digest
    subject: str
    binding: dict[str, str | int]
    circuit_digest: _Digest
    circuit_sha256: _Digest
    plan_sha256: _Digest
    kernels: tuple[KernelRecord, ...]
    programs: Annotated[tuple[LaunchesRecord, ...], Field(min_length=1)]
    digest: _Digest


def is_launch_artifact(folder: Path) -> bool:
    """Whether the folder is such an artifact by its names, and may be replaced by another."""
    held = {entry.name for entry in folder.iterdir()} if folder.is_dir() else set()
    return MANIFEST in held and LAUNCHES in held and held <= {MANIFEST, CIRCUIT, PLAN, LAUNCHES, KERNELS}


def compile_kernels(
    plans: Sequence[LaunchPlan], *, target: str, num_workers: int
) -> Iterable[tuple[str, Launch, MachineCode]]:
    """Compile each distinct kernel of the plans; yields its code key, a launch of it and the code, in order."""
    distinct = {code_key(launch): launch for plan in plans for launch in plan.launches}
    launches = list(distinct.values())
    if num_workers == 1 or len(launches) == 1:
        for key, launch in distinct.items():
            yield key, launch, _compiled(launch, TARGETS[target])
        return
    with ProcessPoolExecutor(num_workers, mp_context=get_context("spawn")) as pool:
        made = pool.map(_compiled, launches, [TARGETS[target]] * len(launches))
        yield from zip(distinct, launches, made, strict=True)


def num_kernels(plans: Sequence[LaunchPlan]) -> int:
    """Return how many distinct kernels the plans start."""
    return len({code_key(launch) for plan in plans for launch in plan.launches})


def write_launches(
    folder: Path,
    plans: Sequence[tuple[LaunchPlan, Mapping[str, int]]],
    compiled: Iterable[tuple[str, Launch, MachineCode]],
    fields: Mapping[str, object],
) -> LaunchManifest:
    """Write kernels, launches and last the manifest into `folder`, which holds circuit and plan already.

    `plans` come with num_drafts, num_rows and max_rows; `fields` are those of the manifest that belong to the drafter.
    """
    (folder / LAUNCHES).mkdir()
    (folder / KERNELS).mkdir()
    kernels: dict[str, KernelRecord] = {}
    for key, launch, code in compiled:
        kernels[key] = _kernel_record(folder, launch, code)
    code_of = {key: record.file for key, record in kernels.items()}
    programs = []
    for plan, sizes in plans:
        file = f"{LAUNCHES}/{plan.name}.json"
        text = json.dumps(launch_document(plan, code_of=code_of), indent=1, ensure_ascii=False)
        (folder / file).write_text(text + "\n", encoding="utf-8")
        programs.append(
            LaunchesRecord(
                name=plan.name,
                num_launches=len(plan.launches),
                arena_bytes=plan.arena_bytes,
                file=file,
                file_sha256=file_digest(folder / file),
                **sizes,
            )
        )
    made: dict[str, Any] = {
        "format": FORMAT,
        "backend": "triton",
        "torch_version": torch.__version__,
        "triton_version": version("triton"),
        "circuit_sha256": file_digest(folder / CIRCUIT),
        "plan_sha256": file_digest(folder / PLAN),
        "kernels": tuple(kernels.values()),
        "programs": tuple(programs),
        **fields,
    }
    manifest = LaunchManifest(**made, digest=_digest(made))
    partial = folder / f".{MANIFEST}.partial"
    partial.write_text(manifest.model_dump_json(indent=1) + "\n", encoding="utf-8")
    os.replace(partial, folder / MANIFEST)
    return manifest


def read_launch_manifest(folder: Path) -> LaunchManifest:
    """Read an artifact's manifest and check every file's hash; `CircuitError` is one clear line."""
    path = folder / MANIFEST
    try:
        manifest = LaunchManifest.model_validate_json(path.read_bytes())
    except OSError as error:
        raise CircuitError(f"{path}: expected a manifest, got {error.strerror}; compile again") from None
    except ValidationError as error:
        fault = error.errors()[0]
        found = fault.get("input")
        if fault["loc"] == ("format",) and type(found) is int:
            step = "a newer version wrote it, update or compile again" if found > FORMAT else "compile again"
            raise CircuitError(f"{path}: expected artifact format {FORMAT}, got {found}; {step}") from None
        place = ".".join(str(part) for part in fault["loc"]) or "the document"
        raise CircuitError(f"{path}: {place}: {fault['msg']}; the artifact is damaged, compile again") from None
    if manifest.digest != _digest(dict(manifest)):
        raise CircuitError(f"{path}: its digest does not fit its contents; it was edited, compile again")
    held = {CIRCUIT: manifest.circuit_sha256, PLAN: manifest.plan_sha256}
    held |= {kernel.file: kernel.file_sha256 for kernel in manifest.kernels}
    held |= {program.file: program.file_sha256 for program in manifest.programs}
    for name, digest in held.items():
        file = folder / name
        if not file.is_file() or file_digest(file) != digest:
            found = "other contents" if file.is_file() else "no such file"
            raise CircuitError(f"{file}: expected what was compiled, got {found}; compile again")
    return manifest


def _compiled(launch: Launch, arch: int) -> MachineCode:
    return compile_launch(launch, arch=arch)


def _kernel_record(folder: Path, launch: Launch, code: MachineCode) -> KernelRecord:
    digest = hashlib.sha256(code.cubin).hexdigest()
    file = f"{KERNELS}/{digest}.cubin"
    (folder / file).write_bytes(code.cubin)
    return KernelRecord(
        launch=launch.name,
        kernel=launch.kernel,
        registers=code.registers,
        spilled_bytes=code.spilled_bytes,
        shared_bytes=code.shared_bytes,
        num_warps=code.num_warps,
        wide_loads=code.wide_loads,
        tensor_core_products=code.tensor_core_products,
        blocks_per_multiprocessor=code.blocks_per_multiprocessor(),
        file=file,
        file_sha256=digest,
    )


def _digest(fields: Mapping[str, Any]) -> str:
    """All but the digest itself; a subject's path is a hint, not a part of what was compiled."""
    covered = {
        name: [item.model_dump(mode="json") for item in value] if name in ("kernels", "programs") else value
        for name, value in fields.items()
        if name not in ("digest", "subject")
    }
    return digest_of(json.dumps(covered, sort_keys=True))
