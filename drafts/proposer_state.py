"""What the proposer keeps of a sequence, and how a failed call is undone."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from drafts.cache import CachedSequence, DrafterCache


@dataclass(slots=True, eq=False)
class ProposerState:
    """One sequence as the proposer knows it; made by alloc_state, given back by free_state.

    max_rows: the rows it may ever hold. drafted_from, num_drafted: the rows of the last propose that no verify has
    judged yet.
    """

    sequence: CachedSequence
    max_rows: int
    drafted_from: int = 0
    num_drafted: int = 0

    def clamp_drafted(self, rows: int) -> None:
        """Forget the drafts whose rows lie at `rows` or beyond, which are there no more."""
        self.num_drafted = min(self.num_drafted, max(0, rows - self.drafted_from))


@contextmanager
def undone_on_error(cache: DrafterCache, writes: Sequence[tuple[ProposerState, int]]) -> Iterator[None]:
    """Put every state and its live rows back when the body raises.

    writes: the states that the body writes, each with the first row it may overwrite.
    """
    before = [(state, state.num_drafted, cache.save(state.sequence, first)) for state, first in writes]
    try:
        yield
    except BaseException:
        for state, num_drafted, saved in before:
            cache.put_back(state.sequence, saved)
            state.num_drafted = num_drafted
        raise
