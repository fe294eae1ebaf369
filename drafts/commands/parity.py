"""`circuit parity`: two executions of a drafter side by side, every common edge of every step."""

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from circuit import CircuitError
from compiler import EdgeDifference, run_op_by_op, worst_edge
from drafts.commands.artifacts import BackendChoice
from drafts.commands.parity_subject import Play, Wish, open_plays
from drafts.commands.parity_view import print_report, write_page
from drafts.commands.screen import Screen
from drafts.commands.session import DTYPE_NAMES
from drafts.commands.subject import kind_of
from drafts.executions import CircuitExecution, EagerExecution, Execution, ProgramExecution
from drafts.golden_vectors import CASES, GoldenExecution
from drafts.launch_steps import LaunchSteps
from drafts.side_by_side import Report, SideBySide, merge


@dataclass(frozen=True, slots=True)
class ParityOptions:
    """What a report is made of; None leaves a choice to the subject, see docs/parity.md."""

    a: str | None
    b: str | None
    prompt: str | None
    vectors: Path | None
    num_drafts: int | None
    is_teacher_forced: bool | None
    dtype_name: str | None
    backend: BackendChoice
    html: Path | None


def parity(subject: Path, options: ParityOptions, screen: Screen) -> bool:
    """Compare, print the edges in the order of the forward, and return whether all are within bound.

    Raises ValueError or CircuitError for options that do not fit.
    """
    a, b = _pair(subject, options)
    wish = Wish(
        prompt=options.prompt,
        vectors=options.vectors,
        num_drafts=options.num_drafts,
        dtype_name=options.dtype_name,
        backend=BackendChoice("inductor", options.backend.cache),
        needs_programs="inductor" in (a, b),
    )
    plays = open_plays(subject, wish, screen)
    is_forced = options.is_teacher_forced
    if is_forced is None:
        # what was recorded of one step is no word about a step that was fed otherwise
        is_forced = a == "golden" and b != "inductor"
    reports = []
    with screen.bar(f"drafting by {a} and {b}", sum(len(play.scripts) for play in plays)) as advance:
        for play in plays:
            pair = SideBySide(play.binding, _execution(a, play), _execution(b, play), is_teacher_forced=is_forced)
            reports.append(pair.play(play.scripts, on_script=lambda: advance(1)))
    report = merge(reports)
    dtypes = " and ".join(dict.fromkeys(DTYPE_NAMES[play.binding.config.dtype] for play in plays))
    title = f"{subject}  {a} against {b}, {dtypes}, {'teacher-forced' if is_forced else 'free-running'}"
    print_report(screen, report, title=title)
    if options.html is not None:
        write_page(options.html, report, title=title)
        screen.note(f"wrote {options.html}")
    screen.emit(_record(report))
    return report.ok


def _pair(subject: Path, options: ParityOptions) -> tuple[str, str]:
    """The two executions, the oracle first."""
    has_vectors = options.vectors is not None or (subject / CASES).is_file()
    if options.b is not None and options.backend.backend is not None:
        raise ValueError("--backend: it is short for --b, and --b is given; leave one of them out")
    a = options.a or ("golden" if has_vectors and options.b != "golden" else "eager")
    is_artifact = not has_vectors and kind_of(subject) == "artifact"
    b = options.b or options.backend.backend or ("inductor" if is_artifact else "reference")
    if b == "golden":
        a, b = b, a
    if a == b:
        raise ValueError(f"--a and --b: expected two executions, got {a} twice; name another one")
    if a == "golden" and not has_vectors:
        raise ValueError("--a golden: expected --vectors DIR with golden cases, got none; name their folder")
    if "inductor" in (a, b) and options.is_teacher_forced:
        raise ValueError("--teacher-forced: a compiled chain feeds itself; compare lowered, or use --free-running")
    return a, b


def _execution(name: str, play: Play) -> Execution:
    match name:
        case "golden":
            assert play.golden is not None, "golden asks for vectors"
            return GoldenExecution([play.golden])
        case "eager":
            return EagerExecution(play.binding)
        case "reference":
            return CircuitExecution(play.binding)
        case "lowered":
            return CircuitExecution(play.binding, name=name, run=partial(run_op_by_op, backend="inductor"))
        case "triton":
            return CircuitExecution(play.binding, name=name, run=LaunchSteps(play.binding))
    if play.programs is None:
        raise CircuitError("inductor: expected compiled programs, got none; circuit compile the checkpoint first")
    return ProgramExecution(play.binding, play.programs)


def _record(report: Report) -> dict[str, Any]:
    widest = _widest(report.edges)
    worst = worst_edge(widest)
    is_usual = report.a == "eager" and report.b == "reference"
    return {
        "ok": report.ok,
        "a": report.a,
        "b": report.b,
        "teacher_forced": report.is_teacher_forced,
        "path": "circuit" if is_usual else "circuit:inductor" if report.b == "inductor" else report.b,
        "ids_equal": report.ids_equal,
        "first_missed": None if report.first_missed is None else _edge_record(report.first_missed),
        "worst_edge": None if worst is None else _edge_record(worst),
        "edges": [_edge_record(edge) for edge in widest],
        "steps": [_edge_record(edge) for edge in report.edges],
        "near_ties": [_edge_record(edge) for edge in report.near_ties],
        "edges_behind_near_ties": report.num_edges_skipped,
        "bound": {"relative_l2": report.bound.relative_l2, "reason": report.bound.reason},
        "prompts": report.num_scripts,
        "drafts": report.num_steps,
        "drafts_compared": report.num_steps_compared,
    }


def _widest(edges: list[EdgeDifference]) -> list[EdgeDifference]:
    """Return one difference per edge name, the widest over steps, in the order of the forward."""
    widest: dict[str, EdgeDifference] = {}
    for edge in edges:
        held = widest.get(edge.edge)
        if held is None or (not edge.is_within_bound, edge.relative_l2) > (not held.is_within_bound, held.relative_l2):
            widest[edge.edge] = edge
    return list(widest.values())


def _edge_record(edge: EdgeDifference) -> dict[str, Any]:
    fields = asdict(edge)
    return {"name": fields.pop("edge"), **fields}
