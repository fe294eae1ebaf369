import pytest
import torch

from nodes import TokenProbability
from tests.support.rounding import randn

INF = float("inf")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
def test_token_probability_is_the_softmax_in_float32(dtype: torch.dtype) -> None:
    logits, token = 5 * randn(3, 1000, seed=0, dtype=dtype), torch.tensor([0, 999, 17])
    got = TokenProbability().reference(logits, token)
    expected = torch.softmax(logits.double(), dim=1)[torch.arange(3), token]
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=0)


def test_token_probability_survives_large_logits_and_masked_tokens() -> None:
    logits = torch.tensor([[1e4, 1e4, -INF], [-1e4, -INF, -1e4]])
    got = TokenProbability().reference(logits, torch.tensor([0, 1]))
    # a difference of float32 numbers near 1e4 is good to about 1e-3
    torch.testing.assert_close(got, torch.tensor([0.5, 0.0]), rtol=1e-3, atol=0)
