"""Which node runs how on which backend: one table, filled by `@lowers` in the files under a backend's lowering/."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from circuit import LoweringError, Node


@dataclass(frozen=True, slots=True)
class Numerics:
    """What a lowering promises against the node by node reference.

    bitwise: the same bytes. reference: it is the reference, traced. tolerance: within `bound` relative, for `reason`.
    """

    kind: Literal["bitwise", "reference", "tolerance"]
    bound: float = 0.0
    reason: str = ""

    def __str__(self) -> str:
        return f"tolerance({self.bound:g}, {self.reason})" if self.kind == "tolerance" else self.kind


BITWISE = Numerics("bitwise")
REFERENCE = Numerics("reference")


def tolerance(bound: float, reason: str) -> Numerics:
    """Return the tag of a lowering that rounds otherwise; `bound` is relative L2 of the result in float32."""
    return Numerics("tolerance", bound, reason)


@dataclass(frozen=True, slots=True)
class Lowering:
    """How one node type runs on one backend."""

    backend: str
    node_type: type[Node]
    function: Callable[..., Any]
    numerics: Numerics


_TABLE: dict[tuple[str, str], Lowering] = {}


def lowers(
    node_type: type[Node], *, backend: str, numerics: Numerics
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated function as the lowering of `node_type`; a second one for the pair is an error."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        key = (backend, node_type.__name__)
        if key in _TABLE:
            owner = _TABLE[key].function.__module__
            raise LoweringError(f"{node_type.__name__} on {backend}: lowered already by {owner}")
        _TABLE[key] = Lowering(backend, node_type, function, numerics)
        return function

    return register


def lowering_of(node: Node, backend: str) -> Lowering | None:
    """Return the lowering of a node on a backend, None where there is none."""
    return _TABLE.get((backend, type(node).__name__))


def lowered_nodes(backend: str) -> tuple[str, ...]:
    """Return the names of the node types that a backend lowers, sorted."""
    return tuple(sorted(name for owner, name in _TABLE if owner == backend))
