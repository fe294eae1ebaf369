"""The options of `circuit draw`; its body loads torch and is imported when it runs."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from drafts.commands.folders import cache_folder
from drafts.commands.options import Backend
from drafts.commands.screen import Screen

ENDINGS = (".html", ".svg", ".png", ".dot", ".mmd", ".json", ".txt")
DEFAULT_NUM_DRAFTS = 3


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
    drafts: Annotated[
        int | None, typer.Option(min=1, max=16, metavar="K", help="Drafts of a chain; 3 by default.")
    ] = None,
    plan: Annotated[PlanOption | None, typer.Option(help="Lowerings, costs and launches of a backend.")] = None,
    source: Annotated[
        bool, typer.Option("--source", help="With --plan inductor, the C++ it generates; up to minutes.")
    ] = False,
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
    tp: Annotated[
        int, typer.Option("--tp", min=1, max=4096, metavar="N", help="Ranks that share heads and lm_head.")
    ] = 1,
    ep: Annotated[int, typer.Option("--ep", min=1, max=4096, metavar="N", help="Ranks that share the experts.")] = 1,
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
    # what can be refused is refused before anything is loaded
    _check_files(output, overlay or [])
    if drafts is not None and program is not ProgramOption.CHAIN:
        raise ValueError("--drafts: expected --program chain beside it, which is what is unrolled; add it")
    plans = {plan, other_plan} - {None}
    if dims and not plans:
        raise ValueError("--dims: expected --plan beside it, whose sizes these are; add --plan reference")
    if source and PlanOption.INDUCTOR not in plans:
        raise ValueError("--source: expected --plan inductor beside it, whose kernels are generated; add it")
    screen = Screen(as_json=as_json)
    with screen.step("loading torch"):
        from drafts.commands.draw import DrawOptions  # noqa: PLC0415 - it loads torch
        from drafts.commands.draw import draw as body  # noqa: PLC0415
        from drafts.parallel import ParallelPlan  # noqa: PLC0415
    options = DrawOptions(
        program=None if program is None else program.value,
        num_drafts=drafts or DEFAULT_NUM_DRAFTS,
        plan=None if plan is None else plan.value,
        has_source=source,
        other=other,
        other_plan=None if other_plan is None else other_plan.value,
        overlays=tuple(overlay or ()),
        dims=dims,
        theme=theme.value,
        width=width,
        parallel=ParallelPlan(tp=tp, ep=ep),
    )
    body(x, output, options, screen)


def _check_files(output: Path, overlays: list[Path]) -> None:
    if output.suffix not in ENDINGS:
        got = f"the ending {output.suffix}" if output.suffix else "none"
        raise ValueError(f"draw -o: expected a file that ends in {', '.join(ENDINGS)}, got {got}")
    if not output.parent.is_dir():
        raise ValueError(f"draw -o {output}: expected a folder that exists, {output.parent} does not; make it first")
    for path in overlays:
        if not path.is_file():
            raise ValueError(f"--overlay {path}: expected a file that another command wrote, got none; check the path")


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
