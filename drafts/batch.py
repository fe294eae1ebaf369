"""The rows of one run, as tensors: what every path of the head takes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

MAX_ROWS_ON_HOST = 32
MAX_BLOCKS_ON_HOST = 1024  # of all block tables: beyond it operators are faster, and a million numbers take a second
NULL_BLOCK = (
    "RowBatch.block_table: expected a block for every row up to position, got the null block 0; "
    "grow the sequence with ensure_capacity first"
)
NOT_CONSECUTIVE = "RowBatch.position: expected consecutive positions of a sequence, got a gap or a repeat"
HOST = torch.device("cpu")
NUMBERS = ("token", "position", "sequence", "block_table")
APART = "RowBatch.sequence: expected the rows of a sequence side by side, got them apart"


@dataclass(frozen=True, slots=True)
class RowBatch:
    """n rows; each belongs to one sequence, and the rows of one sequence are adjacent with ascending positions.

    token       int64 [n]               the next token of the row
    hidden      [n, hidden_size]        the hidden it is paired with, in the model dtype
    position    int64 [n]               cache row of the sequence = slot = pair key; the row sees position + 1 tokens
    sequence    int64 [n]               tail slot of its sequence; 0 is the null sequence of padding rows
    block_table int64 [n, max_blocks]   cache blocks of its sequence in order, padded with the null block 0

    The numbers lie side by side on one device, the host where whoever made them knew them; the hiddens stay where the
    target left them. A path that needs them together asks for `beside_hiddens`.

    Shapes, dtypes and devices are checked here and raise ValueError; `check_values` looks at what the tensors hold.
    """

    token: Tensor
    hidden: Tensor
    position: Tensor
    sequence: Tensor
    block_table: Tensor

    def __post_init__(self) -> None:
        rows = self.token.shape[0] if self.token.dim() == 1 else -1
        if rows < 0:
            raise ValueError(f"RowBatch.token: expected int64 [n], got {list(self.token.shape)}; pass one id a row")
        for name, dims in (("token", 1), ("position", 1), ("sequence", 1), ("block_table", 2)):
            tensor: Tensor = getattr(self, name)
            if tensor.dtype != torch.int64 or tensor.dim() != dims or tensor.shape[0] != rows:
                shape = f"[{rows}]" if dims == 1 else f"[{rows}, max_blocks]"
                raise ValueError(
                    f"RowBatch.{name}: expected int64 {shape}, got {tensor.dtype} {list(tensor.shape)}; one entry a row"
                )
        if self.hidden.dim() != 2 or self.hidden.shape[0] != rows or not self.hidden.is_floating_point():
            raise ValueError(
                f"RowBatch.hidden: expected floating point [{rows}, hidden_size], got {self.hidden.dtype} "
                f"{list(self.hidden.shape)}; pass one hidden a row"
            )
        for name in NUMBERS:
            if getattr(self, name).device != self.token.device:
                raise ValueError(
                    f"RowBatch.{name}: expected device {self.token.device} like token, "
                    f"got {getattr(self, name).device}; move it first"
                )

    def beside_hiddens(self) -> RowBatch:
        """Return the rows with their numbers on the hiddens' device; the same object where they are there."""
        device = self.hidden.device
        if self.token.device == device:
            return self
        moved = {name: getattr(self, name).to(device) for name in NUMBERS}
        return RowBatch(hidden=self.hidden, **moved)

    @property
    def num_rows(self) -> int:
        """n, the rows of this run, padding rows included."""
        return self.token.shape[0]

    def check_values(
        self, *, vocab_size: int, num_blocks: int, block_size: int, num_sequences: int, lookahead: int = 0
    ) -> None:
        """Raise ValueError for an id, position, sequence or block that no run may see; waits for the device.

        `lookahead`: rows beyond `position` that the run will write too (K - 1 for a chain of K drafts). Rows of the
        null sequence may repeat a position and may point at the null block; live rows may not.
        """
        if self.num_rows == 0:
            return
        rows_held = self.block_table.shape[1] * block_size
        limits = (
            ("token", vocab_size, "a token id of the vocabulary"),
            ("sequence", num_sequences, "a tail slot of the cache"),
            ("block_table", num_blocks, "a block of the cache"),
            ("position", rows_held - lookahead, f"a row of the block table's {rows_held}"),
        )
        # a round's few rows are looked at as numbers: an operator call costs more than a comparison
        if self.num_rows <= MAX_ROWS_ON_HOST and self.block_table.numel() <= MAX_BLOCKS_ON_HOST:
            self._check_on_host(limits, block_size=block_size, lookahead=lookahead)
            return
        for name, end, meaning in limits:
            tensor: Tensor = getattr(self, name)
            low, high = (int(tensor.min()), int(tensor.max())) if tensor.numel() else (0, -1)
            _check_range(name, low, high, end, meaning)
        live = self.sequence > 0
        last_block = (self.position + lookahead) // block_size
        needed = torch.arange(self.block_table.shape[1], device=self.token.device) <= last_block[:, None]
        if bool((live[:, None] & needed & (self.block_table == 0)).any()):
            raise ValueError(NULL_BLOCK)
        self._check_order(live)

    def _check_on_host(self, limits: tuple[tuple[str, int, str], ...], *, block_size: int, lookahead: int) -> None:
        for name, end, meaning in limits:
            held: Tensor = getattr(self, name)
            values = held.flatten().tolist()
            _check_range(name, min(values, default=0), max(values, default=-1), end, meaning)
        sequences, positions, tables = self.sequence.tolist(), self.position.tolist(), self.block_table.tolist()
        for sequence, position, table in zip(sequences, positions, tables, strict=True):
            if sequence > 0 and 0 in table[: (position + lookahead) // block_size + 1]:
                raise ValueError(NULL_BLOCK)
        ended = {0}
        for row, sequence in enumerate(sequences):
            is_same = row > 0 and sequence == sequences[row - 1] and sequence > 0
            if is_same and positions[row] != positions[row - 1] + 1:
                raise ValueError(NOT_CONSECUTIVE)
            if not is_same and sequence > 0 and sequence in ended:
                raise ValueError(APART)
            ended.add(sequence)

    def _check_order(self, live: Tensor) -> None:
        """Rows of one live sequence are adjacent and their positions consecutive."""
        same = (self.sequence[1:] == self.sequence[:-1]) & live[1:]
        if bool((same & (self.position[1:] != self.position[:-1] + 1)).any()):
            raise ValueError(NOT_CONSECUTIVE)
        num_runs = int((live[1:] & ~same).sum()) + int(live[0])
        if num_runs != self.sequence[live].unique().numel():
            raise ValueError(APART)


def _check_range(name: str, low: int, high: int, end: int, meaning: str) -> None:
    if low < 0 or high >= end:
        raise ValueError(f"RowBatch.{name}: expected {meaning}, 0 to {end - 1}, got {low if low < 0 else high}")
