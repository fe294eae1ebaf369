"""The artifact of a compile: a folder with a manifest, the circuit's document, the plan and one package per program.

Nothing in it is unpickled and no path in it is absolute or leaves the folder; what runs is the packages' native code,
so an artifact is trusted like a program. The manifest's digest covers what was compiled and how, and two compiles of
one thing give one digest. Each file's own hash tells a truncated or edited file.
"""

import hashlib
import json
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from circuit import CircuitError

FORMAT: Literal[3] = 3
MANIFEST = "manifest.json"
CIRCUIT = "circuit.yaml"
PLAN = "plan.json"
PACKAGES = "packages"
DRIVER_FILE = f"{PACKAGES}/driver.so"  # what runs the packages
MAX_MANIFEST_BYTES = 1 << 20

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Size = Annotated[int, Field(ge=0, le=1 << 40)]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class ProgramRecord(_Record):
    """One compiled program: its kind and bucket, the sizes it fixes, its file and that file's hash.

    is_row_exact: of a chain of several rows, whether each row came out bitwise as the chain of one row has it.
    """

    name: str
    kind: Literal["chain", "context"]
    num_drafts: Size
    num_rows: Size
    max_rows: Size
    dims: dict[str, Size]
    num_threads: Size
    is_row_exact: bool
    circuit_digest: Digest
    file: Annotated[str, Field(pattern=r"^packages/[A-Za-z0-9_]+\.so$")]
    file_sha256: Digest


class Manifest(_Record):
    """What an artifact holds, what it was made from, and where it can run.

    compiler_digest: of the sources that lowered it. cpu_features: what the compiler could see of the machine; code that
    uses a missing one would end the process. native_products: whether bf16_products.cpp was allowed into the packages.
    weights: per weight, a hash of its dtype, shape and sampled values.
    """

    format: Literal[3]
    backend: Literal["inductor"]
    torch_version: str
    machine: str
    cpu_capability: str
    cpu_features: tuple[str, ...]
    compiler_digest: Digest
    native_products: bool
    checkpoint: str  # relative to the artifact, a hint where the weights lie
    weights: dict[str, Digest]
    binding: dict[str, str | int]  # decisions, dtype, block size and draft limit
    circuit_digest: Digest  # of the text form
    circuit_sha256: Digest
    plan_sha256: Digest
    driver_sha256: Digest
    programs: Annotated[tuple[ProgramRecord, ...], Field(min_length=1)]
    digest: Digest


def digest_of(text: str) -> str:
    """Return the SHA-256 of a text, in hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def manifest_digest(fields: Mapping[str, object], programs: Sequence[ProgramRecord]) -> str:
    """Return the digest of a compile: all but where the checkpoint lies and the hashes of native code.

    A C++ compiler's output may carry a date, so that two packages of one program may differ.
    """
    left_out = ("digest", "checkpoint", "programs", "driver_sha256")
    covered = {name: value for name, value in fields.items() if name not in left_out}
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


def read_manifest(folder: Path, *, for_this_machine: bool = True) -> Manifest:
    """Read and check an artifact: manifest, versions and CPU, every file's hash; `CircuitError` is one clear line.

    Without `for_this_machine` it may have been compiled for another machine or torch; then it is only looked at.
    """
    path = folder / MANIFEST
    try:
        manifest = Manifest.model_validate_json(_manifest_text(path))
    except ValidationError as error:
        raise CircuitError(f"{path}: {_fault(error)}; the artifact is damaged, compile again") from None
    if manifest.digest != manifest_digest(manifest.model_dump(mode="json"), manifest.programs):
        raise CircuitError(f"{path}: its digest does not fit its contents; it was edited, compile again")
    if for_this_machine and (reason := why_foreign(manifest)):
        raise CircuitError(f"{path}: {reason}; compile again here")
    expected = {CIRCUIT: manifest.circuit_sha256, PLAN: manifest.plan_sha256, DRIVER_FILE: manifest.driver_sha256}
    for name, digest in (expected | {program.file: program.file_sha256 for program in manifest.programs}).items():
        _check_file(folder, name, digest)
    return manifest


def machine_fields() -> dict[str, object]:
    """Return what of this machine and its torch a package depends on."""
    return {
        "torch_version": torch.__version__,
        "machine": platform.machine(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cpu_features": tuple(sorted(name for name, has_it in torch.cpu.get_capabilities().items() if has_it is True)),
    }


def why_foreign(manifest: Manifest) -> str:
    """Return why the artifact cannot run here, empty when it can."""
    here = machine_fields()
    for name in ("torch_version", "machine", "cpu_capability"):
        if getattr(manifest, name) != here[name]:
            return f"compiled for {name} {getattr(manifest, name)}, this is {here[name]}"
    # a package is built for every feature of its machine; a machine that has more runs it as well
    missing = set(manifest.cpu_features) - set(here["cpu_features"])  # type: ignore[call-overload]
    return f"compiled for a CPU with {', '.join(sorted(missing))}, which this one lacks" if missing else ""


def _manifest_text(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            text = stream.read(MAX_MANIFEST_BYTES + 1)
    except FileNotFoundError:
        raise CircuitError(
            f"{path}: expected a manifest, got no such file; name an artifact; a compile that was cut short has none"
        ) from None
    except OSError as error:
        raise CircuitError(f"{path}: expected a readable file, got {error.strerror}; check the path") from None
    if len(text) > MAX_MANIFEST_BYTES:
        raise CircuitError(f"{path}: expected at most {MAX_MANIFEST_BYTES} bytes, got more; it is no manifest of ours")
    _check_format(text, path)
    return text


def _check_format(text: bytes, path: Path) -> None:
    """Refuse a manifest of another format before its fields are judged by this one's."""
    try:
        document: Any = json.loads(text)
    except (ValueError, RecursionError):
        raise CircuitError(
            f"{path}: expected JSON, got something else; it is truncated or edited, compile again"
        ) from None
    if isinstance(document, dict) and document.get("backend") == "triton":
        raise CircuitError(
            f"{path}: expected native programs, got launches for a GPU, which are there to be read (circuit inspect); "
            "run the checkpoint itself with --backend triton"
        )
    found = document.get("format") if isinstance(document, dict) else None
    if isinstance(found, int) and found != FORMAT:
        step = "a newer version wrote it, update or compile again" if found > FORMAT else "compile again"
        raise CircuitError(f"{path}: expected artifact format {FORMAT}, got {found}; {step}")


def _fault(error: ValidationError) -> str:
    fault = error.errors()[0]
    place = ".".join(str(part) for part in fault["loc"]) or "the document"
    return f"{place}: {fault['msg']}"


def _check_file(folder: Path, name: str, expected: str) -> None:
    path = folder / name
    # a link could lead to a file that changes after the check, or out of the artifact
    if any(part.is_symlink() for part in (path, path.parent) if part != folder):
        raise CircuitError(f"{path}: expected a plain file, got a link; copy the artifact as it was compiled")
    if not path.is_file():
        raise CircuitError(f"{path}: expected a file of the artifact, got no such file; compile again")
    try:
        digest = file_digest(path)
    except OSError as error:
        raise CircuitError(f"{path}: expected a readable file, got {error.strerror}; check the path") from None
    if digest != expected:
        raise CircuitError(f"{path}: its contents are not what was compiled; it is truncated or edited, compile again")
