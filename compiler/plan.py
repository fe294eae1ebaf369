"""The plan of a compile: per program what runs, how, with what promise, at what cost, and which rules did not fire."""

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, ValidationError

from circuit import Call, Circuit, CircuitError, LoweringError, to_text
from compiler.passes import bind_dims, plan_memory, remove_dead_code
from compiler.registry import REFERENCE, lowering_of

# rules that other backends have and this one does not need, each with its reason
UNFIRED_RULES: dict[str, dict[str, str]] = {
    "inductor": {
        "fold_weights": "projections of one input share no launch to save: a program is one call",
        "fuse": "Inductor fuses the nodes of a program itself",
    }
}


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class CallPlan(_Record):
    """One node call: its results, where it stands, how it is lowered, with what promise, at what cost."""

    results: tuple[str, ...]
    node_type: str
    attributes: dict[str, Any]
    block: str
    lowering: str
    numerics: str
    flops: int
    bytes_read: int
    bytes_written: int


class ProgramPlan(_Record):
    """One program at fixed sizes: its calls in order, the arena of its intermediate values, and a digest of it all."""

    name: str
    backend: str
    dims: dict[str, int]
    calls: tuple[CallPlan, ...]
    arena_bytes: int
    unfired_rules: dict[str, str]
    digest: str

    @property
    def bytes_read(self) -> int:
        """What one run reads of weights, caches and intermediate values, call by call."""
        return sum(call.bytes_read for call in self.calls)

    @property
    def bytes_written(self) -> int:
        """What one run writes, call by call."""
        return sum(call.bytes_written for call in self.calls)

    @property
    def flops(self) -> int:
        """Floating point operations of one run."""
        return sum(call.flops for call in self.calls)


class Plan(_Record):
    """The plans of all programs of a compile."""

    backend: str
    programs: tuple[ProgramPlan, ...]


def plan_program(circuit: Circuit, *, name: str, backend: str, dims: Mapping[str, int]) -> ProgramPlan:
    """Plan a circuit at these sizes; every named dim must have one. `LoweringError` for a node that cannot run.

    The passes, in order: dead code, bind dims, lower, plan memory. The digest covers the circuit, the sizes, the tags,
    the sources of the lowerings and torch's version.
    """
    bound = bind_dims(remove_dead_code(circuit), dims)
    calls = tuple(_call_plan(call, backend) for call in bound.calls)
    covered = {
        "circuit": to_text(bound),
        "calls": [(call.node_type, call.lowering, call.numerics) for call in calls],
        "backend": backend,
        "sources": sources_digest(backend),
        "torch": torch.__version__,
    }
    return ProgramPlan(
        name=name,
        backend=backend,
        dims=dict(dims),
        calls=calls,
        arena_bytes=plan_memory(bound).arena_bytes,
        unfired_rules=UNFIRED_RULES.get(backend, {}),
        digest=hashlib.sha256(json.dumps(covered, sort_keys=True).encode()).hexdigest(),
    )


@cache
def sources_digest(backend: str) -> str:
    """Return the SHA-256 of a backend's sources: two versions of it make two artifacts of one circuit."""
    folder = Path(__file__).parent / backend
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(f"{path.relative_to(folder).as_posix()}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def read_plan(path: Path) -> Plan:
    """Read a plan that a compile wrote; `CircuitError` is one clear line."""
    try:
        return Plan.model_validate_json(path.read_bytes())
    except OSError as error:
        raise CircuitError(f"{path}: expected a readable plan, got {error.strerror}; compile again") from None
    except ValidationError as error:
        fault = error.errors()[0]
        place = ".".join(str(part) for part in fault["loc"]) or "the document"
        raise CircuitError(f"{path}: {place}: {fault['msg']}; the artifact is damaged, compile again") from None


def _call_plan(call: Call, backend: str) -> CallPlan:
    lowering = lowering_of(call.node, backend)
    if lowering is None and call.node.writes:
        raise LoweringError(f"{type(call.node).__name__}: a node that writes state needs a lowering on {backend}")
    cost = call.node.cost(*(arg.type for arg in call.args))
    return CallPlan(
        results=tuple(value.name for value in call.results),
        node_type=type(call.node).__name__,
        attributes=call.node.attributes(),
        block=call.block,
        lowering="reference, traced" if lowering is None else lowering.function.__name__,
        numerics=str(REFERENCE if lowering is None else lowering.numerics),
        flops=cost.flops,
        bytes_read=cost.bytes_read,
        bytes_written=cost.bytes_written,
    )
