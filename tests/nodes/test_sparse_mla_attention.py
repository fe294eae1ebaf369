import torch
from torch import Tensor

from nodes import AbsorbQuery, AbsorbValue, SparseMlaAttention
from tests.support.node_cases import same_bits
from tests.support.rounding import num_differing, randn, rounded

HEADS, NOPE, V, LATENT, BLOCK_SIZE = 3, 5, 2, 7, 4
SCALE = NOPE**-0.5
NAN = float("nan")
# rows 0 and 1 are of one sequence; blocks out of order; row 2's table ends in the null block
TABLE = torch.tensor([[5, 1, 3], [5, 1, 3], [2, 4, 0]])
SELECTED = torch.tensor([[0, 3, 4, 11, -1, -1], [9, -1, 2, -1, -1, 7], [-1, -1, -1, 6, 5, -1]])


def latents(dtype: torch.dtype = torch.float32) -> Tensor:
    """Return a cache that is NaN wherever no row selects."""
    cache, filled = (
        torch.full((6, BLOCK_SIZE, LATENT), NAN, dtype=dtype),
        randn(6, BLOCK_SIZE, LATENT, seed=0, dtype=dtype),
    )
    for row, tokens in enumerate(SELECTED.tolist()):
        for token in (token for token in tokens if token >= 0):
            block = TABLE[row, token // BLOCK_SIZE]
            cache[block, token % BLOCK_SIZE] = filled[block, token % BLOCK_SIZE]
    return cache


def rows_of(cache: Tensor, row: int) -> Tensor:
    tokens = [token for token in SELECTED[row].tolist() if token >= 0]
    return torch.stack([cache[TABLE[row, token // BLOCK_SIZE], token % BLOCK_SIZE] for token in tokens]).double()


def attend(cache: Tensor, query: Tensor, *, scale: float = SCALE, selected: Tensor = SELECTED) -> Tensor:
    return SparseMlaAttention(scale=scale).reference(cache, query, selected, TABLE)


def formula(cache: Tensor, query: Tensor, *, round_probabilities: bool) -> Tensor:
    """Row by row, in float64; only the selected latents are touched."""
    made = []
    for row in range(query.shape[0]):
        latent = rows_of(cache, row)
        probabilities = torch.softmax(query[row].double() @ latent.T * SCALE, dim=-1)
        made.append((rounded(probabilities, query.dtype) if round_probabilities else probabilities) @ latent)
    return torch.stack(made)


def test_absorbed_attention_equals_expanded_attention() -> None:
    query, kv_b, cache = randn(3, HEADS, NOPE, seed=1), randn(HEADS * (NOPE + V), LATENT, seed=2), latents()
    attended = attend(cache, AbsorbQuery(v_head_dim=V).reference(query, kv_b))
    got = AbsorbValue(v_head_dim=V, qk_nope_head_dim=NOPE).reference(attended, kv_b).view(3, HEADS, V)
    for row in range(3):
        expanded = (rows_of(cache, row) @ kv_b.double().T).view(-1, HEADS, NOPE + V)
        for head in range(HEADS):
            keys, values = expanded[:, head, :NOPE], expanded[:, head, NOPE:]
            probabilities = torch.softmax(keys @ query[row, head].double() / NOPE**0.5, dim=0)
            torch.testing.assert_close(got[row, head].double(), probabilities @ values, rtol=1e-4, atol=1e-5)


def test_attention_is_the_formula_and_reads_selected_rows_only() -> None:
    cache, query = latents(), randn(3, HEADS, LATENT, seed=1)
    got = attend(cache, query)
    expected = formula(cache, query, round_probabilities=False)
    torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-5)


def test_attention_rounds_the_probabilities_and_the_result() -> None:
    cache, query = latents(torch.bfloat16), randn(3, HEADS, LATENT, seed=1, dtype=torch.bfloat16)
    got = attend(cache, query)
    assert num_differing(got, rounded(formula(cache, query, round_probabilities=True))) == 0
    assert num_differing(got, rounded(formula(cache, query, round_probabilities=False))) >= 5


def test_attention_scores_stay_in_float32() -> None:
    # 256 and 257 are one bfloat16; in float32 they are a difference of one in the exponent
    cache = torch.zeros(6, BLOCK_SIZE, LATENT, dtype=torch.bfloat16)
    cache[5, 0, 0], cache[5, 0, 1], cache[5, 3, 0] = 256.0, 1.0, 256.0
    query = torch.zeros(3, 1, LATENT, dtype=torch.bfloat16)
    query[0, 0, :2] = 1.0
    got = attend(cache, query, scale=1.0)
    share = torch.tensor(1 / (1 + torch.e**-1.0)).to(torch.bfloat16)
    assert got[0, 0, 1] == share


def test_attention_scale_multiplies_the_scores() -> None:
    cache, query = latents(), randn(3, HEADS, LATENT, seed=1)
    torch.testing.assert_close(attend(cache, query, scale=0.5), attend(cache, query * 0.5, scale=1.0))
    uniform = attend(cache, query, scale=0.0)
    torch.testing.assert_close(uniform[0, 0].double(), rows_of(cache, 0).mean(dim=0), rtol=1e-5, atol=1e-6)


def test_attention_row_that_selects_nothing_gives_zeros() -> None:
    selected = SELECTED.clone()
    selected[1] = -1
    cache, query = latents(), randn(3, HEADS, LATENT, seed=1)
    got = attend(cache, query, selected=selected)
    assert same_bits(got[1], torch.zeros(HEADS, LATENT))
    assert same_bits(got[[0, 2]], attend(cache, query)[[0, 2]])
    nothing = torch.full((3, 6), -1)
    assert same_bits(attend(torch.full_like(cache, NAN), query, selected=nothing), torch.zeros(3, HEADS, LATENT))


def test_attention_shows_a_selected_row_that_was_never_written() -> None:
    cache, query = latents(), randn(3, HEADS, LATENT, seed=1)
    cache[5, 0] = NAN
    got = attend(cache, query)
    assert got[0].isnan().all()
    assert not got[1:].isnan().any()


def test_attention_survives_large_scores() -> None:
    cache, query = latents(), randn(3, HEADS, LATENT, seed=1)
    got = attend(cache, query * 1e6)
    for row in range(3):
        best = (rows_of(cache, row) @ query[row].double().T).argmax(dim=0)
        torch.testing.assert_close(got[row].double(), rows_of(cache, row)[best])


def test_attention_order_of_the_selection_does_not_matter() -> None:
    cache, query = latents(), randn(3, HEADS, LATENT, seed=1)
    torch.testing.assert_close(attend(cache, query, selected=SELECTED.flip(1)), attend(cache, query))
