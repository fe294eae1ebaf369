"""`circuit run`: continue a prompt with a checkpoint's target and its drafter."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from rich.text import Text

from drafts.commands.artifacts import TRITON, BackendChoice, cached_artifact, num_drafts_of, open_session
from drafts.commands.metrics import metrics_lines, metrics_record
from drafts.commands.rank_options import RankOptions, joined_ranks, levers_of_environment
from drafts.commands.screen import Screen
from drafts.commands.stream import TokenStream
from drafts.commands.subject import checkpoint_folder
from drafts.config import read_config
from drafts.generation import Generation
from drafts.ranks import Ranks
from drafts.sampling import Sampling


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What to continue and how; the sampling's numbers are checked by Sampling.

    `num_drafts` and `dtype_name` are None for what the artifact was compiled for, or the defaults; `checkpoint` holds
    an artifact's weights where they are not where it says.
    """

    prompt: str
    num_drafts: int | None
    max_tokens: int
    is_circuit: bool
    temperature: float
    top_p: float
    seed: int
    dtype_name: str | None
    backend: BackendChoice
    checkpoint: Path | None = None
    ranks: RankOptions = field(default_factory=RankOptions)


def run(folder: Path, options: RunOptions, *, screen: Screen) -> None:
    """Print the prompt and its continuation as it is decoded, then what it took on standard error.

    `folder` is a checkpoint, or an artifact, whose programs run then. Where several ranks were started they share the
    drafter, and each runs the whole target.
    """
    if not options.prompt:
        raise ValueError("--prompt: expected some text, got none; give the text to continue")
    sampling = Sampling(options.temperature, options.top_p, options.seed)
    if not options.ranks.is_asked:
        _decode(folder, options, sampling, None, screen=screen)
        return
    config = read_config(checkpoint_folder(folder))
    with joined_ranks(options.ranks, config) as ranks:
        _decode(folder, options, sampling, ranks, screen=screen)


def _decode(folder: Path, options: RunOptions, sampling: Sampling, ranks: Ranks | None, *, screen: Screen) -> None:
    session, artifact = open_session(
        folder,
        screen,
        dtype_name=options.dtype_name,
        checkpoint=options.checkpoint,
        backend=options.backend.backend,
        levers=levers_of_environment(),
        ranks=ranks,
    )
    num_drafts = num_drafts_of(options.num_drafts, artifact)
    prompt_tokens = session.encode(options.prompt, max_new_tokens=options.max_tokens)
    num_tokens = len(prompt_tokens) + options.max_tokens
    if not options.is_circuit or options.backend.backend in ("reference", TRITON):
        artifact = None
    elif session.is_split and options.backend.backend is None:
        screen.note(f"shared by ranks, {session.plan}: the circuit runs interpreted; no compiled program exchanges yet")
    elif artifact is None:
        artifact = cached_artifact(
            session,
            screen,
            options.backend,
            num_tokens=num_tokens,
            num_drafts=num_drafts,
            # several ranks would write one folder at once
            compiles=ranks is None,
        )
    proposer, watch = session.drafter(
        "circuit" if options.is_circuit else "eager",
        num_tokens=num_tokens,
        num_drafts=num_drafts,
        artifact=artifact,
        backend=options.backend.backend,
    )

    def decode(on_token: Callable[[int], None]) -> Generation:
        return session.generate(
            proposer,
            prompt_tokens,
            max_new_tokens=options.max_tokens,
            num_drafts=num_drafts,
            sampling=sampling,
            on_token=on_token,
        )

    if screen.as_json:
        with screen.bar("decoding", options.max_tokens) as advance:
            generation = decode(lambda _: advance(1))
    else:
        stream = TokenStream(session.tokenizer, screen, watch=watch)
        stream.start(options.prompt, prompt_tokens)
        try:
            generation = decode(stream.take)
        finally:
            # an error's line begins one of its own
            stream.finish()
    metrics = generation.metrics
    if not screen.as_json:
        screen.err.print(Text(metrics_lines(metrics, path=watch.name), style="dim"))
    screen.emit(
        {
            "ok": True,
            "path": watch.name,
            "artifact": None if artifact is None else str(artifact.folder),
            "parallel": session.plan.model_dump(),
            "prompt_tokens": len(prompt_tokens),
            "tokens": generation.tokens,
            "text": session.tokenizer.decode(generation.tokens),
            "finish_reason": generation.finish_reason,
            **metrics_record(metrics),
        }
    )
