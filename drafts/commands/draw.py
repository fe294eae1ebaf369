"""`circuit draw`: a circuit, a program or a plan as a drawing, the format by the file's ending."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from circuit import CircuitError
from circuit.draw import (
    Drawing,
    View,
    draw_circuit,
    draw_difference,
    num_changes,
    to_dot,
    to_mermaid,
    to_model_explorer,
    to_page,
    to_png,
    to_svg,
    to_terminal,
)
from drafts.commands.draw_notes import DrawBackend, planned
from drafts.commands.draw_overlays import lay_over, read_overlay
from drafts.commands.draw_subject import ProgramName, draw_subject, programs
from drafts.commands.screen import Screen, plural
from drafts.parallel import ONE_RANK, ParallelPlan

FILE_WIDTH = 120  # cells of a .txt


@dataclass(frozen=True, slots=True)
class DrawOptions:
    """What to draw and how: `other` and `other_plan` make it a comparison; `dims` is `n=1,max_blocks=16`.

    parallel: the ranks that share the drafter, of which the first is drawn.

    has_source: kernels that a backend generates are generated and shown.
    """

    program: ProgramName | None
    num_drafts: int
    plan: DrawBackend | None
    has_source: bool
    other: str | None
    other_plan: DrawBackend | None
    overlays: tuple[Path, ...]
    dims: str
    theme: str
    width: int
    parallel: ParallelPlan = ONE_RANK


def draw(x: str, output: Path, options: DrawOptions, screen: Screen) -> None:
    """Draw `x` into the file `output` and say what it holds."""
    write = _writer(output.suffix, options)
    with screen.step("generating kernels" if options.has_source else "planning"):
        is_compared = bool(options.other or options.other_plan)
        views = _compared(x, options) if is_compared else _views(x, options.plan, options)
    views = _with_overlays(views, options.overlays)
    with screen.step("drawing"):
        data = write(views)
    output.write_bytes(data)
    shown = views[0 if options.other or options.other_plan else -1].drawing
    changes = num_changes(shown)
    calls = sum(node.kind == "call" for node in shown.nodes)
    line = (
        f"{output}  {plural(calls, 'node')}, {plural(len(shown.edges), 'edge')}, {plural(len(shown.groups), 'group')}"
    )
    if any(changes.values()):
        line += ", " + ", ".join(f"{count} {status}" for status, count in changes.items() if count)
    screen.out.print(line, soft_wrap=True)
    screen.emit(
        {
            "ok": True,
            "file": str(output),
            "bytes": len(data),
            "nodes": calls,
            "edges": len(shown.edges),
            "groups": len(shown.groups),
            "views": [view.title for view in views],
            "overlays": [overlay.name for overlay in shown.overlays],
            "changes": changes,
        }
    )


def _views(x: str, plan: DrawBackend | None, options: DrawOptions, *, is_compiled: bool = False) -> tuple[View, ...]:
    subject = draw_subject(x, options.parallel)
    given = _sizes(options.dims)
    views = []
    for program in programs(subject, options.program, num_drafts=options.num_drafts):
        circuit, notes = planned(
            subject, program, backend=plan, dims=given, has_source=options.has_source, is_compiled=is_compiled
        )
        views.append(View(program.title, draw_circuit(circuit, notes), program.is_folded))
    return tuple(views)


def _compared(x: str, options: DrawOptions) -> tuple[View, ...]:
    """Return both in one drawing first, then each by itself; of a chain its drafts unrolled."""
    other = options.other or x
    plans = options.plan, options.other_plan or options.plan
    # one side as its passes made it and the other as declared would differ in every size
    is_compiled = options.plan is not None and plans[0] != plans[1]
    before = _views(x, plans[0], options, is_compiled=is_compiled)[-1]
    after = _views(other, plans[1], options, is_compiled=is_compiled)[-1]
    merged = draw_difference(before.drawing, after.drawing)
    return (
        View("both, with changes", merged),
        View(f"before: {x}", before.drawing, before.is_folded),
        View(f"after: {other}", after.drawing, after.is_folded),
    )


def _with_overlays(views: Sequence[View], paths: Sequence[Path]) -> tuple[View, ...]:
    drawings = [view.drawing for view in views]
    for path in paths:
        reader, record = read_overlay(path)
        laid = [lay_over(drawing, path, reader, record) for drawing in drawings]
        if not any(laid):
            raise CircuitError(
                f"--overlay {path}: nothing that it tells of is drawn here; draw the checkpoint it was made with, "
                "and --program chain for what is told per draft"
            )
        drawings = [
            replace(drawing, overlays=(*drawing.overlays, *more)) for drawing, more in zip(drawings, laid, strict=True)
        ]
    return tuple(replace(view, drawing=drawing) for view, drawing in zip(views, drawings, strict=True))


def _writer(suffix: str, options: DrawOptions) -> Callable[[Sequence[View]], bytes]:
    """Return what makes a file of this ending, one of ENDINGS."""
    is_compared = bool(options.other or options.other_plan)

    def one(views: Sequence[View]) -> Drawing:
        # a page shows all; elsewhere the comparison, or the chain that was asked for
        return views[0 if is_compared else -1].drawing

    writers: dict[str, Callable[[Sequence[View]], bytes]] = {
        ".html": lambda views: to_page(views).encode(),
        ".svg": lambda views: to_svg(one(views), theme=options.theme).encode(),
        ".png": lambda views: to_png(one(views), theme=options.theme),
        ".dot": lambda views: to_dot(one(views)).encode(),
        ".mmd": lambda views: to_mermaid(one(views)).encode(),
        ".json": lambda views: to_model_explorer(one(views)).encode(),
        ".txt": lambda views: to_terminal(one(views), width=options.width).encode(),
    }
    return writers[suffix]


def _sizes(text: str) -> dict[str, int]:
    """Read `n=4,max_blocks=16`; ValueError for anything else."""
    held: dict[str, int] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, size = part.partition("=")
        if not name or not (size.isascii() and size.isdecimal()) or len(size) > 12 or name in held:
            raise ValueError(f"--dims: expected NAME=SIZE,... such as n=1,max_blocks=16, got {part!r}")
        held[name] = int(size)
    return held
