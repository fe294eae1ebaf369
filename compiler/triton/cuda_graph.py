"""CudaGraphProgram: a launch plan captured once and replayed, so that a whole propose is one graph.

What a graph bakes in, addresses and plain numbers, is guarded: tensors bound to other memory drop the graph and it is
captured anew; weights copied into their memory are seen, since kernels read them there. Lengths, positions and tokens
are tensors, which a self-test after capture proves: a replay equals the launches run one by one, at two lengths.
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
from compiler.triton.program import LaunchProgram

_log = logging.getLogger("circuit")

WARM_UP_RUNS = 2  # compile and load every kernel: neither may happen while a graph is captured
NULL = 0  # the block and the sequence that belong to nobody


@dataclass(frozen=True, slots=True)
class _Captured:
    """A graph of some steps, and the addresses that it has baked in."""

    graph: torch.cuda.CUDAGraph
    addresses: tuple[int, ...]


class CudaGraphProgram:
    """Runs like a LaunchProgram, by one replay; a graph per number of steps, made when first asked for.

    counts: `captured`, `replayed`, `recaptured` (a tensor was bound to other memory), and `uncaptured` runs: a capture
    or its self-test failed, which is said once.
    """

    def __init__(self, plan: LaunchPlan, *, device: torch.device) -> None:
        if device.type != "cuda":
            raise LoweringError(f"program {plan.name!r}: CUDA graphs need a CUDA device, got {device}")
        self.plan = plan
        self.counts: Counter[str] = Counter()
        self.why_uncaptured = ""
        self._program = LaunchProgram(plan, device=device)
        self._graphs: dict[int, _Captured] = {}
        self._stream = torch.cuda.Stream(device)

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
        program.bind(states=states, weights=weights)
        captured = None if self.why_uncaptured else self._current(num_steps)
        program.memory.feed(inputs)
        if captured is None:
            self.counts["uncaptured"] += 1
            program.launch(num_steps)
        else:
            captured.graph.replay()
            self.counts["replayed"] += 1
        return program.read(outputs, num_steps)

    def drop(self) -> None:
        """Release the graphs and their memory; the next run captures again."""
        self._graphs.clear()

    def _current(self, num_steps: int) -> _Captured | None:
        addresses = self._addresses()
        held = self._graphs.get(num_steps)
        if held is not None and held.addresses == addresses:
            return held
        if held is not None:
            self.counts["recaptured"] += 1
            # every graph of this program reads the same tensors
            self.drop()
        try:
            self._graphs[num_steps] = _Captured(self._captured(num_steps), addresses)
            self.counts["captured"] += 1
            self._self_test(num_steps)
        except (CaptureError, RuntimeError) as error:
            self._graphs.clear()
            self.why_uncaptured = str(error)
            _log.warning(
                "program %s: not captured, its launches are started one by one from here on: %s", self.plan.name, error
            )
            return None
        return self._graphs[num_steps]

    def _addresses(self) -> tuple[int, ...]:
        plan = self.plan
        return self._program.memory.addresses((*plan.weights.values(), *plan.states.values()))

    def _captured(self, num_steps: int) -> torch.cuda.CUDAGraph:
        program = self._program
        current = torch.cuda.current_stream(program.memory.device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream), self._null_rows(position=0):
            for _ in range(WARM_UP_RUNS):
                program.launch(num_steps)
            self._stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            with _without_garbage_collection(), torch.cuda.graph(graph, stream=self._stream):
                program.launch(num_steps)
        current.wait_stream(self._stream)
        return graph

    def _self_test(self, num_steps: int) -> None:
        """Hold a replay to the launches one by one, bit for bit, at two lengths; CaptureError where they differ."""
        program, graph = self._program, self._graphs[num_steps].graph
        longest = self._longest_position(num_steps)
        for position in (longest, longest // 2):
            found = []
            for run in (lambda: program.launch(num_steps), graph.replay):
                with self._null_rows(position=position):
                    # what a run leaves is its own: nothing of the run before may pass for it
                    program.memory.arena.zero_()
                    program.memory.outputs.zero_()
                    run()
                    torch.cuda.synchronize(program.memory.device)
                    found.append((program.memory.arena.clone(), program.memory.outputs.clone(), *self._null_entries()))
            if not all(torch.equal(ours, theirs) for ours, theirs in zip(*found, strict=True)):
                raise CaptureError(
                    f"program {self.plan.name!r}: a replay at position {position} differs from its launches run one "
                    "by one; something of a sequence was baked into the graph"
                )

    def _longest_position(self, num_steps: int) -> int:
        """The last position that a block table has room for, the rows of later steps after it."""
        table, latent = self.plan.inputs.get("block_table"), self.plan.states.get("latent_cache")
        if table is None or latent is None:
            return 0
        return max(table.shape[1] * latent.shape[1] - num_steps, 0)

    @contextmanager
    def _null_rows(self, *, position: int) -> Iterator[None]:
        """Feed rows that are all alike and belong to nobody, and put back what was fed before.

        They write in the null block and the null sequence only, and being alike they write the same there.
        """
        memory = self._program.memory
        kept = memory.inputs.clone()
        generator = torch.Generator(memory.device).manual_seed(position)
        for name, view in self.plan.inputs.items():
            tensor = memory.tensor(view)
            if tensor.is_floating_point():
                row = torch.randn(view.shape[1:], generator=generator, device=memory.device)
                tensor.copy_(row.expand(view.shape))
            else:
                # a mask of ones allows everything; a token of any vocabulary, a sequence and a block of nobody
                tensor.fill_({"position": position, "selected_at": position}.get(name, NULL))
                if name.startswith("grammar_bitmask"):
                    tensor.fill_(-1)
        for entries in self._null_entries():
            entries.normal_(generator=generator)
        yield
        memory.inputs.copy_(kept)

    def _null_entries(self) -> list[Tensor]:
        return [self._program.memory.tensor(view)[NULL] for view in self.plan.states.values()]


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
