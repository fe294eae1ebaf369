"""The options of `circuit parity` and `circuit bisect`; their bodies load torch and are imported when they run."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from drafts.commands.folders import cache_folder
from drafts.commands.options import Backend, Precision
from drafts.commands.screen import Screen

EXIT_MISSED = 1


class ExecutionOption(StrEnum):
    """What runs the head; `triton` runs under its interpreter where there is no GPU."""

    GOLDEN = "golden"
    EAGER = "eager"
    REFERENCE = "reference"
    LOWERED = "lowered"
    INDUCTOR = "inductor"
    TRITON = "triton"


class BisectBackend(StrEnum):
    """Whose lowerings are searched; `triton` runs under its interpreter where there is no GPU."""

    INDUCTOR = "inductor"
    TRITON = "triton"


Subject = Annotated[
    Path,
    typer.Argument(metavar="X", help="A checkpoint folder, an artifact, or a folder of golden vectors."),
]
Prompt = Annotated[
    str | None, typer.Option(help="Your own prompt instead of the built-in ones; it is cut at four lengths.")
]
Vectors = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Golden vectors recorded for X; play their cases instead of prompts.")
]
Drafts = Annotated[
    int | None, typer.Option(min=1, max=16, metavar="K", help="Tokens to draft per round; 3, or as compiled.")
]
Dtype = Annotated[Precision | None, typer.Option(help="What weights and activations are held in; f32, or as compiled.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else on standard output.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show where an error was raised.")]


def parity(
    model: Subject,
    a: Annotated[ExecutionOption | None, typer.Option("--a", help="The oracle: eager, or golden.")] = None,
    b: Annotated[
        ExecutionOption | None, typer.Option("--b", help="What is held to it: reference, inductor, triton.")
    ] = None,
    prompt: Prompt = None,
    vectors: Vectors = None,
    drafts: Drafts = None,
    is_teacher_forced: Annotated[
        bool | None,
        typer.Option("--teacher-forced/--free-running", help="Feed both sides one side's drafts; golden vectors do."),
    ] = None,
    dtype: Dtype = None,
    backend: Annotated[Backend | None, typer.Option(help="Short for --b; see docs/compiling.md.")] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the whole report as a page.")] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Compare two executions of a drafter, edge by edge.

    Both draft after the same rows; exits with 1 when an edge is out of bound. Executions: golden, eager, reference,
    lowered (op by op), triton (launch by launch),
    inductor (compiled: ids and cache rows, no edges in between). See docs/parity.md.
    """
    del debug
    screen = Screen(as_json=as_json)
    with screen.step("loading torch and transformers"):
        if ExecutionOption.TRITON in (a, b):
            from drafts.commands.interpreting import interpret_without_device  # noqa: PLC0415 - it loads torch

            # what is imported next imports triton
            interpret_without_device()
        from drafts.commands.artifacts import BackendChoice  # noqa: PLC0415 - it loads torch
        from drafts.commands.parity import ParityOptions  # noqa: PLC0415
        from drafts.commands.parity import parity as body  # noqa: PLC0415
    options = ParityOptions(
        a=None if a is None else a.value,
        b=None if b is None else b.value,
        prompt=prompt,
        vectors=vectors,
        num_drafts=drafts,
        is_teacher_forced=is_teacher_forced,
        dtype_name=None if dtype is None else dtype.value,
        backend=BackendChoice(None if backend is None else backend.value, cache_folder()),
        html=html,
    )
    if not body(model, options, screen):
        raise typer.Exit(EXIT_MISSED)


def bisect(
    model: Annotated[
        Path | None,
        typer.Argument(metavar="[X]", help="A checkpoint folder, an artifact, or a folder of golden vectors."),
    ] = None,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="DIR", help="The repro folder to write, where one is found.")
    ] = Path("circuit-repro"),
    backend: Annotated[BisectBackend, typer.Option(help="Whose lowerings are searched.")] = BisectBackend.INDUCTOR,
    is_compiled: Annotated[
        bool, typer.Option("--compiled", help="Compile each suspect; else lowerings run op by op.")
    ] = False,
    replay: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Run a repro folder again instead of searching.")
    ] = None,
    prompt: Prompt = None,
    vectors: Vectors = None,
    drafts: Drafts = None,
    dtype: Dtype = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Find the smallest set of calls that a backend gets wrong, and write it as a repro folder.

    Exits with 1 when there is one, or when a replayed one still fails. See docs/parity.md.
    """
    del debug
    if (model is None) == (replay is None):
        raise typer.BadParameter("expected a drafter to search or --replay DIR, one of them", param_hint="X")
    screen = Screen(as_json=as_json)
    with screen.step("loading torch and transformers"):
        if backend is BisectBackend.TRITON or replay is not None:
            from drafts.commands.interpreting import interpret_without_device  # noqa: PLC0415 - it loads torch

            # what is imported next imports triton, and a repro says only then whose it is
            interpret_without_device()
        from drafts.commands.bisect import BisectOptions, replay_repro  # noqa: PLC0415 - it loads torch
        from drafts.commands.bisect import bisect as body  # noqa: PLC0415
    if replay is not None:
        is_ok = replay_repro(replay, screen)
    else:
        assert model is not None
        options = BisectOptions(
            backend=backend.value,
            is_compiled=is_compiled,
            output=output,
            prompt=prompt,
            vectors=vectors,
            num_drafts=drafts,
            dtype_name=None if dtype is None else dtype.value,
        )
        is_ok = body(model, options, screen)
    if not is_ok:
        raise typer.Exit(EXIT_MISSED)
