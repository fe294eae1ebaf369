"""Comparing named tensors, with a report that says which one, by how much, and where."""

from collections.abc import Mapping

import torch
from torch import Tensor


def assert_close(
    actual: Tensor | Mapping[str, Tensor],
    expected: Tensor | Mapping[str, Tensor],
    *,
    rtol: float = 0.0,
    atol: float = 0.0,
    name: str = "result",
) -> None:
    """Fail unless |actual - expected| <= atol + rtol * |expected| everywhere; NaN equals only NaN, and inf only inf.

    The failure lists every tensor out of bounds: how many of its elements are, the worst ratio of the difference to
    its bound, and the index and values of that worst element. Names, dtypes and shapes must agree.
    """
    left = {name: actual} if isinstance(actual, Tensor) else actual
    right = {name: expected} if isinstance(expected, Tensor) else expected
    assert left.keys() == right.keys(), f"names differ: {sorted(left.keys() ^ right.keys())}"
    faults = [fault for key in right if (fault := _fault(key, left[key], right[key], rtol=rtol, atol=atol))]
    assert not faults, "\n".join(faults)


def _fault(name: str, actual: Tensor, expected: Tensor, *, rtol: float, atol: float) -> str | None:
    if actual.dtype != expected.dtype or actual.shape != expected.shape:
        kinds = [f"{tensor.dtype}{list(tensor.shape)}" for tensor in (actual, expected)]
        return f"{name}: expected {kinds[1]}, got {kinds[0]}"
    if expected.numel() == 0:
        return None
    got, wanted = actual.double(), expected.double()
    same = (got == wanted) | (got.isnan() & wanted.isnan())
    difference = torch.where(same, 0.0, (got - wanted).abs())
    bound = torch.where(wanted.isfinite(), atol + rtol * wanted.abs(), 0.0)
    # a NaN that meets a number, or a number that meets inf, is infinitely wrong
    ratio = torch.where(same, 0.0, difference / bound).nan_to_num(nan=torch.inf, posinf=torch.inf)
    num_wrong = int((ratio > 1).sum())
    if not num_wrong:
        return None
    worst = tuple(int(index) for index in torch.unravel_index(ratio.argmax(), ratio.shape))
    return (
        f"{name}: {num_wrong} of {ratio.numel()} elements out of bounds (rtol {rtol}, atol {atol}); "
        f"worst at {list(worst)}: expected {wanted[worst].item()}, got {got[worst].item()}, "
        f"{ratio[worst].item():.3g} times the bound"
    )
