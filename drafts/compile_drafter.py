"""Compile a checkpoint's drafter into an artifact."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from circuit import CircuitError, dtype_name, save_document, to_text
from compiler import (
    CIRCUIT,
    FORMAT,
    PACKAGES,
    PLAN,
    Manifest,
    Plan,
    ProgramRecord,
    check_output,
    digest_of,
    file_digest,
    machine_fields,
    plan_program,
    replacing,
    sources_digest,
    write_manifest,
)
from compiler.inductor import BuildJob, build_driver, build_packages, require_cxx_compiler
from drafts.binding import DraftBinding, not_modelled, require_whole
from drafts.head_weights import OWN_NAMES
from drafts.programs import (
    COMPILED_DTYPES,
    CONTEXT_ROWS,
    ProgramKey,
    program_circuit,
    program_dims,
    program_keys,
    program_step,
)
from drafts.proposer import DraftProposer
from drafts.row_exactness import exact_chains
from drafts.weight_digests import weight_digests

ONE_THREAD_BYTES = 8 << 20  # below it a second thread waits longer at barriers than it saves
# the cache's own extent stays open; these only stand in for it while a program is traced or counted
OPEN_SIZES = {"num_blocks": 7, "num_sequences": 3}


def compile_drafter(
    proposer: DraftProposer,
    checkpoint: Path,
    output: Path,
    *,
    num_drafts: int,
    batches: Sequence[int],
    contexts: Sequence[int],
    context_rows: Sequence[int] = CONTEXT_ROWS,
    num_workers: int | None = None,
    native_products: bool = True,
    on_built: Callable[[str, float], None] | None = None,
) -> Manifest:
    """Compile the drafter of `proposer` into the folder `output`; returns its manifest.

    A chain of `num_drafts` per batch and context (in rows), and programs for so many `context_rows` at a time;
    `native_products`: whether bf16 may be multiplied by code of our own, where the CPU has the instructions for it.
    `on_built` is told each program's name and the seconds it took. `output` appears when all of it is done: an artifact
    that lies there is replaced then, and a compile that fails leaves it as it was. Raises CircuitError for a folder
    with other files and for a drafter that the circuit does not model, LoweringError without a C++ compiler and for a
    package that failed.
    """
    binding = bound_circuit(proposer, checkpoint)
    keys = program_keys(binding, num_drafts=num_drafts, batches=batches, contexts=contexts, context_rows=context_rows)
    check_output(output)
    require_cxx_compiler()
    with replacing(output) as folder:
        jobs = _jobs(binding, keys, folder / PACKAGES, native_products=native_products)
        build_packages(
            jobs,
            num_workers=min(num_workers or os.cpu_count() or 1, len(jobs)),
            on_built=None if on_built is None else lambda job, seconds: on_built(job.path.stem, seconds),
        )
        driver = build_driver(folder / PACKAGES)
        exact = exact_chains(binding, dict(zip(keys, (job.path for job in jobs), strict=True)))
        save_document(binding.circuit, folder / CIRCUIT)
        plans = tuple(
            plan_program(job.circuit, name=key.name, backend="inductor", dims=job.dims)
            for key, job in zip(keys, jobs, strict=True)
        )
        plan = Plan(backend="inductor", programs=plans)
        (folder / PLAN).write_text(plan.model_dump_json(indent=1) + "\n", encoding="utf-8")
        fields = {
            **_fields(binding, native_products=native_products),
            "checkpoint": os.path.relpath(checkpoint.resolve(), folder),
            "circuit_sha256": file_digest(folder / CIRCUIT),
            "plan_sha256": file_digest(folder / PLAN),
            "driver_sha256": file_digest(driver),
        }
        records = [_record(binding, key, job, is_exact=key in exact) for key, job in zip(keys, jobs, strict=True)]
        return write_manifest(folder, fields, records)


def bound_circuit(proposer: DraftProposer, checkpoint: Path) -> DraftBinding:
    """Return the proposer's circuit to compile; CircuitError names what it does not model, and ranks that share it."""
    binding = proposer.circuit_draft()
    if binding is None:
        gaps = "; ".join(not_modelled(proposer.config))
        raise CircuitError(f"{checkpoint}: the circuit does not model {gaps}; run with --eager")
    require_whole(binding)
    if proposer.config.dtype not in COMPILED_DTYPES.values():
        found = dtype_name(proposer.config.dtype)
        raise CircuitError(f"{checkpoint}: expected f32 or bf16 to compile in, got {found}; choose one with --dtype")
    return binding


