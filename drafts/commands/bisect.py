"""`circuit bisect`: the smallest set of calls that a backend gets wrong, written as a repro; or a repro run again."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from compiler import (
    CompiledPartRunner,
    OpByOpRunner,
    PartRunner,
    check_repro_output,
    load_lowerings,
    read_repro,
    replay,
    write_repro,
)
from compiler.triton import LaunchPartRunner
from drafts.bisect_drafter import DrafterBisection, Finding
from drafts.commands.artifacts import TRITON, BackendChoice
from drafts.commands.folders import cache_folder
from drafts.commands.parity_subject import Play, Wish, open_plays
from drafts.commands.screen import Screen, plural
from drafts.launch_steps import fused_at


@dataclass(frozen=True, slots=True)
class BisectOptions:
    """What is searched, over which prompts or golden cases, and where a repro goes."""

    backend: str
    is_compiled: bool
    output: Path
    prompt: str | None
    vectors: Path | None
    num_drafts: int | None
    dtype_name: str | None


def bisect(subject: Path, options: BisectOptions, screen: Screen) -> bool:
    """Search, write what is found, and return whether nothing was; what cannot be written is refused first."""
    load_lowerings(options.backend)
    if options.backend == TRITON and options.is_compiled:
        raise ValueError("--compiled: triton's launches are what runs, compiled or interpreted; leave it out")
    check_repro_output(options.output)
    wish = Wish(
        prompt=options.prompt,
        vectors=options.vectors,
        num_drafts=options.num_drafts,
        dtype_name=options.dtype_name,
        backend=BackendChoice("reference", cache_folder()),
        needs_programs=False,
    )
    plays = open_plays(subject, wish, screen)
    runner = _runner(options.backend, is_compiled=options.is_compiled)
    num_scripts = sum(len(play.scripts) for play in plays)
    with screen.bar(f"searching the lowerings of {options.backend}", num_scripts) as advance:
        found = _first(plays, runner, lambda: advance(1))
    if found is None:
        screen.out.print(f"every call of {options.backend} is within its bound, over {plural(num_scripts, 'prompt')}")
        screen.emit({"ok": True, "backend": options.backend, "compiled": options.is_compiled, "prompts": num_scripts})
        return True
    play, finding = found
    write_repro(
        options.output,
        finding.run,
        finding.culprit,
        runner,
        dtype=play.binding.config.dtype,
        seen_in=finding.seen_in,
    )
    _show(screen, options, finding)
    return False


def replay_repro(folder: Path, screen: Screen) -> bool:
    """Run a repro again, print its edges, and return whether it is within its bounds now."""
    repro = read_repro(folder)
    record = repro.record
    with screen.step("running the part"):
        outcome = replay(repro, _runner(record.backend, is_compiled=record.is_compiled))
    for call in record.calls:
        screen.out.print(call, soft_wrap=True)
    for edge in outcome.differences:
        verdict = "within" if edge.is_within_bound else "OUT OF"
        allowed = "the same bits" if edge.bound == 0 else f"{edge.bound:g}"
        screen.out.print(
            f"  {edge.edge}: relative {edge.relative_l2:.2e}, largest {edge.max_abs:.2e} at {list(edge.worst_index)}; "
            f"{verdict} bound: {allowed}, {edge.reason}",
            soft_wrap=True,
        )
    if outcome.error:
        screen.out.print(f"  the lowering raised {outcome.error}", soft_wrap=True)
    if not outcome.is_expected_as_recorded:
        screen.note("the references give other bits than were recorded; another machine, or a node was changed")
    screen.out.print("reproduced" if outcome.is_reproduced else "not reproduced: within its bound now")
    screen.emit(
        {
            "ok": not outcome.is_reproduced,
            "calls": record.calls,
            "edges": [
                {"name": edge.edge, "relative_l2": edge.relative_l2, "is_within_bound": edge.is_within_bound}
                for edge in outcome.differences
            ],
            "raised": outcome.error,
            "expected_as_recorded": outcome.is_expected_as_recorded,
            "actual_as_recorded": outcome.is_actual_as_recorded,
        }
    )
    return not outcome.is_reproduced


def _runner(backend: str, *, is_compiled: bool) -> PartRunner:
    if backend == TRITON:
        return LaunchPartRunner()
    return CompiledPartRunner(backend) if is_compiled else OpByOpRunner(backend)


def _first(plays: Sequence[Play], runner: PartRunner, on_script: Callable[[], object]) -> tuple[Play, Finding] | None:
    for play in plays:
        prepare = fused_at(play.binding) if runner.backend == TRITON else None
        search = DrafterBisection(play.binding, runner, prepare=prepare)
        if (found := search.find(play.scripts, on_script=on_script)) is not None:
            return play, found
    return None


def _show(screen: Screen, options: BisectOptions, finding: Finding) -> None:
    culprit = finding.culprit
    screen.out.print(f"{options.backend} gets {plural(len(finding.calls), 'call')} wrong, in {finding.seen_in}")
    for call in finding.calls:
        screen.out.print(f"  {call}", soft_wrap=True)
    missed = culprit.difference
    if missed is not None:
        allowed = "the same bits" if missed.bound == 0 else f"{missed.bound:g}"
        screen.out.print(
            f"  {missed.edge}: relative {missed.relative_l2:.2e}, largest {missed.max_abs:.2e} at "
            f"{list(missed.worst_index)}; allowed {allowed}: {missed.reason}",
            soft_wrap=True,
        )
    else:
        screen.out.print(f"  the lowering raised {culprit.error}", soft_wrap=True)
    screen.out.print(f"repro in {options.output}; replay it: circuit bisect --replay {options.output}", soft_wrap=True)
    screen.emit(
        {
            "ok": False,
            "backend": options.backend,
            "compiled": options.is_compiled,
            "calls": finding.calls,
            "seen_in": finding.seen_in,
            "edge": None if missed is None else missed.edge,
            "relative_l2": None if missed is None else missed.relative_l2,
            "bound": None if missed is None else missed.bound,
            "reason": "" if missed is None else missed.reason,
            "raised": culprit.error,
            "repro": str(options.output),
        }
    )
