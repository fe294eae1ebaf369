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


@contextmanager
def undone_on_error(cache: DrafterCache, states: Sequence[ProposerState]) -> Iterator[None]:
    """Put row counts and raw tails back when the body raises; rows beyond the old end are dead anyway."""
    before = [
        (
            state,
            state.sequence.rows,
            state.sequence.raw_from,
            state.num_drafted,
            cache.tail[state.sequence.slot].clone(),
        )
        for state in states
    ]
    try:
        yield
    except BaseException:
        for state, rows, raw_from, num_drafted, tail in before:
            state.sequence.rows, state.sequence.raw_from, state.num_drafted = rows, raw_from, num_drafted
            cache.tail[state.sequence.slot] = tail
        raise
