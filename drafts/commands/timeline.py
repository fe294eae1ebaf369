"""`circuit trace`: a run as a timeline for Perfetto or chrome://tracing, what was measured beside what was planned.

The interpreter shows every edge, so each call has a time of its own. A compiled chain is one launch: beside its
measured time stands the plan's split of it by bytes, labelled as planned.
"""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from torch import Tensor

from circuit import Call, Circuit, Value
from compiler import plan_program
from drafts.binding import DraftBinding
from drafts.cache import DrafterCache
from drafts.commands.artifacts import BackendChoice, cached_artifact, num_drafts_of, open_session
from drafts.commands.draw_subject import default_sizes, sizes
from drafts.commands.prompts import demo_prompts
from drafts.commands.screen import Screen, plural
from drafts.commands.session import Session
from drafts.compile_drafter import bound_circuit
from drafts.parity import Prompt, draft_after_prompt
from drafts.path import DraftPath
from drafts.proposer import DraftProposer
from drafts.runner import DraftRunner

MEASURED, PLANNED = 1, 2
# a viewer turns microseconds into whole nanoseconds, each start and duration by itself, and drops what then juts out of
# the event around it; multiples of an eighth turn without a rest
_GRID = 8


@dataclass(frozen=True, slots=True)
class Span:
    """One event, from and to in microseconds after the start of the first run; `args` are shown when it is clicked."""

    process: int
    name: str
    start_us: float
    end_us: float
    category: str
    args: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class _Run:
    """One chain: when it began and ended, and when each call of each draft was done, in nanoseconds."""

    began: int
    ended: int = 0
    done: list[list[tuple[str, int]]] = field(default_factory=list)


class _Stopwatch:
    """Runs a path and notes when its chains begin and end, and when each of their results is there."""

    def __init__(self) -> None:
        self.runs: list[_Run] = []
        self.path: DraftPath | None = None

    def seen(self, step: int, value: Value, tensor: Tensor) -> None:
        """Observe an edge of the interpreter."""
        run = self.runs[-1]
        while len(run.done) <= step:
            run.done.append([])
        if value.kind == "result":
            run.done[step].append((value.name, time.perf_counter_ns()))
        elif not run.done[step]:
            # sources are shown first: what they take is no call's
            run.done[step] = [("", time.perf_counter_ns())]
        else:
            run.done[step][0] = ("", time.perf_counter_ns())

    @property
    def name(self) -> str:
        """The name of the path that is timed."""
        return self._path.name

    @property
    def is_batch_invariant(self) -> bool:
        """As the path that is timed."""
        return self._path.is_batch_invariant

    @property
    def binding(self) -> DraftBinding | None:
        """As the path that is timed."""
        return self._path.binding

    def write_rows(self, rows: Any, cache: DrafterCache) -> None:
        """Write rows, untimed."""
        self._path.write_rows(rows, cache)

    def draft(self, rows: Any, cache: DrafterCache, **options: Any) -> Any:
        """Draft a chain and note its begin and end."""
        run = _Run(time.perf_counter_ns())
        self.runs.append(run)
        drafts = self._path.draft(rows, cache, **options)
        run.ended = time.perf_counter_ns()
        return drafts

    @property
    def _path(self) -> DraftPath:
        assert self.path is not None
        return self.path


def trace(
    folder: Path,
    output: Path,
    screen: Screen,
    *,
    prompt: str | None,
    num_drafts: int | None,
    num_runs: int,
    backend: BackendChoice,
) -> None:
    """Draft `num_runs` chains after a prompt, one more before them to warm up, and write the timeline."""
    if prompt == "":
        raise ValueError("--prompt: expected some text, got none; give the text to draft after")
    session, artifact = open_session(folder, screen, dtype_name=None, checkpoint=None)
    num_drafts = num_drafts_of(num_drafts, artifact)
    cut = _prompt(session, demo_prompts(1)[0].text if prompt is None else prompt, num_drafts=num_drafts)
    if backend.backend == "reference":
        artifact = None
    elif backend.backend == "inductor" and artifact is None:
        artifact = cached_artifact(session, screen, backend, num_tokens=len(cut.tokens), num_drafts=num_drafts)
    proposer = DraftProposer(
        session.config,
        session.weights,
        session.decisions,
        max_seq_len=len(cut.tokens),
        max_num_drafts=num_drafts if artifact is None else artifact.recorded.max_num_drafts,
    )
    binding = bound_circuit(proposer, session.folder)
    watch = _Stopwatch()
    if artifact is None:
        watch.path = DraftRunner(binding, observe=watch.seen)
    else:
        watch.path = artifact.runner(proposer, checkpoint=session.folder)
    with screen.bar("drafting", num_runs + 1) as advance:
        for _ in range(num_runs + 1):
            draft_after_prompt(watch, proposer, cut, num_drafts=num_drafts)
            advance(1)
    runs = watch.runs[1:]
    spans = list(_spans(runs, _steps(binding, num_drafts), is_interpreted=artifact is None))
    output.write_text(json.dumps(_document(spans, watch.name, folder)) + "\n", encoding="utf-8")
    _report(screen, output, runs, spans, path=watch.name, num_drafts=num_drafts)


def _prompt(session: Session, text: str, *, num_drafts: int) -> Prompt:
    tokens = session.encode(text, max_new_tokens=num_drafts)
    if len(tokens) < 2:
        raise ValueError(
            f"--prompt: expected at least 2 tokens, got {len(tokens)}; a draft needs the hidden before one"
        )
    hiddens = session.target.open_sequence().prefill(tokens).hidden_rows(session.decisions.supplied_hidden)
    return Prompt(tokens, hiddens)


