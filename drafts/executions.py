"""The ways to run a head that a parity report compares: eager, interpreted, lowered op by op, in launches, compiled.

Edges go by the names of the circuit's values; `next_latent_cache` and the other next states are what counts of the
sequence's own rows. A compiled chain shows its drafts and what it leaves in the cache, nothing between.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

from circuit import BindingError, Circuit, RunResult, StateType, Value, interpret
from drafts.binding import DraftBinding
from drafts.compiled_runner import CompiledRunner
from drafts.eager_glm5_next import EagerGlm5NextHead, EagerStep
from drafts.path import DraftPath
from drafts.runner import row_inputs, state_tensors
from drafts.script import Feed, Propose, Script, Stage

Edges: TypeAlias = dict[str, Tensor]
DRAFT = "draft"  # the value that is a step's token


class Execution(Protocol):
    """One way to run a head through a script.

    `start` begins a script on a cache of its own. `feed` and `propose` return edges, a step each; what an execution
    does not show is missing. A `teacher`'s steps give drafts 2..K their token and hidden in place of its own.
    """

    name: str
    shows_edges: bool

    def start(self, script: Script) -> None:
        """Begin a script, with nothing in the cache."""
        ...

    def feed(self, operation: Feed) -> Edges:
        """Write context rows; return their edges."""
        ...

    def propose(self, operation: Propose, teacher: Sequence[Edges] | None) -> list[Edges]:
        """Draft a chain; return each step's edges, `draft` among them."""
        ...

    def rewind(self, rows: int) -> None:
        """Take rows back."""
        ...

    def contents(self, num_rows: int) -> Edges:
        """Return the next states as they are now, of the first `num_rows` rows."""
        ...


class StepRunner(Protocol):
    """Runs a circuit of one draft or of context rows, and shows every value that it makes to `observe`."""

    def __call__(
        self,
        circuit: Circuit,
        *,
        inputs: Mapping[str, Tensor],
        weights: Mapping[str, Tensor],
        states: Mapping[str, Tensor],
        observe: Callable[[Value, Tensor], None],
    ) -> RunResult:
        """Return the outputs and the next states; what is given stays as it is."""
        ...


class CircuitExecution:
    """A circuit step by step: by its references, by a backend's lowerings run eagerly, or launch by launch."""

    shows_edges = True

    def __init__(self, binding: DraftBinding, *, name: str = "reference", run: StepRunner = interpret) -> None:
        self.name = name
        self._binding = binding
        self._run_step = run
        self._steps = {is_first: binding.step(is_first=is_first) for is_first in (True, False)}
        self._context = binding.context()
        self._stage: Stage | None = None

    def start(self, script: Script) -> None:
        """See Execution."""
        self._stage = _stage(self._binding, script)

    def feed(self, operation: Feed) -> Edges:
        """See Execution."""
        stage = _started(self._stage)
        rows = stage.rows(operation.tokens, operation.hiddens, operation.first_row)
        inputs = row_inputs(rows)
        edges, _ = self._run(self._context, inputs, stage, operation.first_row, rows.num_rows)
        stage.commit(operation.first_row + rows.num_rows)
        return edges

    def propose(self, operation: Propose, teacher: Sequence[Edges] | None) -> list[Edges]:
        """See Execution."""
        stage = _started(self._stage)
        rows = stage.rows(torch.tensor([operation.token]), operation.hidden[None], operation.position)
        fed, steps = row_inputs(rows), []
        for index in range(operation.num_drafts):
            program = self._steps[index == 0]
            edges, result = self._run(program, fed, stage, operation.position + index, 1)
            steps.append(edges)
            given = result.outputs if teacher is None else result.outputs | self._lesson(teacher[index])
            fed |= {edge.target: given[edge.source] for edge in self._binding.feedback}
        stage.commit(operation.position + operation.num_drafts)
        return steps

    def rewind(self, rows: int) -> None:
        """See Execution."""
        _started(self._stage).rewind(rows)

    def contents(self, num_rows: int) -> Edges:
        """See Execution."""
        return _next_states(_started(self._stage), num_rows)

    def _lesson(self, edges: Edges) -> Edges:
        return {"token": edges[DRAFT], "hidden": edges[recycled_edge(self._binding)]}

    def _run(
        self, program: Circuit, fed: Mapping[str, Tensor], stage: Stage, first_row: int, num_rows: int
    ) -> tuple[Edges, RunResult]:
        edges: Edges = {}
        owners: dict[Value, str] = {value: name for name, value in program.states.items()}
        num_pools = (first_row + num_rows) // self._binding.config.index_kpool

        def record(value: Value, tensor: Tensor) -> None:
            if isinstance(value.type, StateType):
                rows = first_row if value.kind == "state" else first_row + num_rows
                name = owners.get(value) or value.name.removeprefix("next_")
                edges[value.name] = stage.contents({**state_tensors(stage.cache), name: tensor}, rows)[name]
            elif value.kind != "weight":
                # columns of pools that no row may choose are not computed by everyone
                edges[value.name] = tensor[:, :num_pools] if value.name == "index_scores" else tensor

        inputs = {name: fed[name] for name in program.inputs}
        weights, states = self._binding.weights, state_tensors(stage.cache)
        result = self._run_step(program, inputs=inputs, weights=weights, states=states, observe=record)
        for name, tensor in states.items():
            tensor.copy_(result.states[name])
        return edges, result


