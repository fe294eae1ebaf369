import pytest
import torch
from torch import Tensor

from nodes import IndexerScores
from tests.support.node_cases import same_bits
from tests.support.rounding import randn

POOL, HEADS, WIDTH, ENTRIES = 4, 3, 5, 2
INF = float("inf")
# two rows share a sequence, whose blocks do not lie in order; the last row's table ends in the null block
TABLE = torch.tensor([[5, 1, 3], [5, 1, 3], [2, 4, 0]])


def case(dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    pool_keys = randn(6, ENTRIES, WIDTH, seed=0, dtype=dtype)
    pool_keys[0] = float("nan")
    return {
        "pool_keys": pool_keys,
        "query": randn(3, HEADS, WIDTH, seed=1, dtype=dtype),
        "head_weights": randn(3, HEADS, seed=2, dtype=dtype),
        "position": torch.tensor([23, 22, 15]),
        "block_table": TABLE,
    }


def formula(pool_keys: Tensor, query: Tensor, head_weights: Tensor, position: Tensor, block_table: Tensor) -> Tensor:
    """Pool by pool and head by head, in float64."""
    scores = torch.full((query.shape[0], block_table.shape[1] * ENTRIES), -INF, dtype=torch.float64)
    for row in range(query.shape[0]):
        for pool in range(scores.shape[1]):
            if (pool + 1) * POOL > position[row] + 1:
                continue
            key = pool_keys[block_table[row, pool // ENTRIES], pool % ENTRIES].double()
            scores[row, pool] = sum(
                head_weights[row, head].double() * HEADS**-0.5 * max(query[row, head].double() @ key * WIDTH**-0.5, 0)
                for head in range(HEADS)
            )
    return scores


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
def test_indexer_scores_are_the_formula_in_float32(dtype: torch.dtype) -> None:
    given = case(dtype)
    got, expected = IndexerScores(pool=POOL).reference(**given), formula(**given)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-6)
    assert 3 <= (expected[expected > -INF] < 0).sum() <= (expected > -INF).sum() - 3, "scores of both signs"


def test_indexer_scores_count_a_pool_when_its_last_token_is_visible() -> None:
    given = case()
    for position in range(TABLE.shape[1] * ENTRIES * POOL):
        given["position"] = torch.full((3,), position)
        scores = IndexerScores(pool=POOL).reference(**given)
        complete = (position + 1) // POOL
        assert (scores[:2, :complete] > -INF).all()
        assert (scores[:, complete:] == -INF).all()


def test_indexer_scores_never_read_a_pool_that_is_not_complete() -> None:
    given = case()
    expected = IndexerScores(pool=POOL).reference(**given)
    # pool 5 of the shared sequence: row 0 at position 23 sees all of it, row 1 at position 22 does not
    given["pool_keys"] = given["pool_keys"].clone()
    given["pool_keys"][3, 1] = float("nan")
    scores = IndexerScores(pool=POOL).reference(**given)
    assert same_bits(scores[1:], expected[1:])
    assert same_bits(scores[0, :5], expected[0, :5])
    assert scores[0, 5].isnan(), "a complete pool whose key was never written shows"


def test_indexer_scores_of_one_row_pools() -> None:
    given = case()
    given["position"] = torch.tensor([5, 0, 3])
    scores = IndexerScores(pool=1).reference(**given)
    assert (scores > -INF).sum(dim=1).tolist() == [6, 1, 4]
