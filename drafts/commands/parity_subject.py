"""What `circuit parity` and `circuit bisect` are pointed at: a drafter's binding, and the scripts to play on it."""

from dataclasses import dataclass
from pathlib import Path

from circuit import BindingError, CircuitError
from drafts.binding import DraftBinding, not_modelled
from drafts.commands.artifacts import BackendChoice, cached_artifact, num_drafts_of, open_session
from drafts.commands.prompts import demo_prompts
from drafts.commands.screen import Screen
from drafts.commands.session import DTYPE_NAMES, DTYPES, Session
from drafts.commands.subject import kind_of
from drafts.config import read_config
from drafts.golden_vectors import CASES, GoldenCase, GoldenVectors, load_golden, read_golden
from drafts.load_compiled import open_artifact
from drafts.path import DraftPath
from drafts.proposer import DraftProposer
from drafts.script import Propose, Script, prompt_script
from drafts.weights import head_weight_specs, load_weights

# each prompt is cut at this many neighbouring lengths, so that every place within a pool of 4 is drafted from
CUTS = 4
NUM_PROMPTS = 3


@dataclass(frozen=True, slots=True)
class Play:
    """One binding with the scripts to play on it; `programs` where it is compiled, `golden` where it was recorded."""

    binding: DraftBinding
    scripts: tuple[Script, ...]
    programs: DraftPath | None = None
    golden: GoldenVectors | None = None


@dataclass(frozen=True, slots=True)
class Wish:
    """What a command asks of its subject; `needs_programs` names the execution that compiled programs are for."""

    prompt: str | None
    vectors: Path | None
    num_drafts: int | None
    dtype_name: str | None
    backend: BackendChoice
    needs_programs: bool


def open_plays(subject: Path, wish: Wish, screen: Screen) -> list[Play]:
    """Return what to play: a subject's prompts, or the golden cases that were recorded for it, all loaded.

    Raises CircuitError or ValueError, one line, for a subject, a prompt or vectors that do not fit one another.
    """
    vectors = wish.vectors
    if vectors is None and (subject / CASES).is_file():
        vectors = subject
    if vectors is None:
        return [_prompt_play(subject, wish, screen)]
    if wish.prompt is not None:
        raise ValueError("--prompt: golden vectors have their own tokens; leave out --prompt or --vectors")
    return _golden_plays(subject, vectors, wish, screen)


def _prompt_play(subject: Path, wish: Wish, screen: Screen) -> Play:
    if wish.prompt == "":
        raise ValueError("--prompt: expected some text, got none; give the text to draft after")
    session, artifact = open_session(subject, screen, dtype_name=wish.dtype_name, checkpoint=None)
    num_drafts = num_drafts_of(wish.num_drafts, artifact)
    texts = [one.text for one in demo_prompts(NUM_PROMPTS)] if wish.prompt is None else [wish.prompt]
    scripts = tuple(
        script
        for number, text in enumerate(texts, start=1)
        for script in _cuts(session, text, f"prompt {number}", num_drafts=num_drafts)
    )
    longest = max(script.max_rows for script in scripts) - num_drafts
    if not wish.needs_programs:
        artifact = None
    elif artifact is None:
        artifact = cached_artifact(session, screen, wish.backend, num_tokens=longest, num_drafts=num_drafts)
    proposer = DraftProposer(
        session.config,
        session.weights,
        session.decisions,
        max_seq_len=longest,
        max_num_drafts=num_drafts if artifact is None else artifact.recorded.max_num_drafts,
    )
    binding = _bound(proposer, subject)
    programs = None if artifact is None else artifact.runner(proposer, checkpoint=session.folder)
    return Play(binding, scripts, programs)


def _golden_plays(subject: Path, folder: Path, wish: Wish, screen: Screen) -> list[Play]:
    cases = read_golden(folder)
    artifact = None
    wanted = subject
    if subject.resolve() != folder.resolve():
        if kind_of(subject) == "artifact":
            artifact = open_artifact(subject)
            wanted = artifact.checkpoint
        cases = [case for case in cases if (folder / case.checkpoint).resolve() == wanted.resolve()]
        if not cases:
            raise CircuitError(
                f"{subject}: expected a checkpoint that {folder} was recorded for, got none of its cases; name one of "
                f"its checkpoints, or {folder} itself for all of them"
            )
    if wish.needs_programs and artifact is None:
        raise CircuitError(
            f"{subject}: expected an artifact to play golden vectors on, got none; circuit compile the checkpoint first"
        )
    plays = []
    with screen.bar("loading golden cases", len(cases)) as advance:
        for case in cases:
            plays.append(_golden_play(folder, case, wish, artifact_folder=None if artifact is None else subject))
            advance(1)
    return plays


def _golden_play(folder: Path, case: GoldenCase, wish: Wish, *, artifact_folder: Path | None) -> Play:
    recorded = DTYPE_NAMES[case.torch_dtype]
    if wish.dtype_name not in (None, recorded):
        raise ValueError(f"--dtype: {case.name} was recorded in {recorded}, got {wish.dtype_name}; leave it out")
    checkpoint = folder / case.checkpoint
    config = read_config(checkpoint, dtype=DTYPES[recorded])
    artifact = None if artifact_folder is None or not wish.needs_programs else open_artifact(artifact_folder)
    if artifact is not None and (artifact.recorded.decisions, artifact.recorded.torch_dtype) != (
        case.decisions,
        case.torch_dtype,
    ):
        raise CircuitError(
            f"{artifact_folder}: compiled with other decisions or in another dtype than {case.name} was recorded with; "
            f"compile it with {case.decisions} in {recorded}"
        )
    weights = load_weights(checkpoint, head_weight_specs(config, target_norm=case.decisions.applies_target_norm))
    vectors = load_golden(folder, case)
    scripts = tuple(vectors.scripts())
    chains = [one.num_drafts for script in scripts for one in script.operations if isinstance(one, Propose)]
    proposer = DraftProposer(
        config,
        weights,
        case.decisions,
        max_seq_len=max(script.max_rows for script in scripts),
        # as deep as the recorded rewinds go: a ring that holds two chains and a pool
        max_num_drafts=artifact.recorded.max_num_drafts if artifact is not None else max(16, *chains),
    )
    programs = None if artifact is None else artifact.runner(proposer, checkpoint=checkpoint)
    return Play(_bound(proposer, checkpoint), scripts, programs, vectors)


def _bound(proposer: DraftProposer, place: Path) -> DraftBinding:
    binding = proposer.circuit_draft()
    if binding is None:
        gaps = "; ".join(not_modelled(proposer.config))
        raise BindingError(f"{place}: the circuit does not model {gaps}; there is nothing to compare")
    return binding


def _cuts(session: Session, text: str, label: str, *, num_drafts: int) -> list[Script]:
    """Return the prompt with its last 0, 1, 2, ... tokens cut, each with the target's hiddens."""
    tokens = session.encode(text, max_new_tokens=num_drafts)
    if len(tokens) < 2:
        raise ValueError(
            f"--prompt: expected at least 2 tokens, got {len(tokens)}; a draft needs the hidden before one"
        )
    hiddens = session.target.open_sequence().prefill(tokens).hidden_rows(session.decisions.supplied_hidden)
    return [
        prompt_script(f"{label} ({length} tokens)", tokens[:length], hiddens[:length], num_drafts=num_drafts)
        for length in range(max(2, len(tokens) - CUTS + 1), len(tokens) + 1)
    ]
