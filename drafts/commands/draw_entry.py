"""The options of `circuit draw`; its body loads torch and is imported when it runs."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from drafts.commands.folders import cache_folder
from drafts.commands.options import Backend
from drafts.commands.screen import Screen


class ProgramOption(StrEnum):
    """What a drafter's head is cut to."""

    STEP = "step"
    CHAIN = "chain"
    CONTEXT = "context"


class PlanOption(StrEnum):
    """Whose plan is drawn; `triton` is planned, not built."""

    REFERENCE = "reference"
    INDUCTOR = "inductor"
    TRITON = "triton"


class ThemeOption(StrEnum):
    """The colours of a picture."""

    LIGHT = "light"
    DARK = "dark"


def draw(
    x: Annotated[
        str, typer.Argument(metavar="X", help="A document, a checkpoint folder, an artifact, demo or glm-5.3-flash.")
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help=".svg .png .html .dot .mmd .json .txt")
    ],
    program: Annotated[ProgramOption | None, typer.Option(help="A program of the head; else all of it.")] = None,
    drafts: Annotated[int, typer.Option(min=1, max=16, metavar="K", help="Drafts of a chain.")] = 3,
    plan: Annotated[PlanOption | None, typer.Option(help="Lowerings, costs and launches of a backend.")] = None,
    other: Annotated[
        str | None, typer.Option("--diff", metavar="OTHER", help="Compare: X before, OTHER after.")
    ] = None,
    other_plan: Annotated[
        PlanOption | None, typer.Option("--diff-plan", help="Compare: the plan of the other side.")
    ] = None,
    overlay: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="Lay on what bench, plan, parity, run or trace wrote.")
    ] = None,
    dims: Annotated[str, typer.Option(metavar="NAME=SIZE,...", help="Sizes to plan at, over the usual ones.")] = "",
    theme: Annotated[ThemeOption, typer.Option(help="Colours of a picture.")] = ThemeOption.LIGHT,
    width: Annotated[int, typer.Option(min=24, metavar="CELLS", help="Width of a .txt.")] = 120,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object and nothing else on standard output.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error was raised.")] = False,
) -> None:
    """Draw a circuit, the format by the file's ending.

    .html is an interactive page in one file; .json opens in Model Explorer. See docs/drawing.md.
    """
    del debug
    screen = Screen(as_json=as_json)
    with screen.step("loading torch"):
        from drafts.commands.draw import DrawOptions  # noqa: PLC0415 - it loads torch
        from drafts.commands.draw import draw as body  # noqa: PLC0415
    options = DrawOptions(
        program=None if program is None else program.value,
        num_drafts=drafts,
        plan=None if plan is None else plan.value,
        other=other,
        other_plan=None if other_plan is None else other_plan.value,
        overlays=tuple(overlay or ()),
        dims=dims,
        theme=theme.value,
        width=width,
    )
    body(x, output, options, screen)


def trace(
    x: Annotated[Path, typer.Argument(metavar="CHECKPOINT|DIR", help="A checkpoint folder, or an artifact.")],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="The timeline to write, a .json.")],
    prompt: Annotated[str | None, typer.Option(help="The text to draft after; else a built-in one.")] = None,
    drafts: Annotated[int | None, typer.Option(min=1, max=16, metavar="K", help="Drafts; 3, or as compiled.")] = None,
    runs: Annotated[int, typer.Option(min=1, max=100, metavar="N", help="Chains to time.")] = 3,
    backend: Annotated[Backend | None, typer.Option(help="What runs it: call by call, or compiled.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object and nothing else on standard output.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error was raised.")] = False,
) -> None:
    """Time a chain of drafts and write a timeline, measured beside planned.

    It opens in ui.perfetto.dev and chrome://tracing, and lies over a drawing with `circuit draw --overlay`.
    """
    del debug
    screen = Screen(as_json=as_json)
    with screen.step("loading torch and transformers"):
        from drafts.commands.artifacts import BackendChoice  # noqa: PLC0415 - it loads torch
        from drafts.commands.timeline import trace as body  # noqa: PLC0415
    choice = BackendChoice(None if backend is None else backend.value, cache_folder())
    body(x, output, screen, prompt=prompt, num_drafts=drafts, num_runs=runs, backend=choice)
