"""What a way to run the head offers the proposer: the eager module and the circuit runner both do."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from torch import Tensor

from drafts.batch import RowBatch
from drafts.cache import DrafterCache

if TYPE_CHECKING:
    # a name of a type only: the eager head is a path too, and knows no circuit
    from drafts.binding import DraftBinding


@dataclass(frozen=True, slots=True)
class Drafts:
    """What a chain drafted: ids int64 [n, K] on the device, and confidences float32 [n, K] where asked for."""

    ids: Tensor
    confidences: Tensor | None = None

    def id_list(self) -> list[int]:
        """The first row's ids, on the host."""
        return [int(draft) for draft in self.ids[0].tolist()]

    def confidence_list(self) -> list[float]:
        """The first row's confidences, on the host; empty where they were not asked for."""
        return [] if self.confidences is None else [float(value) for value in self.confidences[0].tolist()]


@runtime_checkable
class DraftPath(Protocol):
    """One way to run the head. Both calls change the cache only when everything has succeeded."""

    @property
    def name(self) -> str:
        """What counters and reports call it: `eager`, `circuit:reference`."""
        ...

    @property
    def is_batch_invariant(self) -> bool:
        """Whether a row's result is bitwise the same whatever rows run beside it."""
        ...

    @property
    def binding(self) -> "DraftBinding | None":
        """The binding whose circuit it runs; None for a head that is no circuit."""
        ...

    def write_rows(self, rows: RowBatch, cache: DrafterCache) -> None:
        """Write the cache rows of `rows`, and nothing else."""
        ...

    def draft(
        self,
        rows: RowBatch,
        cache: DrafterCache,
        *,
        num_drafts: int,
        grammar: Tensor | None = None,
        has_confidence: bool = False,
    ) -> Drafts:
        """Draft a chain for one row per sequence, writing `num_drafts` rows each.

        grammar: int32 [n, m, words], the token bitmask of draft i+1 at [:, i]; drafts beyond m are free.
        """
        ...
