"""Does it fit: caches in whole blocks, and the largest batch and context by trying their neighbours."""

import pytest

from compiler import MemoryNeed


def need(**changes: object) -> MemoryNeed:
    fields: dict[str, object] = {
        "own_weights": 1000,
        "shared_weights": 300,
        "block_rows": 16,
        "bytes_per_block": 160,
        "bytes_per_sequence": 7,
        "arena": lambda batch, context: 5 * batch,
    }
    return MemoryNeed(**{**fields, **changes})  # type: ignore[arg-type]


def test_cache_counts_whole_blocks_and_the_null_ones() -> None:
    assert need().bytes_per_token == 10
    assert need().cache(1, 1) == 2 * 160 + 2 * 7
    assert need().cache(3, 17) == (3 * 2 + 1) * 160 + 4 * 7


@pytest.mark.parametrize("capacity", [0, 1300, 1467, 1639, 1640, 5000, 123456])
@pytest.mark.parametrize("context", [1, 16, 17, 1000])
def test_largest_batch_fits_and_one_more_does_not(capacity: int, context: int) -> None:
    batch = need().largest_batch(capacity, context)
    assert batch == 0 or need().total(batch, context) <= capacity
    assert need().total(batch + 1, context) > capacity


@pytest.mark.parametrize("capacity", [0, 1300, 1639, 1640, 5000, 123456])
@pytest.mark.parametrize("batch", [1, 3])
def test_largest_context_fits_and_one_block_more_does_not(capacity: int, batch: int) -> None:
    rows = need().largest_context(capacity, batch, limit=10**6)
    assert rows == 0 or need().total(batch, rows) <= capacity
    assert rows % 16 == 0
    assert need().total(batch, rows + 1) > capacity


def test_largest_context_stops_at_the_models_positions() -> None:
    assert need().largest_context(10**9, 1, limit=1001) == 1001


def test_what_others_take_is_taken_off() -> None:
    assert need(reserved=500).total(1, 1) == need().total(1, 1) + 500
    assert need(reserved=5000).largest_batch(5000, 16) == 0
