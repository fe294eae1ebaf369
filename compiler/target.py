"""Targets: the backend that a program is compiled for, the device it runs on, and what it wants folded."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from circuit import LoweringError, close_names
from compiler.passes.fold_weights import FOLD_PROJECTIONS, SPLIT_KV_B

DeviceKind = Literal["cpu", "cuda"]


@dataclass(frozen=True, slots=True)
class Target:
    """What decides how a circuit is compiled, beside the circuit and its sizes.

    traces_references: a node without a lowering runs its reference; otherwise it is refused by name.
    why_not: rules that the target does not want, each with its reason; a plan lists them as not fired.
    """

    backend: str
    device: DeviceKind
    traces_references: bool
    why_not: Mapping[str, str] = field(default_factory=dict)


_TARGETS = {
    "reference": Target(
        "reference",
        "cpu",
        traces_references=True,
        why_not={
            FOLD_PROJECTIONS: "the interpreter is the oracle: it runs the circuit as it is declared",
            SPLIT_KV_B: "the interpreter is the oracle: it runs the circuit as it is declared",
        },
    ),
    "inductor": Target(
        "inductor",
        "cpu",
        traces_references=True,
        why_not={
            FOLD_PROJECTIONS: "a program is one call, so it saves no launch, and doubles these weights; "
            "measured: not yet",
            SPLIT_KV_B: "the rows of a head lie together in kv_b already, and a copy doubles it; measured: not yet",
        },
    ),
    "triton": Target("triton", "cuda", traces_references=False),
}


def target_of(backend: str) -> Target:
    """Return the target of a backend's name; `LoweringError` lists the ones there are."""
    if backend not in _TARGETS:
        raise LoweringError(f"backend {backend!r}: there is none of that name; {close_names(backend, _TARGETS)}")
    return _TARGETS[backend]
