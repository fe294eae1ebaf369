"""Rows of a weight in eight bits: symmetric, one float32 scale per row, and how far that is from the row.

    row ~ scale * q,  scale = max |row| / 127,  q = round(row / scale), half to even, -127..127

A row that is not finite has scale NaN and no bits: its products are NaN, as they may be with the row itself.
"""

import torch
from torch import Tensor

STEPS = 127
_CHUNK = 1 << 24  # elements that are widened at a time


def row_scales(weight: Tensor) -> Tensor:
    """Return the scale of each row, float32 [rows]; 0 for a row of zeros."""
    if weight.shape[1] == 0:
        return torch.zeros(weight.shape[0], dtype=torch.float32, device=weight.device)
    largest = weight.abs().amax(dim=1).float()
    return torch.where(largest.isfinite(), largest / STEPS, torch.nan)


def int8_rows(weight: Tensor) -> Tensor:
    """Return the rows in eight bits, int8 [rows, in]."""
    scales = row_scales(weight)
    parts = []
    for start, stop in _chunks(weight):
        # a row without a scale has no bits
        scaled = weight[start:stop].float() / scales[start:stop, None]
        steps = torch.nan_to_num(scaled, nan=0.0).round().clamp(-STEPS, STEPS)
        parts.append(steps.to(torch.int8))
    return torch.cat(parts) if parts else weight.to(torch.int8)


def row_errors(weight: Tensor) -> Tensor:
    """Return per row, float32 [rows], what bounds a product's error by the other factor's norm; docs/numerics.md.

    ||row - scale * q|| + (in * 2^-23 + 2^-20) * (||row|| + scale * ||q||), rounded up: how far eight bits are from the
    row, and how far float32 sums of either may be from the products. Infinite for a row that is not finite.
    """
    slack = weight.shape[1] * 2.0**-23 + 2.0**-20
    scales, steps = row_scales(weight), int8_rows(weight)
    errors = [torch.empty(0, dtype=torch.float64, device=weight.device)]
    for start, stop in _chunks(weight):
        rows, image = weight[start:stop].double(), steps[start:stop].double() * scales[start:stop, None].double()
        sums = slack * (rows.norm(dim=1) + image.norm(dim=1))
        errors.append((rows - image).norm(dim=1) + sums)
    # twice the rounding of a double's sums, and of the cast
    found = (torch.cat(errors) * (1 + 2.0**-20)).float()
    return torch.where(found.isfinite(), found, torch.inf)


def _chunks(weight: Tensor) -> list[tuple[int, int]]:
    rows = max(1, _CHUNK // max(1, weight.shape[1]))
    return [(start, min(start + rows, weight.shape[0])) for start in range(0, weight.shape[0], rows)]
