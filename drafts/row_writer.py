"""Rows that pair known tokens with the target's own hiddens, written to the cache: all of a call's or none."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from circuit import StateError
from drafts.batch import RowBatch
from drafts.cache import DrafterCache
from drafts.path import DraftPath
from drafts.proposer_state import ProposerState, undone_on_error

MAX_CONTEXT_ROWS = 512  # rows of one context run, which bounds the memory of a prefill


@dataclass(frozen=True, slots=True)
class AcceptedRows:
    """What a verify accepted of one sequence: tokens [m], hiddens [m, hidden_size], and their first row."""

    tokens: Tensor
    hiddens: Tensor
    first: int
    state: ProposerState


class RowWriter:
    """Writes context rows by whichever path runs, and counts the runs."""

    def __init__(self, cache: DrafterCache, counts: Counter[str]) -> None:
        self._cache = cache
        self._counts = counts

    def append(self, path: DraftPath, tokens: Tensor, hiddens: Tensor, state: ProposerState) -> int:
        """Append rows tokens [m], hiddens [m, hidden_size] in runs of bounded size; returns m."""
        first, num_rows = self._cache.rows(state.sequence), tokens.numel()
        if num_rows == 0:
            return 0
        with undone_on_error(self._cache, [(state, first)]):
            self._reserve(state, first + num_rows)
            for start in range(0, num_rows, MAX_CONTEXT_ROWS):
                part = slice(start, min(start + MAX_CONTEXT_ROWS, num_rows))
                self._run(path, _context_rows(self._cache, state, tokens[part], hiddens[part], first + start))
                self._cache.commit(state.sequence, first + part.stop)
        state.num_drafted = 0
        return num_rows

    def write_accepted(self, path: DraftPath, parts: Sequence[AcceptedRows], *, rewrites: bool) -> list[int]:
        """Write each sequence's accepted rows in one run; returns the rows written for each.

        With `rewrites` the rows from `first` on are dropped and written anew, without it only missing rows are written.
        """
        with undone_on_error(self._cache, [(part.state, part.first) for part in parts]):
            batches = [self._missing(part, rewrites=rewrites) for part in parts]
            if present := [batch for batch in batches if batch is not None]:
                self._run(path, _joined(present))
            written = [0 if batch is None else batch.num_rows for batch in batches]
            for part, num_rows in zip(parts, written, strict=True):
                self._cache.commit(part.state.sequence, self._cache.rows(part.state.sequence) + num_rows)
        for part, num_rows in zip(parts, written, strict=True):
            # drafts that this call neither dropped nor built upon still wait for their verify
            part.state.clamp_drafted(0 if num_rows else self._cache.rows(part.state.sequence))
        return written

    def _missing(self, part: AcceptedRows, *, rewrites: bool) -> RowBatch | None:
        """Drop the rows to be rewritten; return those to write, None where there are none."""
        cache, sequence = self._cache, part.state.sequence
        if cache.rows(sequence) < part.first:
            return None
        if rewrites and cache.rewind(sequence, part.first) < part.first:
            raise StateError(
                f"catchup_batch: row {part.first} cannot be rewritten, the raw rows of its pool are gone; "
                f"rewind, and catch up from row {cache.rows(sequence)}"
            )
        start, end = cache.rows(sequence), part.first + part.tokens.numel()
        if end <= start:
            return None
        self._reserve(part.state, end)
        missing = slice(start - part.first, None)
        return _context_rows(cache, part.state, part.tokens[missing], part.hiddens[missing], start)

    def _reserve(self, state: ProposerState, rows: int) -> None:
        if rows > state.max_rows:
            raise StateError(
                f"DraftProposer: expected at most {state.max_rows} rows, got {rows}; "
                f"allocate the state for a larger budget"
            )
        self._cache.ensure_capacity(state.sequence, rows)

    def _run(self, path: DraftPath, rows: RowBatch) -> None:
        path.write_rows(rows, self._cache)
        self._counts[f"context.{path.name}"] += 1


def _context_rows(
    cache: DrafterCache, state: ProposerState, tokens: Tensor, hiddens: Tensor, first_row: int
) -> RowBatch:
    """Return tokens [m] and hiddens [m, hidden_size] of one sequence as rows from `first_row` on."""
    num_rows = tokens.shape[0]
    return RowBatch(
        token=tokens,
        hidden=hiddens.contiguous(),
        position=torch.arange(first_row, first_row + num_rows),
        sequence=torch.full((num_rows,), state.sequence.slot, dtype=torch.int64),
        block_table=cache.block_table([state.sequence]).expand(num_rows, -1),
    )


def _joined(parts: Sequence[RowBatch]) -> RowBatch:
    """Return the rows of several sequences as one batch, block tables padded to one width."""
    width = max(part.block_table.shape[1] for part in parts)
    tables = [functional.pad(part.block_table, (0, width - part.block_table.shape[1])) for part in parts]
    return RowBatch(
        token=torch.cat([part.token for part in parts]),
        hidden=torch.cat([part.hidden for part in parts]),
        position=torch.cat([part.position for part in parts]),
        sequence=torch.cat([part.sequence for part in parts]),
        block_table=torch.cat(tables),
    )
