"""Compile a checkpoint's drafter into an artifact, and load one again in a process that has no compiler."""

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from circuit import CircuitError, save_document, to_text
from compiler.artifact import (
    CIRCUIT,
    FORMAT,
    Manifest,
    ProgramRecord,
    digest_of,
    file_digest,
    machine_fields,
    read_manifest,
    write_manifest,
)
from compiler.inductor import BuildJob, PackagedProgram, build_packages
from drafts.binding import DraftBinding
from drafts.compiled_runner import CompiledRunner
from drafts.decisions import Decisions
from drafts.programs import ProgramKey, program_circuit, program_dims, program_keys
from drafts.proposer import DraftProposer

DTYPE_NAMES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
SAMPLED_ELEMENTS = 16384  # of each weight, for its fingerprint
ONE_THREAD_BYTES = 8 << 20  # below it a second thread waits longer at barriers than it saves


@dataclass(frozen=True, slots=True)
class CompiledDrafter:
    """A drafter loaded from an artifact: its proposer with the compiled circuit swapped in."""

    manifest: Manifest
    proposer: DraftProposer
    runner: CompiledRunner


def compile_drafter(
    proposer: DraftProposer,
    checkpoint: Path,
    output: Path,
    *,
    num_drafts: int,
    batches: Sequence[int],
    contexts: Sequence[int],
    num_workers: int | None = None,
    on_built: Callable[[str, int], None] | None = None,
) -> Manifest:
    """Compile the drafter of `proposer` into the folder `output`; returns its manifest.

    A chain of `num_drafts` per batch and context (in rows), and context programs. `on_built` is told each program's
    name and how many there are. Raises CircuitError when the circuit does not model the drafter, LoweringError for a
    package that failed; the manifest is written last, so an unfinished folder is no artifact.
    """
    binding = proposer.circuit_draft()
    if binding is None:
        raise CircuitError(f"{checkpoint}: the circuit does not model this drafter; run it eager")
    keys = program_keys(binding, num_drafts=num_drafts, batches=batches, contexts=contexts)
    folder = output / "packages"
    folder.mkdir(parents=True, exist_ok=True)
    num_threads = threads_for(binding)
    jobs = [
        BuildJob(
            circuit=program_circuit(binding, key),
            # the cache's own extent stays open
            dims={**program_dims(binding, key), "num_blocks": 7, "num_sequences": 3},
            num_threads=num_threads,
            path=folder / f"{key.name}.pt2",
        )
        for key in keys
    ]
    build_packages(
        jobs,
        num_workers=num_workers or os.cpu_count() or 1,
        on_built=None if on_built is None else lambda job: on_built(job.path.stem, len(jobs)),
    )
    save_document(binding.circuit, output / CIRCUIT)
    records = [_record(binding, key, job) for key, job in zip(keys, jobs, strict=True)]
    return write_manifest(output, _fields(binding, checkpoint, output), records)


def load_compiled(
    folder: Path, *, checkpoint: Path | None = None, max_seq_len: int | None = None, num_sequences: int = 1
) -> CompiledDrafter:
    """Load an artifact over its checkpoint's weights; needs no compiler.

    `checkpoint` defaults to where the manifest says it was. Raises CircuitError, one line, for an artifact that is
    damaged or of another machine, and for a checkpoint whose weights are not those it was compiled for.
    """
    manifest = read_manifest(folder)
    weights_at = checkpoint or (folder / manifest.checkpoint).resolve()
    recorded = manifest.binding
    proposer = DraftProposer.from_checkpoint(
        weights_at,
        dtype=DTYPE_NAMES[str(recorded["dtype"])],
        decisions=Decisions.model_validate({name: recorded[name] for name in Decisions.model_fields}),
        max_seq_len=max_seq_len or max(program.max_rows for program in manifest.programs),
        max_num_drafts=int(recorded["max_num_drafts"]),
        num_sequences=num_sequences,
    )
    if weights_fingerprint(proposer.weights) != manifest.weights_fingerprint:
        raise CircuitError(f"{weights_at}: not the weights that {folder} was compiled for; name its own checkpoint")
    binding = proposer.circuit_draft()
    if binding is None or digest_of(to_text(binding.circuit)) != manifest.circuit_digest:
        raise CircuitError(f"{folder}: compiled from another circuit than this version declares; compile again")
    runner = CompiledRunner(binding, _load_programs(folder, manifest, binding), backend=manifest.backend)
    proposer.set_circuit_draft(runner)
    return CompiledDrafter(manifest, proposer, runner)


