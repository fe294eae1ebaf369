"""Load a compiled drafter from its artifact, in a process that needs no compiler."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from circuit import BindingError, CircuitError, to_text
from compiler import Manifest, ProgramRecord, digest_of, read_manifest
from compiler.inductor import PackagedProgram
from drafts.binding import DraftBinding
from drafts.compiled_runner import CompiledRunner
from drafts.config import read_config
from drafts.decisions import Decisions
from drafts.draft_head import DraftVocab, HeadForm
from drafts.levers import ModelLevers
from drafts.programs import COMPILED_DTYPES, ProgramKey, program_dims, program_step
from drafts.proposer import DraftProposer
from drafts.weight_digests import different_weights

SHOWN_WEIGHTS = 3


@dataclass(frozen=True, slots=True)
class CompiledDrafter:
    """A drafter loaded from an artifact: its proposer with the compiled circuit swapped in."""

    manifest: Manifest
    proposer: DraftProposer
    runner: CompiledRunner


class RecordedBinding(BaseModel):
    """What a manifest says of the binding that was compiled."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    decisions: Decisions
    dtype: Literal["float32", "bfloat16"]
    block_size: Annotated[int, Field(ge=1)]
    max_num_drafts: Annotated[int, Field(ge=1)]
    draft_head: HeadForm = "bf16"
    draft_vocab: DraftVocab | None = None

    @property
    def levers(self) -> ModelLevers:
        """The levers that the circuit was declared with."""
        return ModelLevers(draft_head=self.draft_head, draft_vocab=self.draft_vocab)

    @property
    def torch_dtype(self) -> torch.dtype:
        """The model dtype."""
        return COMPILED_DTYPES[self.dtype]


@dataclass(frozen=True, slots=True)
class Artifact:
    """An artifact that was read and checked: its folder, its manifest, and the binding that this records."""

    folder: Path
    manifest: Manifest
    recorded: RecordedBinding

    @property
    def num_drafts(self) -> int:
        """Drafts of the chain that it was compiled for; its programs run longer ones too."""
        return max(program.num_drafts for program in self.manifest.programs)

    @property
    def max_rows(self) -> int:
        """Cache rows of the longest sequence that one of its programs serves."""
        return max(program.max_rows for program in self.manifest.programs)

    @property
    def checkpoint(self) -> Path:
        """The folder of weights that the manifest points to; CircuitError when none lies there any more."""
        checkpoint = (self.folder.resolve() / self.manifest.checkpoint).resolve()
        if not (checkpoint / "config.json").is_file():
            raise CircuitError(
                f"{self.folder}: expected its checkpoint in {checkpoint}, got none; name it with --checkpoint"
            )
        return checkpoint

    def runner(self, proposer: DraftProposer, *, checkpoint: Path) -> CompiledRunner:
        """Return a runner of its programs over a proposer that was made as `recorded` says.

        Raises CircuitError for other weights than it was compiled for, naming `checkpoint`, and for another circuit.
        """
        if different := different_weights(proposer.weights, self.manifest.weights):
            shown = ", ".join(different[:SHOWN_WEIGHTS])
            more = f" and {len(different) - SHOWN_WEIGHTS} more" if len(different) > SHOWN_WEIGHTS else ""
            raise CircuitError(
                f"{checkpoint}: expected the weights that {self.folder} was compiled for, got another {shown}{more}; "
                "name its own checkpoint, or compile again"
            )
        binding = proposer.circuit_draft()
        if binding is None or digest_of(to_text(binding.circuit)) != self.manifest.circuit_digest:
            raise CircuitError(
                f"{self.folder}: compiled from another circuit than this version declares; compile again"
            )
        programs = {_key(record): _load_program(self.folder, record, binding) for record in self.manifest.programs}
        exact = {_key(record) for record in self.manifest.programs if record.is_row_exact}
        return CompiledRunner(
            binding,
            programs,
            backend=self.manifest.backend,
            inexact=() if proposer.levers.mtp_batch_exact else set(programs) - exact,
            exact=exact,
        )


def open_artifact(folder: Path) -> Artifact:
    """Read and check an artifact of this machine, hashes included; CircuitError is one line that says what is wrong."""
    manifest = read_manifest(folder)
    return Artifact(folder, manifest, recorded_binding(manifest, folder))


def load_compiled(
    folder: Path, *, checkpoint: Path | None = None, max_seq_len: int | None = None, num_sequences: int = 1
) -> CompiledDrafter:
    """Load an artifact over its checkpoint's weights; needs no compiler.

    `checkpoint` defaults to where the manifest says it was; `max_seq_len` to the longest sequence that a program
    serves. Raises CircuitError, one line, for an artifact that is damaged or of another machine, and for a checkpoint
    whose weights are not those it was compiled for.
    """
    artifact = open_artifact(folder)
    weights_at = checkpoint or artifact.checkpoint
    limit = read_config(weights_at).max_position_embeddings
    proposer = DraftProposer.from_checkpoint(
        weights_at,
        dtype=artifact.recorded.torch_dtype,
        decisions=artifact.recorded.decisions,
        max_seq_len=max_seq_len or min(artifact.max_rows, limit),
        max_num_drafts=artifact.recorded.max_num_drafts,
        num_sequences=num_sequences,
        levers=artifact.recorded.levers,
    )
    runner = artifact.runner(proposer, checkpoint=weights_at)
    proposer.set_circuit_draft(runner)
    return CompiledDrafter(artifact.manifest, proposer, runner)


def recorded_binding(manifest: Manifest, folder: Path) -> RecordedBinding:
    """Return what the manifest records of the binding; CircuitError for fields that this version does not know."""
    fields = dict(manifest.binding)
    decisions = {name: fields.pop(name) for name in Decisions.model_fields if name in fields}
    vocab = str(fields.pop("draft_vocab", ""))
    try:
        ids = [int(token) if token.isdecimal() else token for token in vocab.split()] or None
        return RecordedBinding.model_validate(
            {"decisions": Decisions.model_validate(decisions), **fields, "draft_vocab": ids}
        )
    except ValidationError as error:
        fault = error.errors()[0]
        place = ".".join(str(part) for part in fault["loc"])
        raise CircuitError(f"{folder}: binding.{place}: {fault['msg']}; compile again") from None


def _key(record: ProgramRecord) -> ProgramKey:
    return ProgramKey(record.kind, record.num_drafts, record.num_rows, record.max_rows)


def _load_program(folder: Path, record: ProgramRecord, binding: DraftBinding) -> PackagedProgram:
    key = _key(record)
    circuit, feedback = program_step(binding, key)
    if digest_of(to_text(circuit)) != record.circuit_digest or record.dims != program_dims(binding, key):
        raise CircuitError(f"{folder}: {record.name} was compiled from another circuit; compile again")
    try:
        return PackagedProgram(circuit, record.dims, folder / record.file, feedback=feedback)
    except (BindingError, OSError) as error:
        raise CircuitError(f"{folder / record.file}: cannot be loaded: {error}; compile again") from error
