"""Play two executions side by side through scripts, and compare every common edge of every step, in circuit order.

The first side is the oracle: differences are relative to it, and its scores tell how near a tie is. Free-running, each
side feeds on its own drafts, and a script ends where these differ; teacher-forced, one side's drafts and hiddens feed
both, and every step is compared. Edges behind an accepted near-tie are another choice's: they are counted, not judged.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from circuit import BindingError, Circuit, Value
from compiler import Bound, EdgeBounds, EdgeDifference, bound_for, compare_edge, judge_near_tie, scores_of
from drafts.binding import DraftBinding
from drafts.executions import DRAFT, Edges, Execution
from drafts.script import Feed, Propose, Rewind, Script

# the step of context rows, which stand before every draft
CONTEXT_STEP = -1
# the pair whose calls are one another's references and lowerings, so that tags say how near they must be
TAGGED = {"reference", "lowered"}
# eager, row by row: measured 1.3e-5 on a pool's score that nearly cancels out, in the fourth draft
FREE_GOLDEN_BOUND = Bound(1e-4, "a recorded oracle of other code, and what four drafts on their own hiddens carry")


@dataclass(slots=True)
class Report:
    """What a play of two executions shows.

    edges: per step and edge the worst over all scripts, in the order of the forward; near_ties: every difference of a
    choice that was accepted. Of `num_steps` drafts `num_steps_compared` were; `num_edges_skipped` edges stand behind a
    near-tie.
    """

    a: str
    b: str
    bound: Bound
    is_teacher_forced: bool
    edges: list[EdgeDifference] = field(default_factory=list)
    near_ties: list[EdgeDifference] = field(default_factory=list)
    ids_equal: bool = True
    num_scripts: int = 0
    num_steps: int = 0
    num_steps_compared: int = 0
    num_edges_skipped: int = 0

    @property
    def first_missed(self) -> EdgeDifference | None:
        """The first edge out of bound, by step and then in the order of the forward."""
        return next((edge for edge in self.edges if not edge.is_within_bound), None)

    @property
    def ok(self) -> bool:
        """Whether something was compared, and every edge lies within its bound."""
        return bool(self.edges) and self.first_missed is None


class SideBySide:
    """Plays pairs of executions of one binding; `a` is the oracle, and the teacher where there is one.

    Raises BindingError for a teacher-forced pair of which one side shows no edges, and for a pair of one execution.
    """

    def __init__(self, binding: DraftBinding, a: Execution, b: Execution, *, is_teacher_forced: bool) -> None:
        if a.name == b.name:
            raise BindingError(f"parity: expected two executions, got {a.name} twice; name another one")
        if is_teacher_forced and not (a.shows_edges and b.shows_edges):
            hidden = b if a.shows_edges else a
            raise BindingError(
                f"parity: {hidden.name} shows no edges, so it can neither teach nor be taught; use --free-running"
            )
        self._binding = binding
        self._a, self._b = a, b
        self._has_edges = a.shows_edges and b.shows_edges
        backend = "inductor" if {a.name, b.name} == TAGGED else None
        is_free_golden = a.name == "golden" and not is_teacher_forced and binding.config.dtype == torch.float32
        whole = FREE_GOLDEN_BOUND if is_free_golden else bound_for(binding.config.dtype)
        self._bounds = EdgeBounds(backend=backend, dtype=binding.config.dtype, whole=whole)
        self._context = binding.context()
        self._steps = {is_first: binding.step(is_first=is_first) for is_first in (True, False)}
        self._order = _edge_order([self._steps[True], self._steps[False], self._context])
        self._worst: dict[tuple[int, str], EdgeDifference] = {}
        self._report = Report(a.name, b.name, whole, is_teacher_forced)

    def play(self, scripts: Sequence[Script], *, on_script: Callable[[], object] = lambda: None) -> Report:
        """Play the scripts; a second call goes on with the same report. ValueError for no scripts."""
        if not scripts:
            raise ValueError("parity: expected at least one prompt or case, got none")
        for script in scripts:
            self._play(script)
            self._report.num_scripts += 1
            on_script()
        # widest per step and edge, as the forward goes
        self._report.edges = [
            self._worst[key] for key in sorted(self._worst, key=lambda key: (key[0], self._order[key[1]]))
        ]
        return self._report

    def _play(self, script: Script) -> None:
        self._a.start(script)
        self._b.start(script)
        for operation in script.operations:
            where = script.label if isinstance(operation, Rewind) else f"{script.label} {operation.key}"
            match operation:
                case Rewind(rows):
                    self._a.rewind(rows)
                    self._b.rewind(rows)
                case Feed():
                    theirs, ours = self._a.feed(operation), self._b.feed(operation)
                    self._compare(self._context, ours, theirs, step=CONTEXT_STEP, where=where)
                case Propose():
                    if not self._propose(operation, where):
                        self._report.num_steps += _drafts_after(script, operation)
                        return

    def _propose(self, operation: Propose, where: str) -> bool:
        """Draft a chain by both and compare it; False where what follows would be of other tokens."""
        report = self._report
        theirs = self._a.propose(operation, None)
        ours = self._b.propose(operation, theirs if report.is_teacher_forced else None)
        report.num_steps += operation.num_drafts
        num_compared = 0
        for step, (their, our) in enumerate(zip(theirs, ours, strict=True)):
            num_compared += 1
            self._compare(self._steps[step == 0], our, their, step=step, where=where)
            if not torch.equal(our[DRAFT], their[DRAFT]):
                report.ids_equal = False
                if not report.is_teacher_forced:
                    break
        report.num_steps_compared += num_compared
        if not self._has_edges:
            # draft i + 1 is fed by draft i, so the row of the first one that differs is still of the same token
            num_rows = operation.position + num_compared
            sides = [side.contents(num_rows) for side in (self._b, self._a)]
            self._compare(self._steps[True], *sides, step=num_compared - 1, where=where)
        is_same = all(torch.equal(our[DRAFT], their[DRAFT]) for our, their in zip(ours, theirs, strict=True))
        return is_same or report.is_teacher_forced

    def _compare(self, program: Circuit, ours: Edges, theirs: Edges, *, step: int, where: str) -> None:
        """Compare one step, call by call; behind an accepted near-tie the rest is counted only."""
        report = self._report
        differing = {value for value in _sources(program) if not _is_same(value, ours, theirs)}
        oracle: Mapping[str, Tensor] = {**self._binding.weights, **theirs}
        results = [value for call in program.calls for value in call.results]
        for index, value in enumerate(results):
            name = value.name
            if name not in ours or name not in theirs:
                differing.add(value)
                continue
            bound = self._bounds.of(value, is_exact=lambda arg: arg not in differing)
            difference = compare_edge(name, ours[name], theirs[name], step=step, bound=bound)
            assert value.call is not None
            scores = scores_of(value.call)
            difference = judge_near_tie(
                difference,
                program,
                ours=ours[name],
                theirs=theirs[name],
                oracle=oracle,
                dtype=self._binding.config.dtype,
                has_same_scores=scores is not None and scores not in differing,
                oracle_breaks_ties=self._a.name == "golden",
            )
            if not difference.is_bitwise_equal:
                differing.add(value)
            self._keep(replace(difference, where=where))
            if difference.is_near_tie:
                report.near_ties.append(replace(difference, where=where))
                rest = [other.name for other in results[index + 1 :]]
                report.num_edges_skipped += sum(other in ours and other in theirs for other in rest)
                return

    def _keep(self, difference: EdgeDifference) -> None:
        key = (difference.step, difference.edge)
        held = self._worst.get(key)
        if held is None or _severity(difference) > _severity(held):
            self._worst[key] = difference


def merge(reports: Sequence[Report]) -> Report:
    """Return one report of several of the same pair, over other bindings: worst per step and edge, the rest added."""
    first = reports[0]
    worst: dict[tuple[int, str], EdgeDifference] = {}
    for edge in (edge for report in reports for edge in report.edges):
        held = worst.get((edge.step, edge.edge))
        if held is None or _severity(edge) > _severity(held):
            worst[edge.step, edge.edge] = edge
    return Report(
        first.a,
        first.b,
        max((report.bound for report in reports), key=lambda bound: bound.relative_l2),
        first.is_teacher_forced,
        edges=[worst[key] for key in sorted(worst, key=lambda key: key[0])],
        near_ties=[tie for report in reports for tie in report.near_ties],
        ids_equal=all(report.ids_equal for report in reports),
        num_scripts=sum(report.num_scripts for report in reports),
        num_steps=sum(report.num_steps for report in reports),
        num_steps_compared=sum(report.num_steps_compared for report in reports),
        num_edges_skipped=sum(report.num_edges_skipped for report in reports),
    )


def _severity(difference: EdgeDifference) -> tuple[Any, ...]:
    return (not difference.is_within_bound, difference.is_near_tie, difference.relative_l2)


def _sources(program: Circuit) -> list[Value]:
    return [*program.inputs.values(), *program.states.values()]


def _is_same(value: Value, ours: Edges, theirs: Edges) -> bool:
    """Whether a source has the same bits on both sides; one that a side does not show is not known to."""
    if value.name not in ours or value.name not in theirs:
        return False
    bound = Bound(0, "")
    return compare_edge(value.name, ours[value.name], theirs[value.name], step=0, bound=bound).is_within_bound


def _edge_order(programs: Sequence[Circuit]) -> dict[str, int]:
    names = dict.fromkeys(value.name for program in programs for call in program.calls for value in call.results)
    return {name: place for place, name in enumerate(names)}


def _drafts_after(script: Script, operation: Propose) -> int:
    later = script.operations[script.operations.index(operation) + 1 :]
    return sum(one.num_drafts for one in later if isinstance(one, Propose))
