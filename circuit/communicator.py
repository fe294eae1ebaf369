"""What a collective node runs on: the ranks that share one circuit, along a named axis.

A circuit names an axis and how many ranks lie along it; which processes those are is known when it runs. Whoever runs
a circuit that holds collectives puts a communicator for each axis around the run:

    with communicating({"tp": tensor_ranks, "ep": expert_ranks}):
        interpret(circuit, ...)
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, Protocol

from torch import Tensor

from circuit.errors import BindingError

Axis = Literal["tp", "ep"]
Exchange = Literal["all_reduce", "all_gather"]


class Communicator(Protocol):
    """The ranks along one axis, of which this process is one. Every rank calls the same methods in the same order."""

    @property
    def rank(self) -> int:
        """This process's place, from 0 on."""
        ...

    @property
    def num_ranks(self) -> int:
        """How many ranks there are."""
        ...

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """Return the sum of every rank's tensor, the same bytes on every rank; the argument stays as it is."""
        ...

    def all_gather(self, tensor: Tensor) -> Tensor:
        """Return [num_ranks, ...]: every rank's tensor, in the order of ranks."""
        ...


_RUNNING: ContextVar[Mapping[str, Communicator] | None] = ContextVar("communicators", default=None)


@contextmanager
def communicating(communicators: Mapping[str, Communicator]) -> Iterator[None]:
    """Let collectives that run in the body exchange over these communicators, by axis."""
    token = _RUNNING.set(communicators)
    try:
        yield
    finally:
        _RUNNING.reset(token)


def communicator_over(axis: str, num_ranks: int, *, where: str) -> Communicator:
    """Return the communicator of an axis; `BindingError` when none runs here, or one of another number of ranks."""
    held = (_RUNNING.get() or {}).get(axis)
    if held is None:
        raise BindingError(
            f"{where}: expected a communicator of {num_ranks} ranks along {axis!r}, got none; "
            "run the circuit of a split drafter through its proposer, or inside `communicating`"
        )
    if held.num_ranks != num_ranks:
        raise BindingError(
            f"{where}: expected {num_ranks} ranks along {axis!r}, got {held.num_ranks}; bind the drafter to the plan "
            "that its ranks were started with"
        )
    return held
