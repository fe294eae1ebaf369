"""CertifiedLinear: the product of the whole weight, whatever its certificate says."""

import pytest
import torch

from nodes import CertifiedLinear, Linear
from tests.support.node_cases import same_bits
from tests.support.rounding import randn


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_certified_linear_is_linear_to_the_bit(dtype: torch.dtype) -> None:
    x, weight = randn(3, 63, seed=0, dtype=dtype), randn(7, 63, seed=1, dtype=dtype)
    rows, nan = torch.zeros(7, 63, dtype=torch.int8), torch.full((7,), float("nan"))
    assert same_bits(CertifiedLinear().reference(x, weight, rows, nan, nan), Linear().reference(x, weight))
