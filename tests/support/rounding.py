"""Exact arithmetic with a rounding where one says so: what the bit-level tests of the nodes are held to."""

import torch
from torch import Tensor


def rounded(x: Tensor, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Return float64 values rounded once to `dtype`, still in float64."""
    assert x.dtype == torch.float64
    return x.to(dtype).double()


def randn(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return normal numbers, the same ones for the same arguments."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def num_differing(left: Tensor, right: Tensor) -> int:
    """Return how many elements differ in value."""
    assert left.shape == right.shape
    return int((left.double() != right.double()).sum())


def uniform(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return numbers in [0, 1), the same ones for the same arguments."""
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
