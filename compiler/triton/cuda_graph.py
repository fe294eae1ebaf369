"""CudaGraphProgram: a launch plan captured once and replayed, so that a whole propose is one graph.

A graph bakes in addresses, numbers and kernels. What a plan fixes has a program of its own: rows, drafts, width of the
block table, dtypes. The rest is guarded: weights or caches bound to other memory and kernels loaded anew drop the
graph, which is captured again. Weights copied into their memory are seen, since kernels read them there. No launch
talks to another rank. Lengths, positions and tokens are tensors, which a self-test after capture proves: a replay
equals the launches run one by one, at two lengths.
"""

import gc
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from circuit import CaptureError, LoweringError
from compiler.triton.emission import LaunchPlan
from compiler.triton.program import LaunchProgram, current_device, kernel_of

_log = logging.getLogger("circuit")

WARM_UP_RUNS = 2  # compile and load every kernel: neither may happen while a graph is captured
NULL = 0  # the block and the sequence that belong to nobody


@dataclass(frozen=True, slots=True)
class _Guard:
    """What a graph has baked in and a later run may not have: where lent tensors lie, and the kernels as loaded."""

    addresses: tuple[int, ...]
    kernels: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class _Captured:
    """A graph of some steps, and what it holds for."""

    graph: torch.cuda.CUDAGraph
    guard: _Guard


