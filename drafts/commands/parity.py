"""`circuit parity`: the eager drafter and the circuit side by side over real prompts, edge by edge."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from compiler import EdgeDifference, worst_edge
from drafts.commands.artifacts import BackendChoice, cached_artifact, num_drafts_of, open_session
from drafts.commands.prompts import demo_prompts
from drafts.commands.screen import Screen, plural
from drafts.commands.session import DTYPE_NAMES, Session
from drafts.load_compiled import Artifact
from drafts.parity import ParityReport, Prompt, compare_eager_with_circuit
from drafts.program_parity import compare_eager_with_programs
from drafts.proposer import DraftProposer

# each prompt is cut at this many neighbouring lengths, so that every place within a pool of 4 is drafted from
CUTS = 4
NUM_PROMPTS = 3
SHOWN_EDGES = 8


def parity(
    folder: Path,
    screen: Screen,
    *,
    prompt: str | None,
    num_drafts: int | None,
    dtype_name: str | None,
    backend: BackendChoice,
) -> bool:
    """Compare every edge of every draft, print the widest differences, and return whether all are within bound.

    Compiled programs, of an artifact or with the inductor backend, show ids and cache rows; interpreted, every edge.
    """
    if prompt == "":
        raise ValueError("--prompt: expected some text, got none; give the text to draft after")
    session, artifact = open_session(folder, screen, dtype_name=dtype_name, checkpoint=None)
    num_drafts = num_drafts_of(num_drafts, artifact)
    texts = [one.text for one in demo_prompts(NUM_PROMPTS)] if prompt is None else [prompt]
    prompts = [cut for text in texts for cut in _cuts(session, text, num_drafts=num_drafts)]
    longest = max(len(cut.tokens) for cut in prompts)
    if backend.backend == "reference":
        artifact = None
    elif backend.backend == "inductor" and artifact is None:
        artifact = cached_artifact(session, screen, backend, num_tokens=longest, num_drafts=num_drafts)
    compare = _comparison(session, artifact, longest=longest, num_drafts=num_drafts)
    reports = []
    with screen.bar("drafting with both", len(prompts)) as advance:
        for cut in prompts:
            reports.append(compare(cut))
            advance(1)
    edges = _widest([edge for report in reports for edge in report.edges])
    is_ok = all(report.ok for report in reports)
    worst = worst_edge(edges)
    path = "circuit" if artifact is None else f"circuit:{artifact.manifest.backend}"
    _print(screen, reports, edges, title=f"{folder}  eager against {path}, {DTYPE_NAMES[session.config.dtype]}")
    screen.emit(
        {
            "ok": is_ok,
            "path": path,
            "ids_equal": all(report.ids_equal for report in reports),
            "worst_edge": None if worst is None else _edge_record(worst),
            "edges": [_edge_record(edge) for edge in edges],
            "bound": asdict(reports[0].bound),
            "prompts": len(prompts),
            "drafts": sum(report.num_steps for report in reports),
            "drafts_compared": sum(report.num_steps_compared for report in reports),
        }
    )
    return is_ok


def _comparison(
    session: Session, artifact: Artifact | None, *, longest: int, num_drafts: int
) -> Callable[[Prompt], ParityReport]:
    """Return what compares one prompt: edge by edge with the interpreter, or by ids and cache with programs."""
    proposer = DraftProposer(
        session.config,
        session.weights,
        session.decisions,
        max_seq_len=longest,
        max_num_drafts=num_drafts if artifact is None else artifact.recorded.max_num_drafts,
    )
    if artifact is None:
        return lambda prompt: compare_eager_with_circuit(proposer, [prompt], num_drafts=num_drafts)
    programs = artifact.runner(proposer, checkpoint=session.folder)
    return lambda prompt: compare_eager_with_programs(proposer, programs, [prompt], num_drafts=num_drafts)


def _cuts(session: Session, text: str, *, num_drafts: int) -> list[Prompt]:
    """Return the prompt with its last 0, 1, 2, ... tokens cut, each with the target's hiddens."""
    tokens = session.encode(text, max_new_tokens=num_drafts)
    if len(tokens) < 2:
        raise ValueError(
            f"--prompt: expected at least 2 tokens, got {len(tokens)}; a draft needs the hidden before one"
        )
    hiddens = session.target.open_sequence().prefill(tokens).hidden_rows(session.decisions.supplied_hidden)
    lengths = range(max(2, len(tokens) - CUTS + 1), len(tokens) + 1)
    return [Prompt(tokens[:length], hiddens[:length]) for length in lengths]


def _widest(edges: list[EdgeDifference]) -> list[EdgeDifference]:
    """Return one difference per edge name, the widest over steps and prompts, in the order of the forward."""
    widest: dict[str, EdgeDifference] = {}
    for edge in edges:
        held = widest.get(edge.edge)
        if held is None or (not edge.is_within_bound, edge.relative_l2) > (not held.is_within_bound, held.relative_l2):
            widest[edge.edge] = edge
    return list(widest.values())


def _edge_record(edge: EdgeDifference) -> dict[str, Any]:
    fields = asdict(edge)
    return {"name": fields.pop("edge"), **fields}


def _print(screen: Screen, reports: list[ParityReport], edges: list[EdgeDifference], *, title: str) -> None:
    bound = reports[0].bound
    num_drafts = sum(report.num_steps for report in reports)
    num_compared = sum(report.num_steps_compared for report in reports)
    screen.out.print(Text(f"{title}\n", style="bold"), soft_wrap=True)
    missed = [edge for edge in edges if not edge.is_within_bound]
    ranked = missed or sorted(edges, key=lambda edge: edge.relative_l2, reverse=True)[:SHOWN_EDGES]
    num_equal = sum(edge.is_bitwise_equal for edge in edges)
    if num_equal < len(edges):
        screen.out.print(_edge_table(ranked))
        screen.out.print()
    screen.out.print(
        f"  {plural(num_drafts, 'draft')} after {plural(len(reports), 'prompt')}, {num_compared} of them compared\n"
        f"  {plural(len(edges), 'edge')}, {'all' if num_equal == len(edges) else num_equal} bitwise equal\n"
        f"  bound {bound.relative_l2:g} relative: {bound.reason}\n"
    )
    ids_equal = all(report.ids_equal for report in reports)
    is_ok = all(report.ok for report in reports)
    screen.out.print(Text(f"drafted ids equal: {'yes' if ids_equal else 'no'}"))
    screen.out.print(Text("ok" if is_ok else "missed", style="bold green" if is_ok else "bold red"))


def _edge_table(edges: list[EdgeDifference]) -> Table:
    table = Table(box=None, padding=(0, 2), header_style="dim")
    table.add_column("edge", no_wrap=True)
    for name in ("draft", "relative", "largest", "at"):
        table.add_column(name, justify="right")
    for edge in edges:
        style = "" if edge.is_within_bound else "red"
        at = "bitwise equal" if edge.is_bitwise_equal else str(list(edge.worst_index))
        table.add_row(edge.edge, str(edge.step + 1), f"{edge.relative_l2:.1e}", f"{edge.max_abs:.1e}", at, style=style)
    return table
