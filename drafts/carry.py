"""A drafter cache between two turns of a conversation: out of one state, into another."""

from contextlib import suppress
from dataclasses import dataclass

from circuit import StateError
from drafts.cache import CarriedRows, DrafterCache
from drafts.proposer_state import ProposerState


@dataclass(frozen=True, slots=True, eq=False)
class DrafterKv:
    """A carried drafter cache; made by take_drafter_kv, used up by install_drafter_kv or free_drafter_kv."""

    cache: DrafterCache
    carried: CarriedRows

    @property
    def num_rows(self) -> int:
        """Rows it holds; 0 once it is used up."""
        return 0 if self.is_used_up else self.carried.rows.rows

    @property
    def last_pair_key(self) -> int | None:
        """The newest row's pair key, None without a row."""
        return self.num_rows - 1 if self.num_rows else None

    @property
    def is_used_up(self) -> bool:
        """Whether its blocks belong to a state again, or to nobody."""
        return self.carried.rows.is_freed


def take_kv(cache: DrafterCache, state: ProposerState) -> DrafterKv:
    """Take a state's rows; the state is empty after it, with as many blocks as the pool can give back."""
    kv = DrafterKv(cache, cache.take(state.sequence))
    _start_anew(cache, state)
    return kv


def trim_kv(kv: DrafterKv, num_shared_tokens: int) -> int:
    """Keep the rows that a prefix of `num_shared_tokens` settles, all but its last; returns the rows kept."""
    if kv.is_used_up:
        raise StateError("trim_drafter_kv: expected a carried cache, got one installed or freed already")
    return kv.cache.rewind(kv.carried.rows, max(0, num_shared_tokens - 1))


def install_kv(cache: DrafterCache, kv: DrafterKv, pair_key: int | None, state: ProposerState) -> bool:
    """Give the carried rows to an empty state; False, and nothing changed, where they do not fit it."""
    is_empty = cache.rows(state.sequence) == 0
    fits = kv.num_rows <= state.max_rows and kv.last_pair_key == pair_key
    if kv.cache is not cache or kv.is_used_up or not is_empty or not fits:
        return False
    cache.give(kv.carried, state.sequence)
    cache.shrink(state.sequence, state.max_rows)
    _start_anew(cache, state)
    return True


def _start_anew(cache: DrafterCache, state: ProposerState) -> None:
    state.drafted_from = state.num_drafted = 0
    # where the pool is too small now, the write that needs more says so
    with suppress(StateError):
        cache.ensure_capacity(state.sequence, state.max_rows)


def free_kv(cache: DrafterCache, kv: DrafterKv) -> None:
    """Give a carried cache's blocks back; ValueError for one of another cache."""
    if kv.cache is not cache:
        raise ValueError("free_drafter_kv: expected a cache taken from this proposer, got another one's")
    cache.free_carried(kv.carried)
