"""Choose: the first value where the condition holds, row by row, and nothing of the other one."""

from __future__ import annotations

import pytest
import torch

from nodes import Choose


@pytest.mark.parametrize("shape", [(4,), (4, 3), (4, 3, 5)], ids=str)
def test_each_row_is_the_value_that_its_condition_names(shape: tuple[int, ...]) -> None:
    condition = torch.tensor([True, False, False, True])
    chosen, other = torch.full(shape, 1.0), torch.full(shape, 2.0)
    made = Choose().reference(condition, chosen, other)
    assert [made[row].unique().tolist() for row in range(4)] == [[1.0], [2.0], [2.0], [1.0]]


def test_what_is_not_taken_may_be_nan() -> None:
    condition, nan = torch.tensor([True, False]), torch.tensor([float("nan"), 5.0])
    assert Choose().reference(condition, nan.flip(0), nan).tolist() == [5.0, 5.0]
    assert Choose().reference(~condition, nan, nan.flip(0)).tolist() == [5.0, 5.0]
