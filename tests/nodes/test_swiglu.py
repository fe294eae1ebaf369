import torch

from nodes import Swiglu
from tests.support.rounding import num_differing, randn, rounded


def silu(x: torch.Tensor) -> torch.Tensor:
    return x / (1 + torch.exp(-x))


def test_swiglu_clamps_the_gate_from_above_and_the_up_on_both_sides() -> None:
    gate = torch.tensor([9.0, -9.0, 1.0, 1.0, 1.0], dtype=torch.float64)
    up = torch.tensor([1.0, 1.0, 9.0, -9.0, 0.5], dtype=torch.float64)
    clamped_gate = torch.tensor([7.0, -9.0, 1.0, 1.0, 1.0], dtype=torch.float64)
    clamped_up = torch.tensor([1.0, 1.0, 7.0, -7.0, 0.5], dtype=torch.float64)
    got = Swiglu(limit=7.0).reference(gate.float(), up.float()).double()
    torch.testing.assert_close(got, silu(clamped_gate) * clamped_up, rtol=1e-6, atol=1e-9)
    # clamped at -7, silu would be seven times as large
    assert abs(got[1]) < 1.2e-3


def test_swiglu_rounds_silu_before_the_product() -> None:
    gate, up = randn(5, 63, seed=0, dtype=torch.bfloat16), randn(5, 63, seed=1, dtype=torch.bfloat16)
    got = Swiglu(limit=7.0).reference(gate, up)
    exact = silu(gate.double())
    assert num_differing(got, rounded(rounded(exact) * up.double())) == 0
    assert num_differing(got, rounded(exact * up.double())) > 30


def test_swiglu_keeps_a_nan() -> None:
    nan, one = torch.tensor([float("nan")]), torch.ones(1)
    assert Swiglu(limit=7.0).reference(nan, one).isnan().item()
    assert Swiglu(limit=7.0).reference(one, nan).isnan().item()
