import torch

from nodes import RmsNorm
from tests.support.rounding import num_differing, randn, rounded

EPS = 1e-5


def normalised(x: torch.Tensor, *, eps: float = EPS) -> torch.Tensor:
    wide = x.double()
    return wide / (wide.pow(2).mean(-1, keepdim=True) + eps).sqrt()


def test_rms_norm_is_the_formula() -> None:
    x, weight = randn(5, 63, seed=0), randn(63, seed=1)
    got = RmsNorm(eps=EPS).reference(x, weight)
    torch.testing.assert_close(got.double(), normalised(x) * weight.double(), rtol=1e-6, atol=1e-6)


def test_rms_norm_adds_eps_to_the_mean_square() -> None:
    x = torch.full((1, 8), 1e-3)
    got = RmsNorm(eps=EPS).reference(x, torch.ones(8))
    torch.testing.assert_close(got, torch.full((1, 8), 1e-3 / (1e-6 + 1e-5) ** 0.5))
    assert RmsNorm(eps=EPS).reference(torch.zeros(1, 8), torch.ones(8)).tolist() == [[0.0] * 8]


def test_rms_norm_rounds_before_the_gain() -> None:
    x, weight = randn(5, 63, seed=2, dtype=torch.bfloat16), randn(63, seed=3, dtype=torch.bfloat16)
    got = RmsNorm(eps=EPS).reference(x, weight)
    before_the_gain = rounded(rounded(normalised(x)) * weight.double())
    once_at_the_end = rounded(normalised(x) * weight.double())
    assert num_differing(got, before_the_gain) == 0
    assert num_differing(got, once_at_the_end) > 30


def test_rms_norm_takes_its_statistics_in_float32() -> None:
    # the sum of squares is 4096, where bfloat16 cannot count on; large values would overflow float16
    x = torch.ones(1, 4096, dtype=torch.bfloat16)
    assert RmsNorm(eps=EPS).reference(x, torch.ones(4096, dtype=torch.bfloat16)).unique().tolist() == [1.0]
    large = torch.full((1, 8), 6e4, dtype=torch.float16)
    assert RmsNorm(eps=EPS).reference(large, torch.ones(8, dtype=torch.float16)).unique().tolist() == [1.0]


def test_rms_norm_normalises_the_last_dim_whatever_stands_before_it() -> None:
    x, weight = randn(3, 5, 7, seed=4), randn(7, seed=5)
    got = RmsNorm(eps=EPS).reference(x, weight)
    assert torch.equal(got.flatten(0, 1), RmsNorm(eps=EPS).reference(x.flatten(0, 1), weight))
