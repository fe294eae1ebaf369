"""Does it fit: weights, caches and the arena of intermediate values against a device's memory."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """What a drafter needs of a device's memory, all in bytes.

    own_weights are the drafter's, shared_weights the target's that it reads too. A sequence holds blocks of
    `block_rows` rows, bytes_per_block each, and bytes_per_sequence beside them; one block and one sequence more belong
    to nobody. arena(batch, context) is that of one draft's intermediate values. `reserved` is what others take.
    """

    own_weights: int
    shared_weights: int
    block_rows: int
    bytes_per_block: int
    bytes_per_sequence: int
    arena: Callable[[int, int], int]
    reserved: int = 0

    @property
    def bytes_per_token(self) -> float:
        """Cache bytes that one token of one sequence adds."""
        return self.bytes_per_block / self.block_rows

    def cache(self, batch: int, context: int) -> int:
        """Return the cache bytes of `batch` sequences of `context` rows, in whole blocks, the null ones included."""
        blocks = batch * -(-context // self.block_rows) + 1
        return blocks * self.bytes_per_block + (batch + 1) * self.bytes_per_sequence

    def total(self, batch: int, context: int) -> int:
        """Return everything that is needed."""
        held = self.own_weights + self.shared_weights + self.reserved
        return held + self.cache(batch, context) + self.arena(batch, context)

    def largest_batch(self, capacity: int, context: int) -> int:
        """Return the most sequences of `context` rows that fit `capacity`, 0 where not even one does.

        Arenas grow in proportion to the batch, up to alignment, so one of a single sequence tells them all.
        """
        one = self.arena(1, context)
        room = capacity - (self.total(0, context) - self.arena(0, context))
        each = -(-context // self.block_rows) * self.bytes_per_block + self.bytes_per_sequence + one
        return max(0, room // each)

    def largest_context(self, capacity: int, batch: int, limit: int) -> int:
        """Return the most rows a sequence can have, up to `limit` and in whole blocks, where `batch` of them fit."""
        low, high = 0, -(-limit // self.block_rows)
        while low < high:
            middle = (low + high + 1) // 2
            if self.total(batch, middle * self.block_rows) <= capacity:
                low = middle
            else:
                high = middle - 1
        return min(limit, low * self.block_rows)