def touched_bytes(binding: DraftBinding, *, num_rows: int, context: int) -> int:
    """Return the bytes of weights and cache that one draft of `num_rows` sequences with `context` rows reads."""
    config = binding.config
    idle = 1.0 - config.num_experts_per_tok / config.n_routed_experts
    shares = {
        "embed_tokens": num_rows / config.vocab_size,
        # distinct experts, when every row draws its own uniformly
        "mlp.experts.gate_up_proj": 1.0 - idle**num_rows,
        "mlp.experts.down_proj": 1.0 - idle**num_rows,
    }
    weights = sum(round(weight.nbytes * shares.get(name, 1.0)) for name, weight in binding.weights.items())
    pools = context // config.index_kpool
    selected = min(context, config.selected_width)
    row_bytes = config.kv_lora_rank * selected + config.index_head_dim * pools
    return weights + num_rows * row_bytes * config.dtype.itemsize


def threads_for(binding: DraftBinding) -> int:
    """Return the threads that pay for one draft: one where the weights it touches are few, else every core."""
    touched = touched_bytes(binding, num_rows=1, context=0)
    return 1 if touched <= ONE_THREAD_BYTES else os.cpu_count() or 1


def weights_fingerprint(weights: Mapping[str, Tensor]) -> str:
    """Return a hash of the weights' names, dtypes, shapes and an even sample of their values."""
    digest = hashlib.sha256()
    for name, weight in sorted(weights.items()):
        flat = weight.detach().reshape(-1)
        sample = flat[:: max(1, flat.numel() // SAMPLED_ELEMENTS)].contiguous().cpu()
        digest.update(f"{name} {weight.dtype} {list(weight.shape)};".encode())
        digest.update(sample.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _load_programs(folder: Path, manifest: Manifest, binding: DraftBinding) -> dict[ProgramKey, PackagedProgram]:
    programs = {}
    for record in manifest.programs:
        key = ProgramKey(record.kind, record.num_drafts, record.num_rows, record.max_rows)
        circuit = program_circuit(binding, key)
        if digest_of(to_text(circuit)) != record.circuit_digest:
            raise CircuitError(f"{folder}: {record.name} was compiled from another circuit; compile again")
        programs[key] = PackagedProgram(circuit, record.dims, folder / record.file)
    return programs


def _record(binding: DraftBinding, key: ProgramKey, job: BuildJob) -> ProgramRecord:
    return ProgramRecord(
        name=key.name,
        kind=key.kind,
        num_drafts=key.num_drafts,
        num_rows=key.num_rows,
        max_rows=key.max_rows,
        dims=program_dims(binding, key),
        num_threads=job.num_threads,
        circuit_digest=digest_of(to_text(job.circuit)),
        file=f"packages/{job.path.name}",
        file_sha256=file_digest(job.path),
    )


def _fields(binding: DraftBinding, checkpoint: Path, output: Path) -> dict[str, object]:
    layout = binding.state_layout
    return {
        "format": FORMAT,
        "backend": "inductor",
        **machine_fields(),
        "checkpoint": os.path.relpath(checkpoint.resolve(), output.resolve()),
        "weights_fingerprint": weights_fingerprint(binding.weights),
        "binding": {
            **binding.decisions.model_dump(),
            "dtype": str(binding.config.dtype).removeprefix("torch."),
            "block_size": layout.block_size,
            "max_num_drafts": layout.max_num_drafts,
        },
        "circuit_digest": digest_of(to_text(binding.circuit)),
    }