class CudaGraphProgram:
    """Runs like a LaunchProgram, by one replay; a graph per number of steps, made when first asked for.

    counts: `captured`, `replayed`, `recaptured` (what a graph had baked in is no longer so), and `uncaptured` runs: a
    capture or its self-test failed, which is said once.
    """

    def __init__(self, plan: LaunchPlan, *, device: torch.device) -> None:
        if device.type != "cuda":
            raise LoweringError(f"program {plan.name!r}: CUDA graphs need a CUDA device, got {device}")
        self.plan = plan
        self.counts: Counter[str] = Counter()
        self.why_uncaptured = ""
        self._program = LaunchProgram(plan, device=device)
        self._kernels = tuple(dict.fromkeys(launch.kernel for launch in plan.launches))
        self._graphs: dict[int, _Captured] = {}
        self._stream = torch.cuda.Stream(self._program.memory.device)

    def run(
        self,
        *,
        inputs: Mapping[str, Tensor],
        states: Mapping[str, Tensor],
        weights: Mapping[str, Tensor],
        num_steps: int,
        outputs: Sequence[str],
    ) -> dict[str, Tensor]:
        """Run `num_steps` drafts; see LaunchProgram.run."""
        program = self._program
        with current_device(program.memory.device):
            program.bind(states=states, weights=weights)
            captured = None if self.why_uncaptured else self._current(num_steps)
            # only now: a capture and its self-test feed rows of their own
            program.memory.feed(inputs)
            if captured is None:
                self.counts["uncaptured"] += 1
                program.launch(num_steps)
            else:
                captured.graph.replay()
                self.counts["replayed"] += 1
            return program.read(outputs, num_steps)

    def replay(self, num_steps: int) -> None:
        """Replay the graph of so many drafts on what was fed last, and count nothing: for measuring it alone.

        `CaptureError` where none was captured by a run.
        """
        if num_steps not in self._graphs:
            raise CaptureError(f"program {self.plan.name!r}: no graph of {num_steps} drafts; {self.why_uncaptured}")
        with current_device(self._program.memory.device):
            self._graphs[num_steps].graph.replay()

    def drop(self) -> None:
        """Release the graphs; the next run captures again."""
        if self._graphs:
            # a replay may still be on its way
            torch.cuda.synchronize(self._program.memory.device)
            self._graphs.clear()

    def _current(self, num_steps: int) -> _Captured | None:
        guard = self._guard()
        held = self._graphs.get(num_steps)
        if held is not None and held.guard == guard:
            return held
        if held is not None:
            self.counts["recaptured"] += 1
            # every graph of this program has baked in the same
            self.drop()
        if not 1 <= num_steps <= self.plan.num_steps:
            return None  # the launches refuse it by name
        try:
            graph = self._captured(num_steps)
            self._self_test(graph, num_steps)
        except (CaptureError, RuntimeError) as error:
            self.drop()
            self.why_uncaptured = str(error) or type(error).__name__
            _log.warning(
                "program %s: not captured, its launches are started one by one from here on: %s",
                self.plan.name,
                self.why_uncaptured,
            )
            return None
        self.counts["captured"] += 1
        self._graphs[num_steps] = _Captured(graph, guard)
        return self._graphs[num_steps]

    def _guard(self) -> _Guard:
        plan = self.plan
        addresses = self._program.memory.addresses((*plan.weights.values(), *plan.states.values()))
        return _Guard(addresses, tuple(kernel_of(name) for name in self._kernels))

    def _captured(self, num_steps: int) -> torch.cuda.CUDAGraph:
        program = self._program
        current = torch.cuda.current_stream(program.memory.device)
        self._stream.wait_stream(current)
        try:
            with torch.cuda.stream(self._stream):
                self._feed_null_rows(position=0, token=0)
                for _ in range(WARM_UP_RUNS):
                    program.launch(num_steps)
                self._stream.synchronize()
                graph = torch.cuda.CUDAGraph()
                # what other threads do meanwhile is not part of it: a target model may run beside the drafter
                mode = "thread_local"
                with (
                    _without_garbage_collection(),
                    torch.cuda.graph(graph, stream=self._stream, capture_error_mode=mode),
                ):
                    program.launch(num_steps)
        finally:
            # a failed capture's warm-up still works on the memory that the next launches take
            current.wait_stream(self._stream)
        return graph

    def _self_test(self, graph: torch.cuda.CUDAGraph, num_steps: int) -> None:
        """Hold a replay to the launches one by one, bit for bit, at two lengths; CaptureError where they differ."""
        program, memory = self._program, self._program.memory
        longest = self._longest_position(num_steps)
        for position, token in ((longest, 1), (longest // 2, 0)):
            found = []
            for run in (lambda: program.launch(num_steps), graph.replay):
                self._feed_null_rows(position=position, token=token)
                # what a run leaves is its own: nothing of the run before may pass for it
                memory.arena.zero_()
                memory.outputs.zero_()
                run()
                torch.cuda.synchronize(memory.device)
                found.append([part.clone() for part in (memory.arena, memory.outputs, *self._null_entries())])
                if memory.counters.any():
                    raise CaptureError(f"program {self.plan.name!r}: a run left a counter counted up; report this")
            if not all(_is_same(ours, theirs) for ours, theirs in zip(*found, strict=True)):
                raise CaptureError(
                    f"program {self.plan.name!r}: a replay at position {position} differs from its launches run one "
                    "by one; something of a sequence was baked into the graph"
                )

    def _longest_position(self, num_steps: int) -> int:
        """The last position that a block table has room for, the rows of later steps after it."""
        return max(self._table_rows() - num_steps, 0)

    def _table_rows(self) -> int:
        """Rows that the blocks of a block table hold; 1 for a program without one."""
        table, latent = self.plan.inputs.get("block_table"), self.plan.states.get("latent_cache")
        return 1 if table is None or latent is None else table.shape[1] * latent.shape[1]

    def _feed_null_rows(self, *, position: int, token: int) -> None:
        """Feed rows that are all alike and belong to nobody.

        They write in the null block and the null sequence only, and being alike they write the same there. Context rows
        may complete pools of their neighbours, so theirs are consecutive rows, from the start of a block on.
        """
        memory = self._program.memory
        generator = torch.Generator(memory.device).manual_seed(position)
        for name, view in self.plan.inputs.items():
            tensor = memory.tensor(view)
            if tensor.is_floating_point():
                row = torch.randn(view.shape[1:], generator=generator, device=memory.device)
                tensor.copy_(row.expand(view.shape))
            elif name in ("position", "selected_at"):
                tensor.copy_(self._null_positions(view.shape[0], position))
            else:
                # a mask of ones allows everything
                is_mask = name.startswith("grammar_bitmask")
                tensor.fill_(-1 if is_mask else token if name == "token" else NULL)
        for entries in self._null_entries():
            entries.normal_(generator=generator)

    def _null_positions(self, num_rows: int, position: int) -> Tensor:
        device = self._program.memory.device
        if self.plan.outputs:
            return torch.full((num_rows,), position, device=device)
        block_size = self.plan.states["latent_cache"].shape[1]
        start = position - position % block_size
        return torch.arange(start, start + num_rows, device=device).clamp(max=self._table_rows() - 1)

    def _null_entries(self) -> list[Tensor]:
        return [self._program.memory.tensor(view)[NULL] for view in self.plan.states.values()]


def _is_same(ours: Tensor, theirs: Tensor) -> bool:
    """Bit for bit, NaN too."""
    return torch.equal(ours.contiguous().view(torch.uint8), theirs.contiguous().view(torch.uint8))


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """A collection that frees a kernel in the middle of a capture would invalidate it."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
