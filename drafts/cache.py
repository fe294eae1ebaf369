"""The drafter's paged cache: three tensors, a pool of blocks shared by sequences, and what each sequence may still use.

Legend: kpool tokens make one pool, a block holds block_size rows and block_size // kpool pool keys. Block 0 and tail
slot 0 belong to nobody: padding rows write there, and what they hold never matters.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from circuit.errors import StateError
from drafts.config import DraftConfig

DEFAULT_BLOCK_SIZE = 16  # rows
DEFAULT_MAX_NUM_DRAFTS = 16


@dataclass(slots=True, eq=False)
class CachedSequence:
    """One sequence's share of the cache; made by DrafterCache.allocate and changed by the cache only.

    `rows` are the valid cache rows. `raw_from` is the first row from which on every row's raw (key, gate) is still in
    the tail's ring; rows below it have been overwritten there.
    """

    slot: int
    blocks: list[int] = field(default_factory=list)
    rows: int = 0
    raw_from: int = 0
    is_freed: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class CarriedRows:
    """Rows between two sequences: their blocks and counts, and their raw tail [tail_depth, 2, index_head_dim]."""

    rows: CachedSequence  # without a tail slot of its own
    tail: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class SavedRows:
    """What a sequence held before a run that may fail: counts, tail, and the blocks of rows it may overwrite."""

    rows: int
    raw_from: int
    tail: Tensor  # [tail_depth, 2, index_head_dim]
    blocks: list[int]
    latent: Tensor  # [len(blocks), block_size, kv_lora_rank]
    index_keys: Tensor  # [len(blocks), block_size // kpool, index_head_dim]


class DrafterCache:
    """Paged latent rows, paged pool keys and the raw index tail of all sequences.

    latent      [num_blocks, block_size, kv_lora_rank]                     row r of a sequence: block r // block_size
    index_keys  [num_blocks, block_size // kpool, index_head_dim]          pool p lies in the block of its rows
    tail        [num_sequences, tail_depth, 2, index_head_dim]             (key, gate) of row r in place r % tail_depth

    All in the model dtype, all NaN until written, so that a read of an unwritten row shows. The cache hands out memory
    and counts rows; it computes nothing. A path writes the tensors, then the caller says `commit`.
    `num_blocks` and `num_sequences` include the null block and the null sequence. `poison_freed` overwrites what a
    freed sequence held with NaN, for tests. Not safe for use from two threads.
    """

    def __init__(
        self,
        config: DraftConfig,
        *,
        num_blocks: int,
        num_sequences: int,
        block_size: int | None = None,
        tail_depth: int | None = None,
        device: torch.device | str = "cpu",
        poison_freed: bool = False,
    ) -> None:
        kpool = config.index_kpool
        if block_size is None:
            block_size = default_block_size(kpool)
        if tail_depth is None:
            tail_depth = kpool + DEFAULT_MAX_NUM_DRAFTS
        if block_size < 1 or block_size % kpool:
            raise ValueError(f"DrafterCache.block_size: expected a multiple of index_kpool {kpool}, got {block_size}")
        if tail_depth < kpool:
            raise ValueError(f"DrafterCache.tail_depth: expected index_kpool {kpool} or more, got {tail_depth}")
        for name, count in (("num_blocks", num_blocks), ("num_sequences", num_sequences)):
            if count < 2:
                raise ValueError(f"DrafterCache.{name}: expected 2 or more, the null one included, got {count}")
        self.config = config
        self.block_size = block_size
        self.tail_depth = tail_depth
        self.poison_freed = poison_freed
        pools_a_block, head_dim = block_size // kpool, config.index_head_dim

        def unwritten(*shape: int) -> Tensor:
            return torch.full(shape, math.nan, dtype=config.dtype, device=device)

        self.latent = unwritten(num_blocks, block_size, config.kv_lora_rank)
        self.index_keys = unwritten(num_blocks, pools_a_block, head_dim)
        self.tail = unwritten(num_sequences, tail_depth, 2, head_dim)
        # the lowest number is handed out first, which keeps runs repeatable
        self._free_blocks = list(range(num_blocks - 1, 0, -1))
        self._free_slots = list(range(num_sequences - 1, 0, -1))

    @classmethod
    def for_rows(
        cls,
        config: DraftConfig,
        max_rows: int,
        *,
        num_sequences: int = 1,
        max_num_drafts: int = DEFAULT_MAX_NUM_DRAFTS,
        block_size: int | None = None,
        device: torch.device | str = "cpu",
        poison_freed: bool = False,
    ) -> DrafterCache:
        """Build a cache for `num_sequences` sequences of `max_rows` rows, null block and null sequence added."""
        size = default_block_size(config.index_kpool) if block_size is None else block_size
        return cls(
            config,
            num_blocks=max(1, num_sequences * math.ceil(max_rows / size)) + 1,
            num_sequences=num_sequences + 1,
            block_size=size,
            tail_depth=config.index_kpool + max_num_drafts,
            device=device,
            poison_freed=poison_freed,
        )

    @property
    def num_blocks(self) -> int:
        """Blocks of the tensors, the null block included."""
        return self.latent.shape[0]

    @property
    def num_sequences(self) -> int:
        """Tail slots, the null sequence included."""
        return self.tail.shape[0]

    @property
    def num_free_blocks(self) -> int:
        """Blocks nobody holds."""
        return len(self._free_blocks)

    @property
    def num_free_sequences(self) -> int:
        """Sequences that can still be allocated."""
        return len(self._free_slots)

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one block: its latent rows and its pool keys."""
        return self.latent[0].nbytes + self.index_keys[0].nbytes

    @property
    def bytes_per_tail(self) -> int:
        """Bytes of one sequence's raw tail."""
        return self.tail[0].nbytes

    @property
    def bytes_total(self) -> int:
        """Bytes of the three tensors."""
        return self.latent.nbytes + self.index_keys.nbytes + self.tail.nbytes

    def bytes_held(self, sequence: CachedSequence) -> int:
        """Bytes the sequence holds: its blocks and its tail."""
        self._require_live(sequence, "bytes_held")
        return len(sequence.blocks) * self.bytes_per_block + self.bytes_per_tail

    def allocate(self, *, rows: int = 0) -> CachedSequence:
        """Return a new sequence with room for `rows` rows and none written; all or nothing.

        Raises StateError when no tail slot is left or the blocks do not suffice.
        """
        if not self._free_slots:
            raise StateError(
                f"DrafterCache.allocate: expected a free sequence, got all {self.num_sequences - 1} in use; "
                "free one or build the cache with a larger num_sequences"
            )
        sequence = CachedSequence(slot=self._free_slots[-1])
        self.ensure_capacity(sequence, rows)
        self._free_slots.pop()
        return sequence

    def free(self, sequence: CachedSequence) -> None:
        """Give back the sequence's blocks and tail slot; a second call does nothing."""
        if sequence.is_freed:
            return
        if self.poison_freed:
            self.tail[sequence.slot] = math.nan
        self._release(sequence.blocks)
        self._free_slots.append(sequence.slot)
        sequence.is_freed = True
        sequence.blocks, sequence.rows, sequence.raw_from = [], 0, 0

    def take(self, sequence: CachedSequence) -> CarriedRows:
        """Take the sequence's rows out of it, to be given to another one; leaves it empty, its spare blocks with it."""
        self._require_live(sequence, "take")
        num_kept = math.ceil(sequence.rows / self.block_size)
        carried = CarriedRows(
            CachedSequence(0, sequence.blocks[:num_kept], sequence.rows, sequence.raw_from),
            self.tail[sequence.slot].clone(),
        )
        sequence.blocks, sequence.rows, sequence.raw_from = sequence.blocks[num_kept:], 0, 0
        return carried

    def give(self, carried: CarriedRows, sequence: CachedSequence) -> None:
        """Give carried rows to a sequence that has none; they cannot be given again."""
        if self.rows(sequence) or carried.rows.is_freed:
            raise StateError("DrafterCache.give: expected an empty sequence and rows not given yet; take them first")
        source = carried.rows
        # what may fail comes first, so that no block ever has two owners
        self.tail[sequence.slot] = carried.tail
        sequence.blocks = source.blocks + sequence.blocks
        sequence.rows, sequence.raw_from = source.rows, source.raw_from
        source.blocks, source.is_freed = [], True

    def free_carried(self, carried: CarriedRows) -> None:
        """Give the carried blocks back to the pool; a second call, or one after `give`, does nothing."""
        if not carried.rows.is_freed:
            self._release(carried.rows.blocks)
            carried.rows.blocks, carried.rows.is_freed = [], True

    def shrink(self, sequence: CachedSequence, rows: int) -> None:
        """Give back the blocks that `rows` rows, or those there are, do not need."""
        num_kept = math.ceil(max(rows, self.rows(sequence)) / self.block_size)
        spare, sequence.blocks = sequence.blocks[num_kept:], sequence.blocks[:num_kept]
        self._release(spare)

    def capacity(self, sequence: CachedSequence) -> int:
        """Rows that fit the blocks the sequence holds."""
        self._require_live(sequence, "capacity")
        return len(sequence.blocks) * self.block_size

    def ensure_capacity(self, sequence: CachedSequence, rows: int) -> None:
        """Give the sequence blocks for `rows` rows in all, before anything is written; all or nothing.

        Raises StateError when the pool has too few; then nothing has changed. Never shrinks.
        """
        self._require_live(sequence, "ensure_capacity")
        num_missing = math.ceil(rows / self.block_size) - len(sequence.blocks)
        if num_missing <= 0:
            return
        if num_missing > len(self._free_blocks):
            raise StateError(
                f"DrafterCache.ensure_capacity: expected {num_missing} free blocks for {rows} rows, "
                f"got {len(self._free_blocks)} of {self.num_blocks - 1}; free a sequence or use a larger num_blocks"
            )
        sequence.blocks += [self._free_blocks.pop() for _ in range(num_missing)]

    def commit(self, sequence: CachedSequence, rows: int) -> None:
        """Count the rows that a run has written: the sequence now has `rows` of them, all from its old end on.

        Every row that was written must be counted, for each overwrote a place of the ring; rejected ones are dropped by
        `rewind` afterwards. Raises StateError when that is fewer than before, or more than its blocks hold.
        """
        if not self.rows(sequence) <= rows <= self.capacity(sequence):
            raise StateError(
                f"DrafterCache.commit: expected {sequence.rows} to {self.capacity(sequence)} rows, got {rows}; "
                "use rewind to drop rows and ensure_capacity to grow"
            )
        # the newest tail_depth rows are in the ring; what was lost before stays lost
        sequence.raw_from = max(sequence.raw_from, rows - self.tail_depth)
        sequence.rows = rows

    def rows(self, sequence: CachedSequence) -> int:
        """Valid rows of the sequence."""
        self._require_live(sequence, "rows")
        return sequence.rows

    def rewind(self, sequence: CachedSequence, rows: int) -> int:
        """Drop rows from the end until at most `rows` are left; returns the rows kept. Blocks stay with the sequence.

        Exact or shorter, never wrong. `rows` within a pool can be kept only while that pool's raw rows are all in the
        ring, for its key will be made of them again; otherwise the cut falls to the pool's start. Rows dropped before
        may have overwritten raw rows, and that is remembered: rewinding twice is no way around it.
        """
        if rows < 0:
            raise ValueError(f"DrafterCache.rewind: expected 0 rows or more, got {rows}")
        if rows >= self.rows(sequence):
            return sequence.rows
        pool_start = rows - rows % self.config.index_kpool
        sequence.rows = rows if sequence.raw_from <= pool_start else pool_start
        sequence.raw_from = min(sequence.raw_from, sequence.rows)
        return sequence.rows

    def save(self, sequence: CachedSequence, first_row: int) -> SavedRows:
        """Copy what a run that writes from `first_row` on may overwrite of the live rows, and the whole raw tail."""
        rows = self.rows(sequence)
        last = math.ceil(rows / self.block_size)
        blocks = sequence.blocks[first_row // self.block_size : last] if first_row < rows else []
        return SavedRows(
            rows=rows,
            raw_from=sequence.raw_from,
            tail=self.tail[sequence.slot].clone(),
            blocks=blocks,
            latent=self.latent[blocks] if blocks else self.latent[:0],
            index_keys=self.index_keys[blocks] if blocks else self.index_keys[:0],
        )

    def put_back(self, sequence: CachedSequence, saved: SavedRows) -> None:
        """Make the sequence hold what it held at `save`; it still has the blocks that it had then."""
        sequence.rows, sequence.raw_from = saved.rows, saved.raw_from
        self.tail[sequence.slot] = saved.tail
        if saved.blocks:
            self.latent[saved.blocks] = saved.latent
            self.index_keys[saved.blocks] = saved.index_keys

    def complete_pools(self, sequence: CachedSequence) -> int:
        """Pools whose key counts: pool p does when (p + 1) * kpool <= rows."""
        return self.rows(sequence) // self.config.index_kpool

    def block_table(self, sequences: Sequence[CachedSequence], *, width: int | None = None) -> Tensor:
        """Return int64 [len(sequences), width] on the host: each row the sequence's blocks, then the null block 0.

        `width` defaults to the longest list, and to 1 at least.
        """
        for sequence in sequences:
            self._require_live(sequence, "block_table")
        longest = max((len(sequence.blocks) for sequence in sequences), default=0)
        if width is None:
            width = max(longest, 1)
        if width < longest:
            raise ValueError(f"DrafterCache.block_table: expected a width of {longest} or more, got {width}")
        # torch takes over an array's memory; of a list it looks at every number, 40 ms for 16 tables of 8192 blocks
        blocks = array("q")
        for sequence in sequences:
            blocks.extend(sequence.blocks)
            blocks.extend([0] * (width - len(sequence.blocks)))
        if not blocks:
            return torch.empty(len(sequences), width, dtype=torch.int64)
        return torch.frombuffer(blocks, dtype=torch.int64).reshape(len(sequences), width)

    def _release(self, blocks: list[int]) -> None:
        if self.poison_freed:
            self.latent[blocks] = math.nan
            self.index_keys[blocks] = math.nan
        self._free_blocks += reversed(blocks)

    def _require_live(self, sequence: CachedSequence, where: str) -> None:
        if sequence.is_freed:
            raise StateError(f"DrafterCache.{where}: expected a live sequence, got a freed one; allocate a new one")


def default_block_size(kpool: int) -> int:
    """Rows of a block: 16 where that is a multiple of kpool, else one pool."""
    return DEFAULT_BLOCK_SIZE if DEFAULT_BLOCK_SIZE % kpool == 0 else kpool
