import torch

from nodes import LayerNorm
from tests.support.rounding import num_differing, randn, rounded


def formula(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, eps: float) -> torch.Tensor:
    wide = x.double()
    centred = wide - wide.mean(-1, keepdim=True)
    return centred / (centred.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight.double() + bias.double()


def test_layer_norm_is_the_formula() -> None:
    x, weight, bias = randn(5, 7, seed=0) + 3.0, randn(7, seed=1), randn(7, seed=2)
    got = LayerNorm(eps=1e-6).reference(x, weight, bias)
    torch.testing.assert_close(got.double(), formula(x, weight, bias, eps=1e-6), rtol=1e-5, atol=1e-5)


def test_layer_norm_eps_decides_for_small_variance() -> None:
    # variance about 1e-6: an eps of 1e-5, the RMS norms' one, would shrink the result more than twofold
    x, weight, bias = 1e-3 * randn(3, 63, seed=3), torch.ones(63), torch.zeros(63)
    got = LayerNorm(eps=1e-6).reference(x, weight, bias).double()
    torch.testing.assert_close(got, formula(x, weight, bias, eps=1e-6), rtol=1e-4, atol=1e-5)
    assert (got.abs().sum() > 2 * formula(x, weight, bias, eps=1e-5).abs().sum()).item()


def test_layer_norm_rounds_once() -> None:
    x, weight, bias = (
        randn(*shape, seed=4 + i, dtype=torch.bfloat16) for i, shape in enumerate([(5, 63), (63,), (63,)])
    )
    got = LayerNorm(eps=1e-6).reference(x, weight, bias)
    exact = formula(x, weight, bias, eps=1e-6)
    before_the_gain = rounded(formula(x, torch.ones(63), torch.zeros(63), eps=1e-6)) * weight.double() + bias.double()
    assert num_differing(got, rounded(exact)) == 0
    assert num_differing(got, rounded(before_the_gain)) > 30