class EagerExecution:
    """The eager head, every intermediate recorded."""

    name = "eager"
    shows_edges = True

    def __init__(self, binding: DraftBinding) -> None:
        self._binding = binding
        self._head = EagerGlm5NextHead(
            binding.config, binding.weights, binding.decisions, draft_head=binding.draft_head
        )
        self._stage: Stage | None = None

    def start(self, script: Script) -> None:
        """See Execution."""
        self._stage = _stage(self._binding, script)

    def feed(self, operation: Feed) -> Edges:
        """See Execution."""
        stage = _started(self._stage)
        rows = stage.rows(operation.tokens, operation.hiddens, operation.first_row)
        edges: Edges = {}
        cache = stage.cache
        self._head.context(rows, cache.latent, cache.tail, edges=edges).apply(
            cache.latent, cache.index_keys, cache.tail
        )
        stage.commit(operation.first_row + rows.num_rows)
        return edges | self.contents(operation.first_row + rows.num_rows)

    def propose(self, operation: Propose, teacher: Sequence[Edges] | None) -> list[Edges]:
        """See Execution."""
        stage = _started(self._stage)
        cache, shares = stage.cache, self._binding.decisions.index_share != "off"
        rows = stage.rows(torch.tensor([operation.token]), operation.hidden[None], operation.position)
        token, hidden = rows.token, rows.hidden
        steps: list[Edges] = []
        first: EagerStep | None = None
        for index in range(operation.num_drafts):
            reused = first if shares else None
            step = self._head.step(
                token,
                hidden,
                rows.position + index,
                rows.sequence,
                rows.block_table,
                cache.latent,
                cache.index_keys,
                cache.tail,
                recycled=index > 0,
                selected=None if reused is None else reused.selected,
                selected_at=None if reused is None else rows.position,
                record_edges=True,
            )
            first = first or step
            own = {name: edge for name, edge in step.edges.items() if name not in ("token", "pool_keys")}
            steps.append(own | {DRAFT: step.token} | self.contents(operation.position + index + 1))
            token, hidden = step.token, step.hidden_out
            if teacher is not None:
                token, hidden = teacher[index][DRAFT], teacher[index][recycled_edge(self._binding)]
        stage.commit(operation.position + operation.num_drafts)
        return steps

    def rewind(self, rows: int) -> None:
        """See Execution."""
        _started(self._stage).rewind(rows)

    def contents(self, num_rows: int) -> Edges:
        """See Execution."""
        return _next_states(_started(self._stage), num_rows)


class ProgramExecution:
    """Compiled programs, a whole chain a call: it shows drafts, and the cache when asked for it."""

    name = "inductor"
    shows_edges = False

    def __init__(self, binding: DraftBinding, path: DraftPath) -> None:
        self._binding = binding
        self._path = path
        self._stage: Stage | None = None

    def start(self, script: Script) -> None:
        """See Execution."""
        self._stage = _stage(self._binding, script)

    def feed(self, operation: Feed) -> Edges:
        """See Execution."""
        stage = _started(self._stage)
        rows = stage.rows(operation.tokens, operation.hiddens, operation.first_row)
        self._path.write_rows(rows, stage.cache)
        self._refuse_fallbacks()
        stage.commit(operation.first_row + rows.num_rows)
        return self.contents(operation.first_row + rows.num_rows)

    def propose(self, operation: Propose, teacher: Sequence[Edges] | None) -> list[Edges]:
        """See Execution; a teacher is refused by BindingError."""
        if teacher is not None:
            raise BindingError(f"{self.name}: a compiled chain feeds itself, it takes no teacher; use --free-running")
        stage = _started(self._stage)
        rows = stage.rows(torch.tensor([operation.token]), operation.hidden[None], operation.position)
        ids = self._path.draft(rows, stage.cache, num_drafts=operation.num_drafts).ids
        self._refuse_fallbacks()
        stage.commit(operation.position + operation.num_drafts)
        return [{DRAFT: ids[:, index]} for index in range(operation.num_drafts)]

    def rewind(self, rows: int) -> None:
        """See Execution."""
        _started(self._stage).rewind(rows)

    def contents(self, num_rows: int) -> Edges:
        """See Execution."""
        return _next_states(_started(self._stage), num_rows)

    def _refuse_fallbacks(self) -> None:
        # what ran interpreted instead would prove nothing of a program
        if isinstance(self._path, CompiledRunner) and self._path.fallbacks:
            what = next(iter(self._path.fallbacks))
            raise BindingError(
                f"{self.name}: no compiled program serves {what}; compile for it, or draft after a shorter prompt"
            )


def recycled_edge(binding: DraftBinding) -> str:
    """Return the edge that drafts 2..K take as their hidden."""
    return "head_normed" if binding.decisions.recycle == "post_norm" else "block_out"


def _stage(binding: DraftBinding, script: Script) -> Stage:
    return Stage(binding.config, script, max_num_drafts=binding.state_layout.max_num_drafts)


def _next_states(stage: Stage, num_rows: int) -> Edges:
    held = stage.contents(state_tensors(stage.cache), num_rows)
    return {f"next_{name}": tensor for name, tensor in held.items()}


def _started(stage: Stage | None) -> Stage:
    assert stage is not None, "start comes before a script's first operation"
    return stage
