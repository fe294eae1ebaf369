"""The compiled programs behind a command: of an artifact it is pointed at, or compiled into the cache folder."""

from dataclasses import dataclass
from pathlib import Path

import torch

from circuit import CircuitError, LoweringError
from compiler import MANIFEST
from compiler.inductor import has_cxx_compiler
from drafts.cache import DEFAULT_MAX_NUM_DRAFTS
from drafts.commands.screen import Screen, plural
from drafts.commands.session import DTYPE_NAMES, Session, load_session
from drafts.commands.subject import kind_of
from drafts.compile_drafter import bound_circuit, compile_drafter, compile_key
from drafts.levers import ModelLevers
from drafts.load_compiled import Artifact, open_artifact
from drafts.programs import program_keys
from drafts.proposer import DraftProposer
from drafts.ranks import Ranks

DEFAULT_DTYPE = "f32"
TRITON = "triton"
DEFAULT_NUM_DRAFTS = 3
# contexts are compiled in powers of two from here on, so that prompts of one kind share an artifact
MIN_CONTEXT = 1024


@dataclass(frozen=True, slots=True)
class BackendChoice:
    """What runs the circuit: None leaves it to what there is; `cache` is the folder of artifacts compiled on demand."""

    backend: str | None  # reference, inductor, triton
    cache: Path


def open_session(
    folder: Path,
    screen: Screen,
    *,
    dtype_name: str | None,
    checkpoint: Path | None,
    backend: str | None = None,
    levers: ModelLevers | None = None,
    ranks: Ranks | None = None,
) -> tuple[Session, Artifact | None]:
    """Load what a command is pointed at: a checkpoint, or an artifact over its checkpoint; onto the GPU for triton.

    Raises ValueError for a dtype that the artifact was not compiled in, and for `checkpoint` beside a checkpoint;
    LoweringError for an artifact of a drafter that `ranks` share.
    """
    if kind_of(folder) != "artifact":
        if checkpoint is not None:
            raise ValueError(f"--checkpoint: expected an artifact to run over it, got the checkpoint {folder}")
        loaded = load_session(
            folder,
            screen,
            dtype_name=dtype_name or DEFAULT_DTYPE,
            device=device_of(backend),
            levers=levers,
            ranks=ranks,
        )
        return loaded, None
    if ranks is not None and (levers is None or levers.mtp_ep_propose):
        raise LoweringError(
            f"{folder}: an artifact's programs exchange nothing with other ranks, got {ranks.plan.num_ranks} of them; "
            "name the checkpoint, which runs interpreted, or start one rank"
        )
    with screen.step("checking the artifact"):
        artifact = open_artifact(folder)
    compiled = DTYPE_NAMES[artifact.recorded.torch_dtype]
    if dtype_name not in (None, compiled):
        raise ValueError(f"--dtype: {folder} was compiled in {compiled}, got {dtype_name}; compile it again in that")
    weights_at = checkpoint or artifact.checkpoint
    session = load_session(
        weights_at, screen, dtype_name=compiled, decisions=artifact.recorded.decisions, levers=levers, ranks=ranks
    )
    return session, artifact


def device_of(backend: str | None) -> str:
    """Return the device that a checkpoint is loaded onto for a backend: a GPU for triton where there is one."""
    return "cuda" if backend == TRITON and torch.cuda.is_available() else "cpu"


def num_drafts_of(asked: int | None, artifact: Artifact | None) -> int:
    """Return the drafts a round: as asked, else as compiled, else the default; ValueError for more than compiled."""
    if artifact is None:
        return asked or DEFAULT_NUM_DRAFTS
    limit = artifact.recorded.max_num_drafts
    if asked is not None and asked > limit:
        raise ValueError(f"--drafts: {artifact.folder} runs chains of up to {plural(limit, 'draft')}, got {asked}")
    return asked or artifact.num_drafts


def cached_artifact(
    session: Session, screen: Screen, choice: BackendChoice, *, num_tokens: int, num_drafts: int, compiles: bool = True
) -> Artifact | None:
    """Return the artifact that serves texts of up to `num_tokens`, compiled now when the cache folder lacks it.

    None means the interpreter: asked for, or the choice is left open and there is no C++ compiler, no folder to write,
    or `compiles` is off; then a line says so. With the inductor backend asked for these are errors.
    """
    if choice.backend in ("reference", TRITON):
        return None
    is_asked = choice.backend == "inductor"
    proposer = _proposer(session)
    binding = bound_circuit(proposer, session.folder)
    batches, contexts = (1,), (_context_rows(session, num_tokens + num_drafts),)
    key = compile_key(binding, batches=batches, contexts=contexts)
    folder = choice.cache / f"{session.folder.resolve().name or 'checkpoint'}-{key[:16]}"
    if (folder / MANIFEST).exists():
        try:
            return open_artifact(folder)
        except CircuitError as error:
            screen.note(f"{error}; compiling it again")
    if not compiles and not is_asked:
        screen.note("the circuit runs interpreted; with --backend inductor it is compiled once and runs natively")
        return None
    if not is_asked and not has_cxx_compiler():
        screen.note("no C++ compiler (g++ on PATH, or CXX): the circuit runs interpreted, which is slow")
        return None
    keys = program_keys(binding, num_drafts=num_drafts, batches=batches, contexts=contexts)
    try:
        with screen.bar(f"compiling into {folder}", len(keys)) as advance:
            compile_drafter(
                proposer,
                session.folder,
                folder,
                num_drafts=num_drafts,
                batches=batches,
                contexts=contexts,
                on_built=lambda name, seconds: advance(1),
            )
    except OSError as error:
        if is_asked:
            raise
        screen.note(f"{folder}: {error.strerror or error}: the circuit runs interpreted, which is slow")
        return None
    screen.note(f"compiled into {folder}; the next run takes it from there")
    return open_artifact(folder)


def _proposer(session: Session) -> DraftProposer:
    """A proposer to bind and compile the circuit of; its cache is as small as one may be."""
    return DraftProposer(
        session.config,
        session.weights,
        session.decisions,
        max_seq_len=1,
        max_num_drafts=DEFAULT_MAX_NUM_DRAFTS,
        levers=session.levers,
        ranks=session.ranks,
    )


def _context_rows(session: Session, num_rows: int) -> int:
    """Return a bucket of `num_rows` cache rows, no longer than the checkpoint's positions and a chain beyond them."""
    bucket = MIN_CONTEXT
    while bucket < num_rows:
        bucket *= 2
    return min(bucket, session.config.max_position_embeddings + DEFAULT_MAX_NUM_DRAFTS)
