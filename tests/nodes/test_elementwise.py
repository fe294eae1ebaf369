"""The nodes whose reference is one line of torch: Add, Cast, Concat, Increment, SplitHeads, Embedding, Linear."""

import pytest
import torch

from circuit import TypeRuleError, bf16, f32
from nodes import Add, Cast, Concat, Embedding, Increment, Linear, SplitHeads
from tests.support.rounding import num_differing, randn, rounded, uniform


def test_add_rounds_once() -> None:
    left, right = randn(3, 63, seed=0, dtype=torch.bfloat16), randn(3, 63, seed=1, dtype=torch.bfloat16)
    assert num_differing(Add().reference(left, right), rounded(left.double() + right.double())) == 0


def test_cast_rounds_to_nearest_even() -> None:
    # 1 + k / 256 lies midway between bfloat16 neighbours for odd k
    x = torch.tensor([1 + 1 / 256, 1 + 3 / 256, 1 + 1 / 256 + 1e-6, -1 - 1 / 256])
    assert Cast(dtype="bf16").reference(x).tolist() == [1.0, 1 + 4 / 256, 1 + 2 / 256, -1.0]


def test_cast_widens_exactly() -> None:
    x = randn(3, 7, seed=0, dtype=torch.bfloat16)
    assert num_differing(Cast(dtype="f32").reference(x), x) == 0


def test_concat_puts_left_first() -> None:
    assert Concat().reference(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0]])).tolist() == [[1.0, 2.0, 3.0]]


def test_increment_adds_by() -> None:
    assert Increment().reference(torch.tensor([0, 7])).tolist() == [1, 8]
    assert Increment(by=-3).reference(torch.tensor([0, 7])).tolist() == [-3, 4]


def test_split_heads_keeps_a_head_together() -> None:
    x = torch.arange(12.0).view(2, 6)
    assert SplitHeads(num_heads=3).reference(x)[1].tolist() == [[6.0, 7.0], [8.0, 9.0], [10.0, 11.0]]


def test_split_heads_divides_symbolic_widths() -> None:
    assert SplitHeads(num_heads=3).infer(bf16("n", "3*d")) == bf16("n", 3, "d")
    for width in ("d", 7, 0):
        with pytest.raises(TypeRuleError, match=r"SplitHeads\.x: expected a last dim that divides into 3 heads"):
            SplitHeads(num_heads=3).infer(f32("n", width))


def test_embedding_copies_the_named_rows() -> None:
    table = randn(11, 5, seed=0, dtype=torch.bfloat16)
    token = torch.tensor([10, 0, 3, 3])
    assert num_differing(Embedding().reference(token, table), torch.stack([table[i] for i in (10, 0, 3, 3)])) == 0


@pytest.mark.parametrize("token", [11, -1])
def test_embedding_refuses_a_token_outside_the_table(token: int) -> None:
    with pytest.raises(IndexError):
        Embedding().reference(torch.tensor([token]), torch.ones(11, 5))


def test_linear_is_x_times_the_transposed_weight() -> None:
    x, weight = randn(3, 7, seed=0), randn(5, 7, seed=1)
    expected = torch.einsum("ni,oi->no", x.double(), weight.double())
    torch.testing.assert_close(Linear().reference(x, weight).double(), expected, rtol=1e-5, atol=1e-6)


def test_linear_accumulates_wider_than_bfloat16() -> None:
    # positive terms: float32 stays within one rounding of the sum, bfloat16 sums would stall at 256 times a term
    x, weight = uniform(3, 4096, seed=0, dtype=torch.bfloat16), uniform(5, 4096, seed=1, dtype=torch.bfloat16)
    exact = x.double() @ weight.double().T
    assert ((Linear().reference(x, weight).double() - exact).abs() / exact).max() < 2**-8
