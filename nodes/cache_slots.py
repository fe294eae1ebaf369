"""CacheSlots: where in a paged cache a row's entry lives."""

import torch
from torch import Tensor

from circuit import Cost, Count, Node, TensorType, i64, total_bytes


class CacheSlots(Node):
    """Turn each row's position into the flat slot of its cache entry, through the block table.

    Entry e of a sequence, e = position // rows_per_entry, lives in block `block_table[e // entries_per_block]`. A row
    that does not complete its entry (a pool that is not full yet) gets slot -1: nothing is to be written.

    Ports:    position i64[n] - block_table i64[n, max_blocks]
    Result:   i64[n], -1 for no write
    Numerics: exact
    State:    none
    Source:   slot mapping of paged attention; a position beyond the table is refused by the caller
    """

    entries_per_block: Count
    rows_per_entry: Count = 1

    def infer(self, position: TensorType, block_table: TensorType) -> TensorType:
        if position.dtype != i64().dtype or len(position.shape) != 1:
            raise self.reject("position", position, "i64[n]")
        if block_table.dtype != i64().dtype or block_table.shape[:-1] != position.shape:
            raise self.reject("block_table", block_table, f"{i64(*position.shape, 'max_blocks')}")
        return position

    def reference(self, position: Tensor, block_table: Tensor) -> Tensor:
        entry = position // self.rows_per_entry
        block = block_table.gather(1, (entry // self.entries_per_block).unsqueeze(1)).squeeze(1)
        completes = (position + 1) % self.rows_per_entry == 0
        return torch.where(completes, block * self.entries_per_block + entry % self.entries_per_block, -1)

    def cost(self, position: TensorType, block_table: TensorType) -> Cost:
        return Cost(bytes_read=2 * position.num_bytes(), bytes_written=total_bytes(position))
