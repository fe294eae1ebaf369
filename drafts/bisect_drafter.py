"""Find the calls of a drafter that a backend gets wrong, over the same scripts as a parity report.

The references play; each program of theirs, context rows and every draft, is handed to the bisection with what it ran
on. So a fault is found where it arises, whatever drafts before it did.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from circuit import Circuit
from compiler import Culprit, PartRunner, ReferenceRun, find_culprit, reference_run
from drafts.binding import DraftBinding
from drafts.runner import row_inputs, state_tensors
from drafts.script import Feed, Propose, Rewind, Script, Stage


@dataclass(frozen=True, slots=True)
class Finding:
    """The smallest failing set of calls, the run it fails in, and where that was."""

    run: ReferenceRun
    culprit: Culprit
    seen_in: str

    @property
    def calls(self) -> tuple[str, ...]:
        """The calls as text."""
        return tuple(str(self.run.circuit.calls[index]) for index in self.culprit.calls)


# turns a program, its inputs and states into the circuit that a backend runs, and the weights that this reads
Prepare: TypeAlias = Callable[
    [Circuit, Mapping[str, Tensor], Mapping[str, Tensor]], tuple[Circuit, Mapping[str, Tensor]]
]


class DrafterBisection:
    """Plays scripts by the references of a binding and looks for a culprit in each program that runs.

    `prepare` is for a backend that runs other circuits than those declared: regions, and weights that it derived.
    """

    def __init__(self, binding: DraftBinding, runner: PartRunner, *, prepare: Prepare | None = None) -> None:
        self._binding = binding
        self._runner = runner
        self._prepare = prepare or (lambda circuit, inputs, states: (circuit, binding.weights))
        self._context = binding.context()
        self._steps = {is_first: binding.step(is_first=is_first) for is_first in (True, False)}

    def find(self, scripts: Sequence[Script], *, on_script: Callable[[], object] = lambda: None) -> Finding | None:
        """Return the first finding, None where every program is within its bounds."""
        for script in scripts:
            if (found := self._search(script)) is not None:
                return found
            on_script()
        return None

    def _search(self, script: Script) -> Finding | None:
        layout = self._binding.state_layout
        stage = Stage(self._binding.config, script, max_num_drafts=layout.max_num_drafts)
        for operation in script.operations:
            match operation:
                case Rewind(rows):
                    stage.rewind(rows)
                    continue
                case Feed():
                    found = self._feed(stage, operation, script.label)
                case Propose():
                    found = self._propose(stage, operation, script.label)
            if found is not None:
                return found
        return None

    def _feed(self, stage: Stage, operation: Feed, label: str) -> Finding | None:
        rows = stage.rows(operation.tokens, operation.hiddens, operation.first_row)
        _, found = self._run(self._context, row_inputs(rows), stage, f"{label} {operation.key}: context rows")
        stage.commit(operation.first_row + rows.num_rows)
        return found

    def _propose(self, stage: Stage, operation: Propose, label: str) -> Finding | None:
        rows = stage.rows(torch.tensor([operation.token]), operation.hidden[None], operation.position)
        fed = row_inputs(rows)
        for index in range(operation.num_drafts):
            where = f"{label} {operation.key}: draft {index + 1}"
            run, found = self._run(self._steps[index == 0], fed, stage, where)
            if found is not None:
                return found
            made = {name: run.values[value] for name, value in run.circuit.outputs.items()}
            fed |= {edge.target: made[edge.source] for edge in self._binding.feedback}
        stage.commit(operation.position + operation.num_drafts)
        return None

    def _run(
        self, program: Circuit, fed: Mapping[str, Tensor], stage: Stage, where: str
    ) -> tuple[ReferenceRun, Finding | None]:
        states = state_tensors(stage.cache)
        # the cache is written below, and a run keeps what it was given
        given = {name: tensor.clone() for name, tensor in states.items()}
        prepared, weights = self._prepare(program, fed, given)
        run = reference_run(prepared, inputs=fed, weights=weights, states=given)
        culprit = find_culprit(run, self._runner, dtype=self._binding.config.dtype)
        for name, tensor in states.items():
            tensor.copy_(run.values[prepared.state_outputs[name]])
        return run, None if culprit is None else Finding(run, culprit, where)
