"""The programs a drafter is compiled to: which ones, over which circuit, at which sizes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from circuit import Circuit
from compiler import Feedback, chain, loop_step, remove_dead_code
from drafts.binding import DraftBinding

ProgramKind = Literal["chain", "context"]

COMPILED_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
CONTEXT_ROWS = (4, 64)  # a round's catch-up, and a prefill's part


@dataclass(frozen=True, slots=True, order=True)
class ProgramKey:
    """One compiled program: chains of drafts of `num_rows` sequences, or `num_rows` context rows.

    max_rows: the longest sequence it serves, in cache rows, its own rows included; a multiple of the block size.
    num_drafts: the drafts it was asked for; the step inside runs any number of times. 0 for context rows.
    """

    kind: ProgramKind
    num_drafts: int
    num_rows: int
    max_rows: int

    @property
    def name(self) -> str:
        """The name of its file: `chain_rows1_context1024`."""
        return f"{self.kind}_rows{self.num_rows}_context{self.max_rows}"


def program_circuit(binding: DraftBinding, key: ProgramKey) -> Circuit:
    """Return what a program means, dead code removed: all drafts of a chain, one after the other."""
    if key.kind == "context":
        return binding.context()
    first, following = binding.step(is_first=True), binding.step(is_first=False)
    steps = [first, *[following] * (key.num_drafts - 1)]
    return remove_dead_code(chain(steps, feedback=binding.feedback, outputs=("token",)))


def program_step(binding: DraftBinding, key: ProgramKey) -> tuple[Circuit, tuple[Feedback, ...]]:
    """Return what is compiled of a program: the circuit that a run repeats, and how a repetition feeds the next."""
    if key.kind == "context":
        return binding.context(), ()
    return loop_step(binding.step(is_first=True), feedback=binding.feedback)


def program_dims(binding: DraftBinding, key: ProgramKey) -> dict[str, int]:
    """Return the sizes of the named dims that a program fixes."""
    return {
        "n": key.num_rows,
        "max_blocks": key.max_rows // binding.state_layout.block_size,
        **binding.dims,
    }


def program_keys(
    binding: DraftBinding,
    *,
    num_drafts: int,
    batches: Sequence[int],
    contexts: Sequence[int],
    context_rows: Sequence[int] = CONTEXT_ROWS,
) -> tuple[ProgramKey, ...]:
    """Return the programs of a compile: a chain per batch and context bucket, context rows per bucket, sorted.

    `contexts` in rows are rounded up to whole blocks.
    """
    size = binding.state_layout.block_size
    rounded = sorted({-(-rows // size) * size for rows in contexts})
    chains = {ProgramKey("chain", num_drafts, batch, rows) for batch in batches for rows in rounded}
    # context rows attend nothing: one block table width serves every context
    writes = {ProgramKey("context", 0, rows, rounded[-1]) for rows in context_rows}
    return tuple(sorted(chains | writes))
