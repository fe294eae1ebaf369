"""AbsorbQuery and AbsorbValue: the two halves of kv_b_proj."""

import torch

from nodes import AbsorbQuery, AbsorbValue
from tests.support.rounding import randn, uniform

HEADS, NOPE, V, LATENT = 3, 5, 2, 7


def test_absorb_query_multiplies_by_the_key_half_of_each_head() -> None:
    query, kv_b = randn(4, HEADS, NOPE, seed=0), randn(HEADS * (NOPE + V), LATENT, seed=1)
    got = AbsorbQuery(v_head_dim=V).reference(query, kv_b)
    for head in range(HEADS):
        first = head * (NOPE + V)
        w_uk = kv_b[first : first + NOPE].double()
        torch.testing.assert_close(got[:, head].double(), query[:, head].double() @ w_uk, rtol=1e-5, atol=1e-6)


def test_absorb_value_multiplies_by_the_value_half_of_each_head() -> None:
    attended, kv_b = randn(4, HEADS, LATENT, seed=0), randn(HEADS * (NOPE + V), LATENT, seed=1)
    got = AbsorbValue(v_head_dim=V, qk_nope_head_dim=NOPE).reference(attended, kv_b)
    for head in range(HEADS):
        first = head * (NOPE + V) + NOPE
        w_uv = kv_b[first : first + V].double()
        expected = attended[:, head].double() @ w_uv.T
        torch.testing.assert_close(got[:, head * V : (head + 1) * V].double(), expected, rtol=1e-5, atol=1e-6)


def test_absorbing_accumulates_wider_than_bfloat16() -> None:
    wide = 4096
    query, kv_b = (
        uniform(3, 2, wide, seed=0, dtype=torch.bfloat16),
        uniform(2 * (wide + 1), 5, seed=1, dtype=torch.bfloat16),
    )
    exact = torch.einsum("nhd,hdr->nhr", query.double(), kv_b.double().view(2, wide + 1, 5)[:, :wide])
    assert ((AbsorbQuery(v_head_dim=1).reference(query, kv_b).double() - exact).abs() / exact).max() < 2**-8
    attended, kv_b = (
        uniform(3, 2, wide, seed=2, dtype=torch.bfloat16),
        uniform(2 * 3, wide, seed=3, dtype=torch.bfloat16),
    )
    exact = torch.einsum("nhr,hvr->nhv", attended.double(), kv_b.double().view(2, 3, wide)[:, 1:]).flatten(1)
    got = AbsorbValue(v_head_dim=2, qk_nope_head_dim=1).reference(attended, kv_b)
    assert ((got.double() - exact).abs() / exact).max() < 2**-8
