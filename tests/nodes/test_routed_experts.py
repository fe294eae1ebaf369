import torch
from torch import Tensor

from nodes import RoutedExperts
from tests.support.node_cases import same_bits
from tests.support.rounding import num_differing, randn, rounded

EXPERTS, HIDDEN, INTER, TOP_K = 6, 7, 3, 2
IDS = torch.tensor([[0, 4], [1, 4], [0, 1]])


def case(dtype: torch.dtype = torch.float32, *, size: float = 1.0) -> dict[str, Tensor]:
    return {
        "x": size * randn(3, HIDDEN, seed=0, dtype=dtype),
        "ids": IDS,
        "weights": randn(3, TOP_K, seed=1).sigmoid(),
        "gate_up": randn(EXPERTS, 2 * INTER, HIDDEN, seed=2, dtype=dtype),
        "down": randn(EXPERTS, HIDDEN, INTER, seed=3, dtype=dtype),
    }


def formula(given: dict[str, Tensor], *, limit: float, dtype: torch.dtype | None, each: bool = False) -> Tensor:
    """Row by row and expert by expert in float64, rounded where the node says so; `each` rounds after each expert."""
    step = (lambda value: rounded(value, dtype)) if dtype else (lambda value: value)
    total = torch.zeros(3, HIDDEN, dtype=torch.float64)
    for row in range(3):
        for choice, expert in enumerate(given["ids"][row].tolist()):
            gate, up = step(given["gate_up"][expert].double() @ given["x"][row].double()).chunk(2)
            gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
            active = step(step(gate * gate.sigmoid()) * up)
            weighted = step(given["down"][expert].double() @ active) * given["weights"][row, choice].double()
            total[row] = step(total[row] + step(weighted)) if each else total[row] + weighted
    return step(total)


def test_routed_experts_are_the_formula() -> None:
    given = case()
    got = RoutedExperts(limit=7.0).reference(**given)
    torch.testing.assert_close(got.double(), formula(given, limit=7.0, dtype=None), rtol=1e-5, atol=1e-5)


def test_routed_experts_clamp_the_gate_from_above_and_the_up_on_both_sides() -> None:
    given = case(size=5.0)
    got = RoutedExperts(limit=0.5).reference(**given).double()
    torch.testing.assert_close(got, formula(given, limit=0.5, dtype=None), rtol=1e-5, atol=1e-5)
    assert not torch.allclose(got, formula(given, limit=7.0, dtype=None), rtol=0.1)


def test_routed_experts_round_once_after_the_sum() -> None:
    given = case(torch.bfloat16)
    got = RoutedExperts(limit=7.0).reference(**given)
    assert num_differing(got, formula(given, limit=7.0, dtype=torch.bfloat16)) == 0
    assert num_differing(got, formula(given, limit=7.0, dtype=torch.bfloat16, each=True)) >= 3
    assert num_differing(got, rounded(formula(given, limit=7.0, dtype=None))) >= 3


def test_routed_experts_sum_in_the_order_of_ids() -> None:
    # 2**24 + 1 + 1 in float32: adding the ones to one another first would give 2**24 + 2
    ones = torch.ones(3, 1, 1)
    given = {
        "x": torch.ones(1, 1),
        "ids": torch.tensor([[0, 1, 2]]),
        "weights": torch.tensor([[2.0**24, 1.0, 1.0]]),
        "gate_up": torch.cat([100 * ones, ones], dim=1),
        "down": ones / 100,
    }
    assert RoutedExperts(limit=100.0).reference(**given).item() == 2.0**24


def test_routed_experts_never_chosen_may_hold_nan() -> None:
    given = case()
    expected = RoutedExperts(limit=7.0).reference(**given)
    for name in ("gate_up", "down"):
        given[name] = given[name].clone()
        given[name][[2, 3, 5]] = float("nan")
    assert same_bits(RoutedExperts(limit=7.0).reference(**given), expected)
    given["down"][4, 0, 0] = float("nan")
    assert RoutedExperts(limit=7.0).reference(**given).isnan().any(dim=1).tolist() == [True, True, False]


def test_routed_experts_accumulate_wider_than_bfloat16() -> None:
    wide = 4096
    given = {
        "x": torch.ones(1, wide, dtype=torch.bfloat16),
        "ids": torch.tensor([[0]]),
        "weights": torch.ones(1, 1),
        # the gate is clamped to 1, so that the up alone shows: 4096 times 2**-7
        "gate_up": torch.full((1, 2, wide), 2**-7, dtype=torch.bfloat16),
        "down": torch.ones(1, 1, 1, dtype=torch.bfloat16).expand(1, wide, 1).contiguous(),
    }
    got = RoutedExperts(limit=32.0).reference(**given)
    assert got.unique().tolist() == [1024.0]
