"""Slice: which columns it takes, and what it refuses."""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError

from circuit import TypeRuleError, f32
from nodes import AbsorbQuery, AbsorbValue, Slice


def test_slice_takes_the_columns_from_start_on() -> None:
    x = torch.arange(21.0).reshape(3, 7)
    assert torch.equal(Slice(start=2, width=3).reference(x), x[:, [2, 3, 4]])
    assert torch.equal(Slice(start=0, width=7).reference(x), x)
    deep = torch.arange(84.0).reshape(3, 4, 7)
    assert torch.equal(Slice(start=2, width=2).reference(deep), deep[..., [2, 3]])


def test_slice_past_the_last_column_is_refused() -> None:
    assert Slice(start=4, width=3).infer(f32("n", 7)) == f32("n", 3)
    with pytest.raises(TypeRuleError, match=r"Slice.x: expected a last dim of at least 8, got f32\[n, 7\]"):
        Slice(start=5, width=3).infer(f32("n", 7))
    with pytest.raises(TypeRuleError, match="a last dim of at least 1"):
        Slice(start=0, width=1).infer(f32())


@pytest.mark.parametrize(
    "node_type, attributes",
    [
        (Slice, {"start": -1, "width": 1}),
        (AbsorbQuery, {"v_head_dim": -1}),
        (AbsorbValue, {"v_head_dim": 1, "qk_nope_head_dim": -1}),
    ],
)
def test_negative_attributes_are_refused(node_type: type, attributes: dict[str, int]) -> None:
    with pytest.raises(ValidationError, match="greater than or equal to 0"):
        node_type(**attributes)
