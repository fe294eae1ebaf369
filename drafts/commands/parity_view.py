"""A parity report as people read it: a table on the screen, and a page in one file."""

import html
import os
import secrets
from pathlib import Path

from rich.table import Table
from rich.text import Text

from compiler import EdgeDifference
from drafts.commands.screen import Screen, plural
from drafts.side_by_side import CONTEXT_STEP, Report

COLUMNS = ("draft", "edge", "type", "largest", "relative", "ulps", "at", "bound", "")
SHOWN_TIES = 8
MAX_WIDTH = 240  # cells

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<style>
:root {{ color-scheme: light dark; font: 14px/1.4 system-ui, sans-serif }}
body {{ margin: 2rem; max-width: 90rem }}
table {{ border-collapse: collapse }}
th, td {{ padding: .15rem .6rem; text-align: left; border-bottom: 1px solid #8884; vertical-align: top }}
td.number {{ text-align: right; font-variant-numeric: tabular-nums }}
tr.missed td {{ background: #d3222233 }}
tr.first td {{ font-weight: 600; background: #d3222266 }}
tr.tie td {{ background: #d9a40033 }}
</style></head><body>
<h1>{title}</h1>
<p>{verdict}</p>
<ul>{facts}</ul>
<table><thead><tr>{heads}</tr></thead><tbody>
{rows}
</tbody></table>
</body></html>
"""


def print_report(screen: Screen, report: Report, *, title: str) -> None:
    """Print every edge in the order of the forward, the first out of bound marked, then counts and the verdict."""
    screen.out.print(Text(f"{title}\n", style="bold"), soft_wrap=True)
    table = Table(box=None, padding=(0, 1), header_style="dim")
    for name in COLUMNS[:-1]:
        is_number = name in ("largest", "relative", "ulps", "bound")
        table.add_column(name, justify="right" if is_number else "left", no_wrap=True)
    table.add_column(COLUMNS[-1], no_wrap=True)
    first = report.first_missed
    for edge in report.edges:
        style = "bold red" if edge is first else "red" if not edge.is_within_bound else "yellow" * edge.is_near_tie
        table.add_row(*_cells(edge), _note(edge, is_first=edge is first), style=style)
    # as wide as its edges: a line that is cut would hide what it is for
    width, screen.out.width = screen.out.width, max(screen.out.width, MAX_WIDTH)
    screen.out.print(table)
    screen.out.width = width
    screen.out.print()
    for line in facts_of(report):
        screen.out.print(f"  {line}", soft_wrap=True)
    for tie in report.near_ties[:SHOWN_TIES]:
        screen.out.print(f"  near-tie: {_place(tie)}: {_note(tie, is_first=False)}", soft_wrap=True)
    if len(report.near_ties) > SHOWN_TIES:
        screen.out.print(f"  and {plural(len(report.near_ties) - SHOWN_TIES, 'near-tie')} more, see --json or --html")
    if first is not None:
        screen.out.print(
            Text(f"  first out of bound: {_place(first)}\n    {first.reason}", style="red"), soft_wrap=True
        )
    screen.out.print(Text(f"\ndrafted ids equal: {'yes' if report.ids_equal else 'no'}"))
    screen.out.print(Text("ok" if report.ok else "missed", style="bold green" if report.ok else "bold red"))


def write_page(path: Path, report: Report, *, title: str) -> None:
    """Write the report as one page, whole or not at all; OSError names a place that cannot be written."""
    first = report.first_missed
    rows = []
    for edge in report.edges:
        kind = "first" if edge is first else "missed" if not edge.is_within_bound else "tie" if edge.is_near_tie else ""
        cells = [*_cells(edge), _note(edge, is_first=edge is first), edge.reason, edge.where]
        spelled = "".join(
            f'<td class="{"number" if 3 <= place <= 7 else "text"}">{html.escape(cell)}</td>'
            for place, cell in enumerate(cells)
        )
        rows.append(f'<tr class="{kind}">{spelled}</tr>')
    ties = [f"near-tie: {_place(tie)}: {_note(tie, is_first=False)}" for tie in report.near_ties]
    page = _PAGE.format(
        title=html.escape(title),
        verdict="ok" if report.ok else f"missed; the first edge out of bound is {html.escape(_place(first))}",
        facts="".join(f"<li>{html.escape(line)}</li>" for line in [*facts_of(report), *ties]),
        heads="".join(f"<th>{html.escape(name)}</th>" for name in (*COLUMNS, "why this bound", "seen in")),
        rows="\n".join(rows),
    )
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        part.write_text(page, encoding="utf-8")
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def facts_of(report: Report) -> list[str]:
    """Return the counts of a report, a line each."""
    num_equal = sum(edge.is_bitwise_equal for edge in report.edges)
    num_bitwise = sum(edge.bound == 0 for edge in report.edges)
    return [
        f"{plural(report.num_steps, 'draft')} after {plural(report.num_scripts, 'prompt')}, "
        f"{report.num_steps_compared} of them compared",
        f"{plural(len(report.edges), 'edge')}, {'all' if num_equal == len(report.edges) else num_equal} bitwise equal, "
        f"{num_bitwise} held to the same bits",
        f"{plural(len(report.near_ties), 'near-tie')} accepted, {plural(report.num_edges_skipped, 'edge')} behind them "
        "not judged",
        f"bound {report.bound.relative_l2:g} relative: {report.bound.reason}",
    ]


def _cells(edge: EdgeDifference) -> list[str]:
    is_discrete = edge.dtype.startswith(("int", "bool"))
    shape = ",".join(str(size) for size in edge.shape)
    return [
        "rows" if edge.step == CONTEXT_STEP else str(edge.step + 1),
        edge.edge,
        f"{edge.dtype.replace('bfloat', 'bf').replace('float', 'f').replace('int', 'i')}[{shape}]",
        "" if is_discrete else f"{edge.max_abs:.1e}",
        "" if is_discrete else f"{edge.relative_l2:.1e}",
        "" if edge.max_ulps is None else f"{edge.max_ulps:,}",
        "" if edge.is_bitwise_equal else str(list(edge.worst_index)),
        "bits" if edge.bound == 0 else "ids" if is_discrete else f"{edge.bound:.0e}",
    ]


def _note(edge: EdgeDifference, *, is_first: bool) -> str:
    notes = []
    if not edge.is_within_bound:
        notes.append("<- first out of bound" if is_first else "out of bound")
    if edge.only_ours or edge.only_theirs:
        left, right = ", ".join(map(str, edge.only_theirs)), ", ".join(map(str, edge.only_ours))
        margin = "" if edge.margin is None else f", margin {edge.margin:.2g}"
        notes.append(f"{'near-tie: ' if edge.is_near_tie else ''}{{{left}}} against {{{right}}}{margin}")
    if edge.num_nan != (0, 0):
        notes.append(f"NaN {edge.num_nan[1]} against {edge.num_nan[0]}")
    if edge.num_inf != (0, 0) and edge.num_inf[0] != edge.num_inf[1]:
        notes.append(f"inf {edge.num_inf[1]} against {edge.num_inf[0]}")
    if edge.is_bitwise_equal and not notes:
        notes.append("equal")
    return "; ".join(notes)


def _place(edge: EdgeDifference | None) -> str:
    if edge is None:
        return "none, for nothing was compared"
    step = "context rows" if edge.step == CONTEXT_STEP else f"draft {edge.step + 1}"
    return f"{edge.edge}, {step}, {edge.where}"
