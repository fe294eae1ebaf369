"""CompiledRunner: the circuit's compiled programs in place of the interpreter, picked by bucket."""

import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from drafts.batch import RowBatch
from drafts.binding import DraftBinding, require_whole
from drafts.cache import DrafterCache
from drafts.path import Drafts
from drafts.programs import ProgramKey, ProgramKind
from drafts.runner import DraftRunner, check_chain, check_rows, row_inputs, state_tensors

_log = logging.getLogger("circuit")


class Program(Protocol):
    """A compiled program: runs on tensors by name, changes the states in place, returns the outputs."""

    def run(
        self,
        *,
        inputs: Mapping[str, Tensor],
        states: Mapping[str, Tensor],
        weights: Mapping[str, Tensor],
        num_steps: int,
        outputs: Sequence[str],
    ) -> dict[str, Tensor]:
        """Run `num_steps` steps, each fed by the one before; return the outputs by name, [num_steps, ...]."""
        ...


@dataclass(frozen=True, slots=True)
class _Fit:
    """A program and how a run is padded to it."""

    key: ProgramKey
    program: Program


class CompiledRunner:
    """A draft path over compiled programs; what none of them serves runs interpreted, said once and counted.

    A run is padded to the smallest program that fits: rows of the null sequence that write nothing anyone reads, and
    block tables of null blocks.
    """

    def __init__(
        self,
        binding: DraftBinding,
        programs: Mapping[ProgramKey, Program],
        *,
        backend: str,
        exact: Collection[ProgramKey] = (),
        inexact: Collection[ProgramKey] = (),
    ) -> None:
        """Take over programs; rows run beside one another in the chains that `exact` or `inexact` names.

        `exact`: those that give a row the same bits whatever rows run beside it; `inexact`: those that need not.
        """
        require_whole(binding)
        self.binding = binding
        self.name = f"circuit:{backend}"
        self.fallbacks: Counter[str] = Counter()
        self._programs = dict(sorted(programs.items()))
        self._shared = {key for key in {*exact, *inexact} if key.kind == "chain"}
        self._max_chains = max((key.num_rows for key in self._shared), default=1)
        self._interpreted = DraftRunner(binding)

    @property
    def is_batch_invariant(self) -> bool:
        """Whether rows run beside one another: where programs for several were compiled that change no row's bits.

        Also where the drafter's levers allow other bits.
        """
        return self._max_chains > 1

    def write_rows(self, rows: RowBatch, cache: DrafterCache) -> None:
        """Write context rows, as many at a time as the largest program takes."""
        check_rows(self.binding, rows, cache, lookahead=0)
        largest = max((key.num_rows for key in self._programs if key.kind == "context"), default=rows.num_rows)
        for start in range(0, rows.num_rows, max(largest, 1)):
            self._write(part_of(rows, start, start + largest), cache)

    def _write(self, rows: RowBatch, cache: DrafterCache) -> None:
        fit = self._fit("context", rows, num_drafts=0)
        if fit is None:
            self._interpreted.write_rows(rows, cache)
            return
        self._run(fit, rows, cache, num_steps=1, outputs=())

    def draft(
        self,
        rows: RowBatch,
        cache: DrafterCache,
        *,
        num_drafts: int,
        grammar: Tensor | None = None,
        has_confidence: bool = False,
    ) -> Drafts:
        """Draft a chain per row; see DraftPath."""
        check_chain(self.binding, rows, cache, num_drafts=num_drafts)
        is_plain = grammar is None and not has_confidence
        size = self._max_chains if is_plain else 1
        if rows.num_rows > size:
            parts = [
                self.draft(
                    part_of(rows, start, start + size),
                    cache,
                    num_drafts=num_drafts,
                    grammar=None if grammar is None else grammar[start : start + size],
                    has_confidence=has_confidence,
                )
                for start in range(0, rows.num_rows, size)
            ]
            confidences = [part.confidences for part in parts if part.confidences is not None]
            return Drafts(torch.cat([part.ids for part in parts]), torch.cat(confidences) if confidences else None)
        fit = None
        if not is_plain:
            self._count_fallback("grammar masks and confidences")
        else:
            fit = self._fit("chain", rows, num_drafts=num_drafts)
        if fit is None:
            return self._interpreted.draft(
                rows, cache, num_drafts=num_drafts, grammar=grammar, has_confidence=has_confidence
            )
        outputs = self._run(fit, rows, cache, num_steps=num_drafts, outputs=("token",))
        return Drafts(outputs["token"][:, : rows.num_rows].T.contiguous())

    def _run(
        self, fit: _Fit, rows: RowBatch, cache: DrafterCache, *, num_steps: int, outputs: Sequence[str]
    ) -> dict[str, Tensor]:
        padded = padded_rows(rows, fit.key.num_rows, fit.key.max_rows // cache.block_size)
        return fit.program.run(
            inputs=row_inputs(padded),
            states=state_tensors(cache),
            weights=self.binding.weights,
            num_steps=num_steps,
            outputs=outputs,
        )

    def _fit(self, kind: ProgramKind, rows: RowBatch, *, num_drafts: int) -> _Fit | None:
        """The smallest program that serves the rows, None where there is none, which is counted."""
        newest = int(rows.position.max()) + 1 if rows.num_rows else 0
        for key, program in self._programs.items():
            is_large_enough = key.num_rows >= rows.num_rows and key.max_rows >= newest + max(num_drafts - 1, 0)
            if (
                key.kind == kind
                and is_large_enough
                and (kind == "context" or rows.num_rows == 1 or key in self._shared)
            ):
                return _Fit(key, program)
        self._count_fallback(f"{kind} of {rows.num_rows} rows and {num_drafts} drafts at {newest} rows")
        return None

    def _count_fallback(self, what: str) -> None:
        if not self.fallbacks:
            _log.warning("%s: no compiled program for %s; interpreted, which is slow", self.name, what)
        self.fallbacks[what] += 1


def part_of(rows: RowBatch, start: int, stop: int) -> RowBatch:
    """Return rows `start` to `stop` of a batch."""
    part = slice(start, stop)
    return RowBatch(
        rows.token[part], rows.hidden[part], rows.position[part], rows.sequence[part], rows.block_table[part]
    )


def padded_rows(rows: RowBatch, num_rows: int, max_blocks: int) -> RowBatch:
    """Return the rows with null rows after them and a block table of `max_blocks`, all contiguous."""
    extra = num_rows - rows.num_rows
    is_whole = extra == 0 and rows.block_table.shape[1] == max_blocks
    if is_whole and all(getattr(rows, name).is_contiguous() for name in RowBatch.__slots__):
        return rows
    # blocks beyond the program's context are spare ones, for rows not written yet
    table = rows.block_table[:, :max_blocks]
    return RowBatch(
        token=functional.pad(rows.token, (0, extra)).contiguous(),
        hidden=functional.pad(rows.hidden, (0, 0, 0, extra)).contiguous(),
        position=functional.pad(rows.position, (0, extra)).contiguous(),
        sequence=functional.pad(rows.sequence, (0, extra)).contiguous(),
        block_table=functional.pad(table, (0, max_blocks - table.shape[1], 0, extra)).contiguous(),
    )
