"""What a way to run the head offers the proposer: the eager module and the circuit runner both do."""

from typing import Protocol

from torch import Tensor

from drafts.batch import RowBatch
from drafts.cache import DrafterCache


class DraftPath(Protocol):
    """One way to run the head. Both calls change the cache only when everything has succeeded."""

    @property
    def name(self) -> str:
        """What counters and reports call it: `eager`, `circuit:reference`."""
        ...

    def write_rows(self, rows: RowBatch, cache: DrafterCache) -> None:
        """Write the cache rows of `rows`, and nothing else."""
        ...

    def draft(self, rows: RowBatch, cache: DrafterCache, *, num_drafts: int) -> Tensor:
        """Return int64 [n, num_drafts] for one row per sequence, writing `num_drafts` rows each."""
        ...
