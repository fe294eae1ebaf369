"""A target whose choice of rows does not depend on how many tokens run in a pass.

A sparse target scores its pools with relu'd products, so pools of exactly equal score, most often 0, are common. Which
of them `topk` takes is undefined, and in practice changes with the width of a pass: a verify of several tokens and
plain decoding would attend different rows, and no rollback could make their texts equal.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode


@contextmanager
def lowest_index_first(indexers: Iterable[nn.Module]) -> Iterator[None]:
    """Within the block these modules' forwards take the lowest pool among equals; afterwards they are as before."""
    modules = tuple(indexers)
    for module in modules:
        # the mode costs a call a torch function, so it surrounds the indexer alone: a third of a pass otherwise
        module.forward = partial(_run_stable, module.forward)
    try:
        yield
    finally:
        for module in modules:
            del module.forward


def _run_stable(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with _LowestIndexTopk():
        return forward(*args, **kwargs)


class _LowestIndexTopk(TorchFunctionMode):
    """Within the block `topk` takes the lowest index among equals, and returns its choice in order of value."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run `func`, or the stable form of it."""
        if func is torch.topk or func is Tensor.topk:
            return _stable_topk(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _stable_topk(
    values: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Tensor, Tensor]:
    """Return what `torch.topk` returns, the lowest index first among equals; the order is always by value."""
    ordered, indices = torch.sort(values, dim=dim, descending=largest, stable=True)
    return torch.return_types.topk((ordered.narrow(dim, 0, k), indices.narrow(dim, 0, k)))
