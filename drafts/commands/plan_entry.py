"""The options of `circuit plan`; its body loads torch and is imported when it runs."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from drafts.commands.folders import cache_folder
from drafts.commands.screen import Screen


class PlanBackendName(StrEnum):
    """What would run the drafter; `triton` is planned, not built."""

    TRITON = "triton"
    INDUCTOR = "inductor"
    REFERENCE = "reference"


class PlanDtype(StrEnum):
    """What weights and caches would be held in."""

    F32 = "f32"
    BF16 = "bf16"


def plan(
    x: Annotated[
        str | None,
        typer.Argument(metavar="[X]", help="A checkpoint folder, a config.json, an artifact, demo or glm-5.3-flash."),
    ] = None,
    device: Annotated[str, typer.Option(metavar="NAME", help="A device, or this-machine once measured.")] = "h200",
    batch: Annotated[str, typer.Option(metavar="N,...", help="Sequences side by side.")] = "1",
    context: Annotated[
        str | None,
        typer.Option(metavar="ROWS,...", help="Rows of a sequence: 4k,131072; 4k by default."),
    ] = None,
    drafts: Annotated[int, typer.Option(min=1, max=16, metavar="K", help="Tokens to draft per round.")] = 3,
    backend: Annotated[PlanBackendName | None, typer.Option(help="What would run it; by the device.")] = None,
    dtype: Annotated[PlanDtype | None, typer.Option(help="What weights are held in; as the config says.")] = None,
    levers: Annotated[str, typer.Option(metavar="NAME=VALUE,...", help="Switches of the drafter.")] = "",
    bandwidth: Annotated[
        str | None, typer.Option(metavar="RATE", help="Instead of the device's: 4.3TB/s, 864GB/s.")
    ] = None,
    launch_gap: Annotated[
        float | None,
        typer.Option(min=0.0, metavar="US", help="Microseconds between launches, if not the device's."),
    ] = None,
    reserve: Annotated[float, typer.Option(min=0.0, max=1e6, metavar="GB", help="Memory that the target takes.")] = 0.0,
    compare: Annotated[
        tuple[str, str] | None,
        typer.Option(metavar="A B", help="Two devices, settings (batch=4,index_share=off) or configs, side by side."),
    ] = None,
    speedup: Annotated[bool, typer.Option("--speedup", help="The gain end to end, and the best K.")] = False,
    acceptance: Annotated[
        str | None, typer.Option(metavar="A,...", help="Share of drafts that stand, given the one before.")
    ] = None,
    verify_us: Annotated[
        str | None, typer.Option(metavar="US,...", help="A target pass over 1, 2, .. tokens; the last goes on.")
    ] = None,
    draft_us: Annotated[
        str | None, typer.Option(metavar="US,...", help="Chains of 1, 2, .. drafts; by default the plan's floor.")
    ] = None,
    measured: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Take all three from what `circuit demo --json` printed.")
    ] = None,
    measure: Annotated[bool, typer.Option("--measure", help="Measure this machine's memory; no X needed.")] = False,
    full: Annotated[bool, typer.Option("--full", help="List the launches of every batch and context.")] = False,
    as_markdown: Annotated[bool, typer.Option("--md", help="Print Markdown tables.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object and nothing else on standard output.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error was raised.")] = False,
) -> None:
    """Plan a drafter on a device: bytes, floor, launches, memory.

    Works from a config.json alone. A floor is what no kernel beats: the slower of moving the bytes and computing.
    """
    del debug
    screen = Screen(as_json=as_json)
    with screen.step("loading torch"):
        from drafts.commands import plan as body  # noqa: PLC0415 - it loads torch
        from drafts.commands.plan_request import PlanRequest, SpeedupRequest  # noqa: PLC0415
    store = cache_folder() / "this-machine.toml"
    if measure:
        body.measure(store, screen)
        if x is None:
            return
        device = body.THIS_MACHINE
    if speedup and compare is not None:
        raise typer.BadParameter("expected one of --speedup and --compare, got both")
    asked = {"--acceptance": acceptance, "--verify-us": verify_us, "--draft-us": draft_us, "--measured": measured}
    if stray := [name for name, given in asked.items() if given is not None and not speedup]:
        raise typer.BadParameter(f"{stray[0]} belongs to --speedup; add that")
    request = PlanRequest(
        subject=x,
        device=device,
        batches=batch,
        contexts=context,
        num_drafts=drafts,
        backend=None if backend is None else backend.value,
        dtype_name=None if dtype is None else dtype.value,
        levers=levers,
        bandwidth=bandwidth,
        launch_gap_us=launch_gap,
        reserve_gb=reserve,
        measured_device=store,
    )
    if speedup:
        body.speedup(
            request, SpeedupRequest(acceptance, verify_us, draft_us, measured), screen, as_markdown=as_markdown
        )
    elif compare is not None:
        body.compare(request, compare, screen, as_markdown=as_markdown)
    else:
        body.plan(request, screen, as_markdown=as_markdown, is_full=full)
