import pytest
import torch

from nodes import Argmax

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    "logits, expected",
    [
        pytest.param([1.0, 3.0, 2.0, 3.0], 1, id="lowest_of_two"),
        pytest.param([0.0] * 5, 0, id="all_equal"),
        pytest.param([-INF] * 5, 0, id="all_minus_infinity"),
        pytest.param([-1.0, -0.0, 0.0], 1, id="zeros_are_equal"),
        pytest.param([-5.0, -4.0, -6.0], 1, id="all_negative"),
        pytest.param([1.0, NAN, INF, NAN], 1, id="first_nan_wins"),
    ],
)
def test_argmax_picks(logits: list[float], expected: int) -> None:
    assert Argmax().reference(torch.tensor([logits])).tolist() == [expected]


def test_argmax_lowest_index_wins_in_a_large_vocabulary() -> None:
    # wide enough for a vectorised, split reduction
    logits = torch.zeros(3, 154_880, dtype=torch.bfloat16)
    logits[0, [17, 90_000]] = 2.0
    logits[1, [154_879, 80_001]] = 2.0
    assert Argmax().reference(logits).tolist() == [17, 80_001, 0]
