"""Rows of nobody, as captures and their self-tests feed them: whoever runs last, the same is left in memory.

Programs of a launch run in any order on a device. Under the interpreter they run in turn, here forward and backward.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import pytest
import torch
from triton.runtime import interpreter

from compiler import DerivedWeights
from compiler.triton.cuda_graph import CudaGraphProgram
from drafts.proposer import DraftProposer
from drafts.runner import state_tensors
from drafts.triton_runner import compile_for_launches, launch_circuit, launch_plan
from tests.drafts.drafter_twin import make_proposer
from tests.support.fake_cuda import GPU, FakeCuda

pytestmark = pytest.mark.interpreted


@contextmanager
def backward() -> Iterator[None]:
    """Run the programs of every grid last to first."""
    builder = interpreter.interpreter_builder
    forward = builder.set_grid_idx

    def set_grid_idx(x: int, y: int, z: int) -> None:
        last = [size - 1 for size in builder.grid_dim]
        forward(last[0] - x, last[1] - y, last[2] - z)

    builder.set_grid_idx = set_grid_idx
    try:
        yield
    finally:
        del builder.set_grid_idx


@pytest.mark.parametrize("kpool", [1, 4])
@pytest.mark.parametrize(("num_drafts", "num_rows"), [(1, 4), (0, 16), (0, 64)], ids=["chain", "context", "long"])
def test_order_of_programs_changes_nothing_that_a_self_test_compares(
    num_drafts: int, num_rows: int, kpool: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last row of the table completes a pool; 64 context rows are more than there are from the last block on."""
    FakeCuda(monkeypatch)
    proposer = make_proposer(index_kpool=kpool, index_topk=2 * kpool)
    program = captured_program(proposer, num_drafts=num_drafts, num_rows=num_rows)
    launches, memory = program._program, program._program.memory
    position = program._longest_position(1)
    assert position == 63
    left = []
    for order in (nullcontext(), backward()):
        program._feed_null_rows(position=position, token=1)
        memory.arena.zero_()
        memory.outputs.zero_()
        with order:
            launches.launch(1)
        left.append([part.clone() for part in (memory.arena, memory.outputs, *program._null_entries())])
        assert not memory.counters.any()
    for ours, theirs in zip(*left, strict=True):
        assert torch.equal(ours, theirs)


def captured_program(proposer: DraftProposer, *, num_drafts: int, num_rows: int) -> CudaGraphProgram:
    binding, cache = proposer.circuit_draft(), proposer.cache
    assert binding is not None
    compiled = compile_for_launches(
        binding,
        launch_circuit(binding, num_drafts=num_drafts),
        num_rows=num_rows,
        max_blocks=4,
        num_blocks=cache.num_blocks,
        num_sequences=cache.num_sequences,
    )
    program = CudaGraphProgram(launch_plan(compiled, name="null rows"), device=GPU)
    derived = DerivedWeights(compiled.derived, binding.weights)
    program._program.bind(states=state_tensors(cache), weights={**binding.weights, **derived.tensors})
    return program