def compile_key(binding: DraftBinding, *, batches: Sequence[int], contexts: Sequence[int]) -> str:
    """Return a digest of all that decides what a compile makes, known before it: the name of a cached artifact.

    How many drafts are asked for decides nothing: a chain's program runs any number.
    """
    keys = program_keys(binding, num_drafts=1, batches=batches, contexts=contexts)
    return digest_of(
        json.dumps({**_fields(binding, native_products=True), "programs": [key.name for key in keys]}, sort_keys=True)
    )


def touched_bytes(binding: DraftBinding, *, num_rows: int, context: int) -> int:
    """Return the bytes that one draft of `num_rows` sequences with `context` rows reads, as the nodes' costs say."""
    size = binding.state_layout.block_size
    key = ProgramKey("chain", 1, num_rows, max(1, -(-context // size)) * size)
    dims = program_dims(binding, key)
    extent = {"num_blocks": num_rows * dims["max_blocks"] + 1, "num_sequences": num_rows + 1}
    circuit = program_circuit(binding, key)
    return plan_program(circuit, name=key.name, backend="inductor", dims={**dims, **extent}).bytes_read


def threads_for(binding: DraftBinding) -> int:
    """Return the threads that pay for one draft: one where the weights it touches are few, else every core."""
    touched = touched_bytes(binding, num_rows=1, context=0)
    return 1 if touched <= ONE_THREAD_BYTES else os.cpu_count() or 1


def _jobs(binding: DraftBinding, keys: Sequence[ProgramKey], folder: Path, *, native_products: bool) -> list[BuildJob]:
    folder.mkdir()
    num_threads = threads_for(binding)
    return [
        BuildJob(
            circuit=program_step(binding, key)[0],
            dims={**program_dims(binding, key), **OPEN_SIZES},
            num_threads=num_threads,
            path=folder / f"{key.name}.so",
            native_products=native_products,
        )
        for key in keys
    ]


def _record(binding: DraftBinding, key: ProgramKey, job: BuildJob, *, is_exact: bool) -> ProgramRecord:
    return ProgramRecord(
        name=key.name,
        kind=key.kind,
        num_drafts=key.num_drafts,
        num_rows=key.num_rows,
        max_rows=key.max_rows,
        dims=program_dims(binding, key),
        num_threads=job.num_threads,
        is_row_exact=is_exact,
        circuit_digest=digest_of(to_text(job.circuit)),
        file=f"{PACKAGES}/{job.path.name}",
        file_sha256=file_digest(job.path),
    )


def _fields(binding: DraftBinding, *, native_products: bool) -> Mapping[str, object]:
    layout = binding.state_layout
    return {
        "format": FORMAT,
        "backend": "inductor",
        **machine_fields(),
        "compiler_digest": sources_digest("inductor"),
        "native_products": native_products,
        # what the head derives of lm_head is made again when the artifact is loaded
        "weights": weight_digests({name: held for name, held in binding.weights.items() if name not in OWN_NAMES}),
        "binding": {
            **binding.decisions.model_dump(),
            "dtype": str(binding.config.dtype).removeprefix("torch."),
            "block_size": layout.block_size,
            "max_num_drafts": layout.max_num_drafts,
            **binding.draft_head.recorded(),
        },
        "circuit_digest": digest_of(to_text(binding.circuit)),
    }
