import torch

from nodes import AppendCache
from tests.support.node_cases import same_bits
from tests.support.rounding import randn


def test_append_cache_writes_each_row_at_its_slot_and_nothing_else() -> None:
    cache, rows = randn(5, 3, 7, seed=0, dtype=torch.bfloat16), randn(4, 7, seed=1, dtype=torch.bfloat16)
    expected = cache.clone()
    expected[4, 2], expected[1, 0], expected[2, 1] = rows[0], rows[1], rows[3]
    got = AppendCache().reference(cache, rows, torch.tensor([14, 3, -1, 7]))
    assert same_bits(got[1:], expected[1:])
    assert same_bits(got[0, 1:], expected[0, 1:])


def test_append_cache_skipped_rows_touch_the_null_block_only() -> None:
    cache, rows = randn(3, 2, 7, seed=0), torch.full((3, 7), float("nan"))
    got = AppendCache().reference(cache, rows, torch.tensor([-1, -1, -1]))
    assert same_bits(got[1:], cache[1:])


def test_append_cache_overwrites_what_was_there() -> None:
    cache = torch.full((2, 2, 3), float("nan"))
    got = AppendCache().reference(cache, torch.ones(1, 3), torch.tensor([3]))
    assert got[1, 1].tolist() == [1.0, 1.0, 1.0]
    assert got[1, 0].isnan().all()
