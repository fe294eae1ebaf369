"""QuantisedLinear: the formula in float64, and where it rounds."""

import torch

from nodes import QuantisedLinear
from tests.support.node_cases import same_bits
from tests.support.rounding import randn, rounded


def eight_bits(out: int, width: int) -> torch.Tensor:
    return torch.randint(-128, 128, (out, width), generator=torch.Generator().manual_seed(3)).to(torch.int8)


def test_quantised_linear_is_the_formula() -> None:
    x, weight, scale = randn(5, 63, seed=0), eight_bits(7, 63), randn(7, seed=1)
    expected = (x.double() @ weight.double().T) * scale.double()
    torch.testing.assert_close(QuantisedLinear().reference(x, weight, scale).double(), expected, rtol=1e-5, atol=1e-4)


def test_quantised_linear_rounds_once_after_the_scale() -> None:
    # sums of whole numbers, exact in float32 and beyond what bf16 holds
    x, weight = torch.ones(1, 3, dtype=torch.bfloat16), torch.tensor([[127, 127, 5], [100, 100, 57]], dtype=torch.int8)
    scale = torch.tensor([1.5, 3.0])
    expected = rounded((x.double() @ weight.double().T) * scale.double())
    assert same_bits(QuantisedLinear().reference(x, weight, scale), expected.to(torch.bfloat16))
