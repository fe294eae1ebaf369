"""The comparison that the tests stand on must fail where it should, and say where."""

import pytest
import torch

from tests.support.closeness import assert_close
from tests.support.nan_empty import nan_filled_empty


def test_equal_tensors_pass_with_nan_and_inf() -> None:
    tensor = torch.tensor([1.0, torch.nan, torch.inf, -torch.inf])
    assert_close(tensor, tensor.clone())
    assert_close(torch.empty(0, 3), torch.empty(0, 3))


def test_difference_within_the_bound_passes() -> None:
    assert_close(torch.tensor([100.0]), torch.tensor([101.0]), rtol=0.01)
    assert_close(torch.tensor([0.5]), torch.tensor([0.0]), atol=0.5)


def test_report_has_name_count_ratio_and_worst_index() -> None:
    actual = torch.zeros(2, 3)
    actual[1, 2], actual[0, 1] = 4.0, 1.5
    with pytest.raises(AssertionError) as caught:
        assert_close({"ok": torch.zeros(1), "edge": actual}, {"ok": torch.zeros(1), "edge": torch.zeros(2, 3)}, atol=1)
    assert str(caught.value).startswith(
        "edge: 2 of 6 elements out of bounds (rtol 0.0, atol 1); worst at [1, 2]: expected 0.0, got 4.0, 4 times"
    )


@pytest.mark.parametrize(
    "actual, expected",
    [(torch.nan, 0.0), (0.0, torch.nan), (torch.inf, 1.0), (1.0, torch.inf), (-torch.inf, torch.inf)],
)
def test_nan_and_inf_equal_nothing_else(actual: float, expected: float) -> None:
    with pytest.raises(AssertionError, match="1 of 1 elements"):
        assert_close(torch.tensor([actual]), torch.tensor([expected]), rtol=1.0, atol=1e30)


def test_names_dtypes_and_shapes_must_agree() -> None:
    with pytest.raises(AssertionError, match=r"names differ: \['a', 'b'\]"):
        assert_close({"a": torch.ones(1)}, {"b": torch.ones(1)})
    with pytest.raises(AssertionError, match=r"expected torch\.float32\[1\], got torch.float64\[1\]"):
        assert_close(torch.ones(1).double(), torch.ones(1))
    with pytest.raises(AssertionError, match=r"expected torch\.float32\[2\], got torch.float32\[1\]"):
        assert_close(torch.ones(1), torch.ones(2))


def test_new_memory_is_poisoned_inside_the_block_only() -> None:
    with nan_filled_empty():
        assert torch.empty(3).isnan().all()
        assert torch.empty_like(torch.ones(2)).isnan().all()
        assert torch.ones(1).new_empty(2).isnan().all()
        assert torch.empty(1, dtype=torch.int64).item() == torch.iinfo(torch.int64).min
        assert torch.empty(1, dtype=torch.bool).item()
    assert torch.empty.__name__ == "empty"
