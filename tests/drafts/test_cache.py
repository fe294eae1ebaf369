"""DrafterCache: no block is lost, and rewind is exact or shorter, never wrong."""

from __future__ import annotations

import pytest
import torch

from circuit.errors import StateError
from drafts.cache import CachedSequence, DrafterCache
from tests.drafts.tiny_head import tiny_config


def small_cache(
    *, kpool: int = 4, num_blocks: int = 6, tail_depth: int = 7, poison_freed: bool = False
) -> DrafterCache:
    config = tiny_config(index_kpool=kpool, index_topk=2 * kpool)
    return DrafterCache(
        config,
        num_blocks=num_blocks,
        num_sequences=4,
        block_size=2 * kpool,
        tail_depth=tail_depth,
        poison_freed=poison_freed,
    )


def test_new_memory_is_nan_and_of_the_stated_shapes() -> None:
    cache = small_cache()
    assert cache.latent.shape == (6, 8, 10)
    assert cache.index_keys.shape == (6, 2, 7)
    assert cache.tail.shape == (4, 7, 2, 7)
    assert all(tensor.isnan().all() for tensor in (cache.latent, cache.index_keys, cache.tail))


def test_blocks_are_handed_out_once_and_all_come_back() -> None:
    cache = small_cache()
    first, second = cache.allocate(rows=17), cache.allocate(rows=16)
    held = first.blocks + second.blocks
    assert sorted(held) == [1, 2, 3, 4, 5]
    assert {first.slot, second.slot}.isdisjoint({0})
    assert first.slot != second.slot
    assert cache.num_free_blocks == 0
    cache.free(second)
    cache.free(first)
    assert cache.num_free_blocks == 5
    assert cache.num_free_sequences == 3
    assert sorted(cache.allocate(rows=40).blocks) == [1, 2, 3, 4, 5]


def test_growth_is_all_or_nothing_and_says_what_is_free() -> None:
    cache = small_cache()
    sequence = cache.allocate(rows=1)
    cache.ensure_capacity(sequence, 8)
    assert len(sequence.blocks) == 1
    with pytest.raises(StateError, match="expected 5 free blocks for 41 rows, got 4 of 5"):
        cache.ensure_capacity(sequence, 41)
    assert len(sequence.blocks) == 1
    assert cache.num_free_blocks == 4
    with pytest.raises(StateError, match="ensure_capacity"):
        cache.allocate(rows=33)
    assert cache.num_free_sequences == 2
    cache.ensure_capacity(sequence, 40)
    assert cache.capacity(sequence) == 40
    assert cache.num_free_blocks == 0


def test_out_of_sequences_is_said() -> None:
    cache = small_cache()
    for _ in range(3):
        cache.allocate()
    with pytest.raises(StateError, match="all 3 in use"):
        cache.allocate()


def test_second_free_does_nothing_and_use_after_free_raises() -> None:
    cache = small_cache()
    sequence = cache.allocate(rows=9)
    cache.free(sequence)
    cache.free(sequence)
    assert cache.num_free_blocks == 5
    assert cache.num_free_sequences == 3
    uses = [
        lambda: cache.rows(sequence),
        lambda: cache.rewind(sequence, 0),
        lambda: cache.commit(sequence, 0),
        lambda: cache.ensure_capacity(sequence, 1),
        lambda: cache.block_table([sequence]),
        lambda: cache.bytes_held(sequence),
    ]
    for use in uses:
        with pytest.raises(StateError, match="freed"):
            use()


def test_poisoned_free_leaves_no_old_rows() -> None:
    cache = small_cache(poison_freed=True)
    sequence, other = cache.allocate(rows=9), cache.allocate(rows=1)
    cache.latent[sequence.blocks] = 1.0
    cache.index_keys[sequence.blocks] = 1.0
    cache.tail[sequence.slot] = 1.0
    cache.latent[other.blocks] = 2.0
    cache.free(sequence)
    assert not (cache.latent == 1).any()
    assert not (cache.index_keys == 1).any()
    assert not (cache.tail == 1).any()
    assert (cache.latent[other.blocks] == 2).all()


def test_block_table_is_padded_with_the_null_block() -> None:
    cache = small_cache()
    long, short, empty = cache.allocate(rows=17), cache.allocate(rows=3), cache.allocate()
    table = cache.block_table([long, short, empty])
    assert table.dtype == torch.int64
    assert table.tolist() == [long.blocks, [*short.blocks, 0, 0], [0, 0, 0]]
    assert cache.block_table([empty]).tolist() == [[0]]
    assert cache.block_table([]).shape == (0, 1)
    assert cache.block_table([short], width=4).shape == (1, 4)
    with pytest.raises(ValueError, match="width of 3"):
        cache.block_table([long], width=2)


