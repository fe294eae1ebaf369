import pytest
import torch
from torch import Tensor

from circuit import StateType, TypeRuleError, bf16, i64
from nodes import KeyPool
from tests.support.node_cases import same_bits
from tests.support.rounding import num_differing, randn, rounded
from tests.support.sequence_runs import SPANS, SequenceRun, sequence_run

POOL = 4


def pool_on(run: SequenceRun, bias: Tensor, *, tail: Tensor | None = None) -> Tensor:
    tail = run.tail if tail is None else tail
    return KeyPool(pool=bias.shape[0]).reference(tail, run.run_keys, run.run_gates, bias, run.position, run.sequence)


def pooled(
    run: SequenceRun,
    bias: Tensor,
    *,
    round_weights: bool = True,
    round_products: bool = True,
    round_each_sum: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return which rows complete a pool, and the pooled key of those, row by row from the whole history, in float64."""
    pool, dtype = bias.shape[0], run.keys.dtype
    completes, made = [], []
    for position, sequence in zip(run.position.tolist(), run.sequence.tolist(), strict=True):
        completes.append((position + 1) % pool == 0)
        if not completes[-1]:
            continue
        members = range(position + 1 - pool, position + 1)
        gates = torch.stack([run.gates[sequence, row].double() for row in members])
        weights = torch.softmax(gates + bias.double(), dim=0)
        weights = rounded(weights, dtype) if round_weights else weights
        total = torch.zeros(run.keys.shape[2], dtype=torch.float64)
        for slot, row in enumerate(members):
            product = weights[slot] * run.keys[sequence, row].double()
            total = total + (rounded(product, dtype) if round_products else product)
            total = rounded(total, dtype) if round_each_sum else total
        made.append(rounded(total, dtype))
    return torch.tensor(completes).bool(), torch.stack(made) if made else torch.zeros(0, run.keys.shape[2]).double()


@pytest.mark.parametrize("depth", [4, 5, 20])
@pytest.mark.parametrize("spans", SPANS.values(), ids=SPANS)
@pytest.mark.parametrize("pool", [4, 3, 2])
def test_key_pool_takes_each_row_from_the_run_or_the_tail(spans: list[tuple[int, int]], depth: int, pool: int) -> None:
    run = sequence_run(spans, depth=depth)
    bias = randn(pool, 5, seed=9)
    completes, expected = pooled(run, bias)
    got = pool_on(run, bias)
    torch.testing.assert_close(got[completes].double(), expected, rtol=1e-5, atol=1e-6)
    assert same_bits(got[~completes], torch.zeros_like(got[~completes]))


@pytest.mark.parametrize("spans", SPANS.values(), ids=SPANS)
def test_key_pool_rounds_the_softmax_before_the_product(spans: list[tuple[int, int]]) -> None:
    run = sequence_run(spans, depth=5, width=63, dtype=torch.bfloat16)
    bias = randn(POOL, 63, seed=9, dtype=torch.bfloat16)
    completes, expected = pooled(run, bias)
    got = pool_on(run, bias)[completes]
    assert num_differing(got, expected) == 0
    for other in ({"round_weights": False}, {"round_products": False}, {"round_each_sum": True}):
        assert num_differing(got, pooled(run, bias, **other)[1]) >= 5 * completes.sum()


def test_key_pool_never_lets_an_unrelated_tail_entry_matter() -> None:
    run = sequence_run([(6, 3), (9, 1)], depth=16)
    bias = randn(POOL, 5, seed=9)
    expected = pool_on(run, bias)
    # positions 4 and 5 of sequence 1 are the only rows that the run needs of the tail
    needed = torch.zeros(run.tail.shape[:2], dtype=torch.bool)
    needed[1, [4, 5]] = True
    for rubbish in (float("nan"), float("inf"), -1e30):
        tail = torch.where(needed[:, :, None, None], run.tail, rubbish)
        assert same_bits(pool_on(run, bias, tail=tail), expected)
    run.tail[1, 5, 1] = float("nan")
    assert pool_on(run, bias)[1].isnan().all(), "a needed entry that was never written shows"


def test_key_pool_of_one_row_is_its_key() -> None:
    run = sequence_run([(2, 3), (0, 2)], depth=3, dtype=torch.bfloat16)
    assert same_bits(pool_on(run, randn(1, 5, seed=9, dtype=torch.bfloat16)), run.run_keys)


def test_key_pool_position_bias_belongs_to_the_slot() -> None:
    run = sequence_run([(0, 4)], depth=4)
    bias = torch.full((POOL, 5), -1e4)
    bias[2] = 0.0
    torch.testing.assert_close(pool_on(run, bias)[3], run.run_keys[2])


def test_key_pool_ignores_null_rows_beside_live_ones() -> None:
    run = sequence_run([(2, 2)], depth=4)
    bias = randn(POOL, 5, seed=9)
    keys, gates = (torch.cat([rows, torch.full((2, 5), float("nan"))]) for rows in (run.run_keys, run.run_gates))
    position, sequence = (
        torch.cat([run.position, torch.tensor([3, 3])]),
        torch.cat([run.sequence, torch.zeros(2).long()]),
    )
    got = KeyPool(pool=POOL).reference(run.tail, keys, gates, bias, position, sequence)
    assert same_bits(got[:2], pool_on(run, bias))


def test_key_pool_refuses_a_ring_that_holds_no_pool() -> None:
    rows, numbers = bf16("n", 8), i64("n")
    with pytest.raises(TypeRuleError, match=r"KeyPool\.tail: expected a ring at least 4 rows deep"):
        KeyPool(pool=4).infer(StateType("ring", bf16("s", 3, 2, 8)), rows, rows, bf16(4, 8), numbers, numbers)
