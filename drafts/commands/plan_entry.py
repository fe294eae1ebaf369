"""The options of `circuit plan`; its body loads torch and is imported when it runs."""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from drafts.commands.folders import cache_folder
from drafts.commands.options import Precision
from drafts.commands.screen import Screen

DEFAULT_DEVICE = "h200"
DEFAULT_NUM_DRAFTS = 3


class PlanBackendName(StrEnum):
    """What would run the drafter; `triton` is planned, not built."""

    TRITON = "triton"
    INDUCTOR = "inductor"
    REFERENCE = "reference"


def plan(
    x: Annotated[
        str | None,
        typer.Argument(metavar="[X]", help="A checkpoint folder, a config.json, an artifact, demo or glm-5.3-flash."),
    ] = None,
    device: Annotated[
        str | None, typer.Option(metavar="NAME", help="A device, or this-machine once measured; h200 by default.")
    ] = None,
    batch: Annotated[
        str | None, typer.Option(metavar="N,...", help="Sequences side by side: 1,4,16; 1 by default.")
    ] = None,
    context: Annotated[
        str | None,
        typer.Option(metavar="ROWS,...", help="Rows of a sequence: 4k,131072; 4k by default."),
    ] = None,
    drafts: Annotated[
        int | None, typer.Option(min=1, max=16, metavar="K", help="Tokens to draft per round; 3 by default.")
    ] = None,
    backend: Annotated[PlanBackendName | None, typer.Option(help="What would run it; by the device.")] = None,
    dtype: Annotated[Precision | None, typer.Option(help="What weights are held in; as the config says.")] = None,
    levers: Annotated[
        str | None, typer.Option(metavar="NAME=VALUE,...", help="Switches of the drafter: index_share=off.")
    ] = None,
    bandwidth: Annotated[
        str | None, typer.Option(metavar="RATE", help="Instead of the device's: 4.3TB/s, 864GB/s.")
    ] = None,
    launch_gap: Annotated[
        float | None,
        typer.Option(min=0.0, max=1e6, metavar="US", help="Microseconds between launches, if not the device's."),
    ] = None,
    reserve: Annotated[
        float | None, typer.Option(min=0.0, max=1e6, metavar="GB", help="Memory that the target takes; 0 by default.")
    ] = None,
    tp: Annotated[
        int | None, typer.Option("--tp", min=1, max=4096, metavar="N", help="Ranks that share heads and lm_head.")
    ] = None,
    ep: Annotated[
        int | None, typer.Option("--ep", min=1, max=4096, metavar="N", help="Ranks that share the experts.")
    ] = None,
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
    given = {
        "X": x,
        "--device": device,
        "--batch": batch,
        "--context": context,
        "--drafts": drafts,
        "--backend": backend,
        "--dtype": dtype,
        "--levers": levers,
        "--bandwidth": bandwidth,
        "--launch-gap": launch_gap,
        "--reserve": reserve,
        "--tp": tp,
        "--ep": ep,
    }
    of_speedup = {"--acceptance": acceptance, "--verify-us": verify_us, "--draft-us": draft_us, "--measured": measured}
    _refuse_what_would_be_ignored(
        given,
        of_speedup,
        {"--speedup": speedup, "--compare": compare is not None, "--measure": measure, "--full": full},
    )
    if as_markdown and as_json:
        raise typer.BadParameter("expected one of --md and --json, got both")
    if measure:
        body.measure(store, screen, as_markdown=as_markdown, is_alone=x is None)
        if x is None:
            return
        device = body.THIS_MACHINE
    request = PlanRequest(
        subject=x,
        device=DEFAULT_DEVICE if device is None else device,
        batches="1" if batch is None else batch,
        contexts=context,
        num_drafts=DEFAULT_NUM_DRAFTS if drafts is None else drafts,
        backend=None if backend is None else backend.value,
        dtype_name=None if dtype is None else dtype.value,
        levers=levers or "",
        bandwidth=bandwidth,
        launch_gap_us=launch_gap,
        reserve_gb=reserve or 0.0,
        measured_device=store,
        tp=tp or 1,
        ep=ep or 1,
    )
    if speedup:
        body.speedup(
            request, SpeedupRequest(acceptance, verify_us, draft_us, measured), screen, as_markdown=as_markdown
        )
    elif compare is not None:
        body.compare(request, compare, screen, as_markdown=as_markdown)
    else:
        body.plan(request, screen, as_markdown=as_markdown, is_full=full)


def _refuse_what_would_be_ignored(
    given: Mapping[str, object], of_speedup: Mapping[str, object], modes: Mapping[str, bool]
) -> None:
    """Raise BadParameter for options that contradict each other, and for one that nothing would read."""
    is_speedup, is_measure = modes["--speedup"], modes["--measure"]
    for one, other in (
        ("--speedup", "--compare"),
        ("--measure", "--speedup"),
        ("--measure", "--compare"),
        ("--full", "--speedup"),
        ("--full", "--compare"),
    ):
        if modes[one] and modes[other]:
            raise typer.BadParameter(f"expected one of {one} and {other}, got both")
    named = [name for name, value in given.items() if value is not None]
    if not is_speedup and (stray := [name for name, value in of_speedup.items() if value is not None]):
        raise typer.BadParameter(f"{stray[0]} belongs to --speedup; add that")
    if is_measure and "--device" in named:
        raise typer.BadParameter("--measure plans on this machine; leave out --device")
    if is_measure and named and "X" not in named:
        raise typer.BadParameter(f"{named[0]} belongs to a plan; name what to plan beside --measure")
    times = next((name for name in ("--measured", "--draft-us") if of_speedup[name] is not None), None)
    if times and named:
        raise typer.BadParameter(f"{times} gives the times, so that nothing is planned; leave out {named[0]}")
    if is_speedup and "--drafts" in named:
        raise typer.BadParameter("--speedup plans as many drafts as --acceptance has numbers; leave out --drafts")
