"""Rows in eight bits: scale and steps, rows of zeros and rows that are not finite."""

from __future__ import annotations

import pytest
import torch

from compiler import quantised_rows
from compiler.quantised_rows import int8_rows, row_errors, row_scales


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
def test_rows_in_eight_bits_are_within_half_a_step(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantised_rows, "_CHUNK", 100)
    weight = torch.randn(37, 63, generator=torch.Generator().manual_seed(1)).to(dtype)
    steps, scales = int8_rows(weight), row_scales(weight)
    assert steps.dtype == torch.int8
    assert scales.dtype == torch.float32
    assert torch.equal(steps.abs().amax(dim=1), torch.full((37,), 127, dtype=torch.int8))
    off = (weight.double() - scales.double()[:, None] * steps.double()).abs()
    assert bool((off <= 0.5001 * scales.double()[:, None]).all())


def test_row_of_zeros_has_scale_0_and_one_that_is_not_finite_has_none() -> None:
    weight = torch.tensor([[0.0, 0.0], [1.0, torch.nan], [torch.inf, 1.0], [-2.0, 1.0]])
    scales = row_scales(weight)
    assert scales[0] == 0.0
    assert scales[1:3].isnan().all()
    assert int8_rows(weight).tolist() == [[0, 0], [0, 0], [0, 0], [-127, 64]]


def test_no_rows_and_no_columns() -> None:
    assert int8_rows(torch.empty(0, 5)).shape == (0, 5)
    assert row_scales(torch.empty(3, 0)).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e30], ids=str)
def test_row_errors_bound_the_product_with_any_vector(dtype: torch.dtype, scale: float) -> None:
    generator = torch.Generator().manual_seed(1)
    weight = (torch.randn(37, 63, generator=generator) * scale).to(dtype)
    weight[3, 5] *= 100.0
    steps, scales, errors = int8_rows(weight), row_scales(weight), row_errors(weight)
    left = weight.double() - scales.double()[:, None] * steps.double()
    # the worst vector there is: along what eight bits leave
    worst = (left * left).sum(dim=1) / left.norm(dim=1)
    assert bool((worst <= errors.double()).all())
    assert bool((errors.double() <= worst * 1.01 + 1e-4 * weight.double().norm(dim=1)).all())


def test_row_errors_are_infinite_where_a_row_is_not_finite() -> None:
    weight = torch.tensor([[0.0, 0.0], [1.0, torch.nan], [torch.inf, 1.0]])
    assert row_errors(weight).tolist() == [0.0, torch.inf, torch.inf]
    assert row_errors(torch.empty(0, 5)).shape == (0,)
