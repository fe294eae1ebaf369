import pytest
import torch

from nodes import AppendCache, CacheSlots

TABLE = torch.tensor([[9, 4, 0], [2, 7, 5]])


@pytest.mark.parametrize("rows_per_entry", [1, 2, 4])
@pytest.mark.parametrize("entries_per_block", [1, 3, 4])
def test_cache_slots_follow_the_block_table(entries_per_block: int, rows_per_entry: int) -> None:
    node = CacheSlots(entries_per_block=entries_per_block, rows_per_entry=rows_per_entry)
    capacity = TABLE.shape[1] * entries_per_block * rows_per_entry
    for position in range(capacity):
        entry, newest = divmod(position + 1, rows_per_entry)
        expected = [
            -1
            if newest
            else int(blocks[(entry - 1) // entries_per_block]) * entries_per_block + (entry - 1) % entries_per_block
            for blocks in TABLE
        ]
        assert node.reference(torch.tensor([position, position]), TABLE).tolist() == expected


def test_cache_slots_address_what_append_cache_writes() -> None:
    # pool keys: blocks of 2 entries, an entry for 4 rows; position 15 completes pool 3, entry 1 of the second block
    position = torch.tensor([14, 15])
    slots = CacheSlots(entries_per_block=2, rows_per_entry=4).reference(position, TABLE)
    cache = AppendCache().reference(torch.zeros(10, 2, 1), torch.tensor([[5.0], [6.0]]), slots)
    assert cache[7, 1].tolist() == [6.0]
    assert cache[1:].sum() == 6.0


def test_cache_slots_refuse_a_position_beyond_the_table() -> None:
    with pytest.raises((RuntimeError, IndexError)):
        CacheSlots(entries_per_block=3).reference(torch.tensor([9, 0]), TABLE)