@dataclass(frozen=True, slots=True)
class _Step:
    """One draft's circuit and the bytes that its plan says each call moves, by first result."""

    circuit: Circuit
    bytes: dict[str, int]


def _steps(binding: DraftBinding, num_drafts: int) -> list[_Step]:
    held = {}
    for is_first in (True, False):
        circuit = binding.step(is_first=is_first)
        known = {**default_sizes(circuit), **binding.dims}
        plan = plan_program(circuit, name=circuit.name, backend="reference", dims=sizes(circuit, known, {}))
        held[is_first] = _Step(circuit, {call.results[0]: call.bytes_read + call.bytes_written for call in plan.calls})
    return [held[index == 0] for index in range(num_drafts)]


def _spans(runs: Sequence[_Run], steps: Sequence[_Step], *, is_interpreted: bool) -> Iterator[Span]:
    origin = runs[0].began
    for number, run in enumerate(runs, start=1):
        begin, end = (run.began - origin) / 1e3, (run.ended - origin) / 1e3
        chain = f"run {number}: chain of {plural(len(steps), 'draft')}"
        yield Span(MEASURED, chain, begin, end, "run", {"run": number})
        if is_interpreted:
            for draft, (step, done) in enumerate(zip(steps, run.done, strict=True), start=1):
                yield from _measured(step, [(name, (at - origin) / 1e3) for name, at in done], draft)
        yield Span(PLANNED, f"{chain}, split by planned bytes", begin, end, "run", {"run": number})
        yield from _planned(steps, begin, end)


def _measured(step: _Step, done: list[tuple[str, float]], draft: int) -> Iterator[Span]:
    """Yield a draft, its blocks and its calls, from when each result was there."""
    at = dict(done)
    ends = [at[call.results[-1].name] for call in step.circuit.calls]
    starts = [done[0][1], *ends[:-1]]
    yield from _nested(step, starts, ends, draft, process=MEASURED, category="measured")


def _planned(steps: Sequence[_Step], begin: float, end: float) -> Iterator[Span]:
    """Yield the same drafts, blocks and calls, the measured time split by the bytes that the plan says they move."""
    total = sum(sum(step.bytes.values()) for step in steps) or 1
    at = begin
    for draft, step in enumerate(steps, start=1):
        starts, ends = [], []
        for call in step.circuit.calls:
            starts.append(at)
            at += (end - begin) * step.bytes[call.results[0].name] / total
            ends.append(at)
        yield from _nested(step, starts, ends, draft, process=PLANNED, category="planned")


def _nested(
    step: _Step, starts: list[float], ends: list[float], draft: int, *, process: int, category: str
) -> Iterator[Span]:
    if not starts:
        return
    yield Span(process, f"draft {draft}", starts[0], ends[-1], "draft", {"draft": draft})
    timed = list(zip(step.circuit.calls, starts, ends, strict=True))
    for block, group in groupby(timed, key=lambda held: held[0].block):
        calls = list(group)
        if block:
            yield Span(process, block, calls[0][1], calls[-1][2], "region", {"draft": draft})
        for call, start, end in calls:
            name = f"{type(call.node).__name__} {call.results[0].name}"
            yield Span(process, name, start, end, category, _args(call, step, draft))


def _args(call: Call, step: _Step, draft: int) -> dict[str, Any]:
    value = call.results[0]
    return {
        "value": value.name,
        "draft": draft,
        "block": call.block,
        "type": str(value.type),
        "planned_bytes": step.bytes[value.name],
    }


def _document(spans: Sequence[Span], path: str, folder: Path) -> dict[str, Any]:
    """Return the trace event format: processes named first, then complete events, outer ones before their inner ones.

    `ts` and `dur` lie on a grid; what was measured or planned to the nanosecond is `us` among the arguments.
    """
    names = {MEASURED: f"measured, {path}", PLANNED: "planned, measured time split by bytes"}
    events: list[dict[str, Any]] = []
    for process, name in names.items():
        # a viewer may take a thread's number for its own in all processes
        place = {"ph": "M", "pid": process, "tid": process}
        events.append({**place, "name": "process_name", "args": {"name": name}})
        events.append({**place, "name": "process_sort_index", "args": {"sort_index": process}})
        events.append({**place, "name": "thread_name", "args": {"name": "drafts"}})
    events += [
        {
            "ph": "X",
            "name": span.name,
            "cat": span.category,
            "pid": span.process,
            "tid": span.process,
            "ts": _on_grid(span.start_us),
            "dur": _on_grid(span.end_us) - _on_grid(span.start_us),
            "args": {**span.args, "us": round(span.end_us - span.start_us, 3)},
        }
        for span in spans
    ]
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": {"checkpoint": str(folder), "path": path}}


def _on_grid(time_us: float) -> float:
    return round(time_us * _GRID) / _GRID


def _report(
    screen: Screen, output: Path, runs: Sequence[_Run], spans: Sequence[Span], *, path: str, num_drafts: int
) -> None:
    times = sorted((run.ended - run.began) / 1e3 for run in runs)
    median = times[len(times) // 2]
    num_measured = sum(span.category == "measured" for span in spans)
    screen.out.print(
        f"{output}  {plural(len(runs), 'run')} of {plural(num_drafts, 'draft')} by {path}, median {median:,.0f} us; "
        f"{plural(num_measured, 'call')} measured one by one; open it in ui.perfetto.dev or chrome://tracing",
        soft_wrap=True,
    )
    screen.emit(
        {
            "ok": True,
            "file": str(output),
            "path": path,
            "runs": len(runs),
            "drafts": num_drafts,
            "median_us": median,
            "calls_measured": num_measured,
            "events": len(spans),
        }
    )