def test_bytes_add_up() -> None:
    cache = small_cache()
    sequence = cache.allocate(rows=9)
    assert cache.bytes_per_block == (8 * 10 + 2 * 7) * 4
    assert cache.bytes_held(sequence) == 2 * cache.bytes_per_block + 7 * 2 * 7 * 4
    assert cache.bytes_total == 6 * cache.bytes_per_block + 4 * cache.bytes_per_tail


def test_commit_neither_shrinks_nor_overruns() -> None:
    cache = small_cache()
    sequence = cache.allocate(rows=8)
    cache.commit(sequence, 5)
    for rows in (4, 9):
        with pytest.raises(StateError, match="expected 5 to 8 rows"):
            cache.commit(sequence, rows)
    assert cache.rows(sequence) == 5
    assert cache.complete_pools(sequence) == 1


@pytest.mark.parametrize("kpool", [1, 3, 4])
def test_rewind_is_exact_or_shorter_as_a_full_record_of_the_ring_says(kpool: int) -> None:
    """Hold rewind to a model that remembers, for every place of the ring, which row it holds."""
    depth = kpool + 3
    generator = torch.Generator().manual_seed(kpool)
    cache = small_cache(kpool=kpool, num_blocks=40, tail_depth=depth)
    sequence = cache.allocate(rows=39 * 2 * kpool)
    ring: dict[int, int] = {}
    for _ in range(400):
        rows = cache.rows(sequence)
        grown = rows + int(torch.randint(0, 2 * depth, (1,), generator=generator))
        if grown <= cache.capacity(sequence):
            ring |= {row % depth: row for row in range(rows, grown)}
            cache.commit(sequence, grown)
        asked = int(torch.randint(0, cache.rows(sequence) + 2, (1,), generator=generator))
        _check_rewind(cache, sequence, ring, asked, kpool=kpool, depth=depth)


def _check_rewind(
    cache: DrafterCache, sequence: CachedSequence, ring: dict[int, int], asked: int, *, kpool: int, depth: int
) -> None:
    rows = cache.rows(sequence)
    kept = cache.rewind(sequence, asked)
    assert kept == cache.rows(sequence)
    if asked >= rows:
        assert kept == rows
        return
    needed = range(asked - asked % kpool, asked)
    intact = all(ring.get(row % depth) == row for row in needed)
    assert kept == (asked if intact else asked - asked % kpool)


def test_rewind_after_a_rewind_remembers_what_was_overwritten() -> None:
    cache = small_cache(kpool=4, num_blocks=10, tail_depth=7)
    sequence = cache.allocate(rows=40)
    cache.commit(sequence, 23)  # the ring holds rows 16 to 22
    assert cache.rewind(sequence, 18) == 18
    cache.commit(sequence, 25)  # rejected rows went over 16 and 17
    assert cache.rewind(sequence, 19) == 16
    assert cache.rewind(sequence, 30) == 16


def test_rewind_of_one_round_is_exact_with_the_default_depth() -> None:
    config = tiny_config()
    cache = DrafterCache.for_rows(config, 200, max_num_drafts=5)
    for start in range(1, 30):
        sequence = cache.allocate(rows=start + 5)
        cache.commit(sequence, start)
        cache.commit(sequence, start + 5)
        assert cache.rewind(sequence, start + 1) == start + 1
        cache.free(sequence)


def test_rewind_refuses_negative_rows() -> None:
    cache = small_cache()
    sequence = cache.allocate()
    with pytest.raises(ValueError, match="got -1"):
        cache.rewind(sequence, -1)


@pytest.mark.parametrize(
    "changes", [{"block_size": 6}, {"tail_depth": 3}, {"num_blocks": 1}, {"num_sequences": 1}], ids=str
)
def test_impossible_sizes_are_refused(changes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(changes))):
        DrafterCache(tiny_config(), **({"num_blocks": 4, "num_sequences": 2} | changes))


@pytest.mark.parametrize("kpool, expected", [(1, 16), (4, 16), (16, 16), (3, 3), (32, 32)])
def test_default_block_holds_whole_pools(kpool: int, expected: int) -> None:
    cache = DrafterCache.for_rows(tiny_config(index_kpool=kpool, index_topk=kpool), 33, num_sequences=2)
    assert cache.block_size == expected
    assert cache.num_blocks == 2 * -(-33 // expected) + 1
