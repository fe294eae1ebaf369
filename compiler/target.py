"""Targets: the backend that a program is compiled for, its device and dtypes, and what it wants folded."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch

from circuit import Circuit, LoweringError, StateType, close_names, dtype_name
from compiler.passes.fold_weights import FOLD_PROJECTIONS, SPLIT_KV_B
from compiler.passes.place_collectives import collectives

DeviceKind = Literal["cpu", "cuda"]


@dataclass(frozen=True, slots=True)
class Target:
    """What decides how a circuit is compiled, beside the circuit and its sizes.

    dtypes: the floating point dtypes that weights and states may have.
    traces_references: a node without a lowering runs its reference; otherwise it is refused by name.
    holds_collectives: a program may exchange with other ranks; otherwise a circuit that does is refused.
    why_not: rules that the target does not want, each with its reason; a plan lists them as not fired.
    """

    backend: str
    device: DeviceKind
    dtypes: tuple[torch.dtype, ...]
    traces_references: bool
    holds_collectives: bool = False
    why_not: Mapping[str, str] = field(default_factory=dict)


# parts of the nodes compute in float32, which would round a wider model
_COMPILED_DTYPES = (torch.bfloat16, torch.float16, torch.float32)

_TARGETS = {
    "reference": Target(
        "reference",
        "cpu",
        (*_COMPILED_DTYPES, torch.float64),
        traces_references=True,
        holds_collectives=True,
        why_not={
            FOLD_PROJECTIONS: "the interpreter is the oracle: it runs the circuit as it is declared",
            SPLIT_KV_B: "the interpreter is the oracle: it runs the circuit as it is declared",
        },
    ),
    "inductor": Target(
        "inductor",
        "cpu",
        _COMPILED_DTYPES,
        traces_references=True,
        why_not={
            FOLD_PROJECTIONS: "a program is one call, so it saves no launch, and doubles these weights; measured: both "
            "rules together gain 3 % of SMALL bf16, less than its spread (benchmarks/fold_cpu.py, 2 vCPU Xeon 2.0 GHz)",
            SPLIT_KV_B: "the rows of a head lie together in kv_b already, and a copy doubles it; "
            "measured with fold_projections",
        },
    ),
    "triton": Target("triton", "cuda", _COMPILED_DTYPES, traces_references=False),
}


def target_of(backend: str) -> Target:
    """Return the target of a backend's name; `LoweringError` lists the ones there are."""
    if backend not in _TARGETS:
        raise LoweringError(f"backend {backend!r}: there is none of that name; {close_names(backend, _TARGETS)}")
    return _TARGETS[backend]


def check_dtypes(circuit: Circuit, target: Target) -> None:
    """Raise `LoweringError` for the first weight or state of a dtype that the target does not run."""
    for value in (*circuit.weights.values(), *circuit.states.values()):
        held = value.type.tensor if isinstance(value.type, StateType) else value.type
        if held.dtype.is_floating_point and held.dtype not in target.dtypes:
            listed = ", ".join(dtype_name(dtype) for dtype in target.dtypes)
            raise LoweringError(
                f"circuit {circuit.name!r}: {value.kind} {value!r}: {target.backend} runs {listed}; "
                f"bind the drafter in one of them"
            )


def check_collectives(circuit: Circuit, target: Target) -> None:
    """Raise `LoweringError` for the first exchange between ranks where the target's programs can hold none."""
    placed = collectives(circuit)
    if placed and not target.holds_collectives:
        raise LoweringError(
            f"circuit {circuit.name!r}: {placed[0]}: a program of {target.backend} runs on one rank and exchanges "
            f"nothing, got {len(placed)} exchanges; run a split drafter on the backend reference, or leave it whole"
        )
