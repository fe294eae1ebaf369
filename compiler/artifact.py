"""The artifact of a compile: a folder with a manifest, the circuit's document and one package per program.

Nothing in it is executed but the packages' native code, nothing is unpickled, and no path in it is absolute. The
manifest's digest covers what was compiled and how; two compiles of one thing give one digest. Each file's own hash
tells a truncated or edited file.
"""

import hashlib
import json
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from circuit import CircuitError

FORMAT: Literal[1] = 1
MANIFEST = "manifest.json"
CIRCUIT = "circuit.yaml"

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ProgramRecord(_Record):
    """One compiled program: its kind and bucket, the sizes it fixes, its file and that file's hash."""

    name: str
    kind: Literal["chain", "context"]
    num_drafts: int
    num_rows: int
    max_rows: int
    dims: dict[str, int]
    num_threads: int
    circuit_digest: Digest
    file: Annotated[str, Field(pattern=r"^packages/[A-Za-z0-9_]+\.pt2$")]
    file_sha256: Digest


class Manifest(_Record):
    """What an artifact holds, what it was made from, and where it can run."""

    format: Literal[1]
    backend: Literal["inductor"]
    torch_version: str
    machine: str
    cpu_capability: str
    checkpoint: str  # relative to the artifact, a hint where the weights lie
    weights_fingerprint: Digest
    binding: dict[str, str | int]  # decisions, dtype, block size and draft limit
    circuit_digest: Digest
    programs: tuple[ProgramRecord, ...]
    digest: Digest


def digest_of(text: str) -> str:
    """Return the SHA-256 of a text, in hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def manifest_digest(fields: Mapping[str, object], programs: Sequence[ProgramRecord]) -> str:
    """Return the digest of a compile: everything but file hashes, since a compiler's output may carry a date."""
    covered = {name: value for name, value in fields.items() if name not in ("digest", "checkpoint", "programs")}
    listed = [program.model_dump(exclude={"file_sha256"}) for program in programs]
    return digest_of(json.dumps({**covered, "programs": listed}, sort_keys=True))


def write_manifest(folder: Path, fields: Mapping[str, object], programs: Sequence[ProgramRecord]) -> Manifest:
    """Write the manifest last, so that a folder without one is an unfinished compile."""
    digest = manifest_digest(fields, programs)
    manifest = Manifest.model_validate({**fields, "programs": tuple(programs), "digest": digest})
    partial = folder / f".{MANIFEST}.partial"
    partial.write_text(manifest.model_dump_json(indent=1) + "\n", encoding="utf-8")
    os.replace(partial, folder / MANIFEST)
    return manifest


def read_manifest(folder: Path) -> Manifest:
    """Read and check an artifact: manifest, versions, CPU, every file's hash; `CircuitError` is one clear line."""
    path = folder / MANIFEST
    try:
        manifest = Manifest.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise CircuitError(
            f"{path}: expected a manifest, got no such file; compile again, it is written last"
        ) from None
    except OSError as error:
        raise CircuitError(f"{path}: expected a readable file, got {error.strerror}; check the path") from None
    except ValidationError as error:
        fault = error.errors()[0]
        place = ".".join(str(part) for part in fault["loc"]) or "the document"
        raise CircuitError(f"{path}: {place}: {fault['msg']}; the artifact is damaged, compile again") from None
    if manifest.digest != manifest_digest(manifest.model_dump(mode="json"), manifest.programs):
        raise CircuitError(f"{path}: its digest does not fit its contents; it was edited, compile again")
    _check_machine(manifest, path)
    for program in manifest.programs:
        _check_file(folder / program.file, program.file_sha256)
    return manifest


def machine_fields() -> dict[str, str]:
    """Return what of this machine and its torch a package depends on."""
    return {
        "torch_version": torch.__version__,
        "machine": platform.machine(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }


def _check_machine(manifest: Manifest, path: Path) -> None:
    for name, here in machine_fields().items():
        made_for = getattr(manifest, name)
        if made_for != here:
            raise CircuitError(f"{path}: compiled for {name} {made_for}, this is {here}; compile again here")


def _check_file(path: Path, expected: str) -> None:
    if not path.is_file():
        raise CircuitError(f"{path}: expected a package, got no such file; compile again")
    if file_digest(path) != expected:
        raise CircuitError(f"{path}: its contents are not what was compiled; it is truncated or edited, compile again")
