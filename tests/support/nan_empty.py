"""New memory that shows itself when it is read before it is written."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor


def poison(tensor: Tensor) -> Tensor:
    """Fill with NaN, integers with their lowest value, booleans with true; return the tensor."""
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        return tensor.fill_(torch.nan)
    return tensor.fill_(True if tensor.dtype == torch.bool else torch.iinfo(tensor.dtype).min)


@contextmanager
def nan_filled_empty() -> Iterator[None]:
    """Make torch.empty, empty_like, empty_strided and Tensor.new_empty return poisoned memory inside the block."""

    def poisoned(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def made(*args: Any, **kwargs: Any) -> Tensor:
            return poison(make(*args, **kwargs))

        return made

    with (
        mock.patch.object(torch, "empty", poisoned(torch.empty)),
        mock.patch.object(torch, "empty_like", poisoned(torch.empty_like)),
        mock.patch.object(torch, "empty_strided", poisoned(torch.empty_strided)),
        mock.patch.object(Tensor, "new_empty", poisoned(Tensor.new_empty)),
    ):
        yield
