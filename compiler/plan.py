"""The plan of a compile: per program what runs, how, with what promise, at what cost, and which rules did not fire."""

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, ValidationError

import compiler.triton.rules  # noqa: F401 - importing them registers them
from circuit import Call, Circuit, CircuitError, Cost, LoweringError, to_text
from compiler.compile import AFTER_SPECIALISING, Compiled, Request, compile_circuit
from compiler.derived_weights import DerivedWeight
from compiler.region import Region
from compiler.registry import REFERENCE, lowered_nodes, lowering_of, region_rules, rule_of
from compiler.target import Target, target_of

SOURCE_SUFFIXES = {".py", ".cpp", ".h", ".cu", ".json"}


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class CallPlan(_Record):
    """One call: its results, where it stands, how it is lowered, with what promise, at what cost.

    rule, body: of a region, the rule that fused it and the calls inside, each at the cost it would have alone.
    launches: what the call starts on the device, in order; empty where the backend starts no kernels of its own.
    is_planned: there is no code for it yet, and the program refuses to run.
    """

    results: tuple[str, ...]
    node_type: str
    attributes: dict[str, Any]
    block: str
    lowering: str
    numerics: str
    flops: int
    bytes_read: int
    bytes_written: int
    rule: str = ""
    body: tuple["CallPlan", ...] = ()
    launches: tuple[str, ...] = ()
    is_planned: bool = False


class ProgramPlan(_Record):
    """One program at fixed sizes: its calls in order, the arena of its intermediate values, and a digest of it all.

    passes: the passes that made it, each with what it did. fired_rules: per rule the first result it made, each time.
    unfired_rules: per rule why it did not fire. derived_weights: what the program reads in place of a checkpoint's.
    """

    name: str
    backend: str
    dims: dict[str, int]
    calls: tuple[CallPlan, ...]
    arena_bytes: int
    unfired_rules: dict[str, str]
    digest: str
    passes: tuple[str, ...] = ()
    fired_rules: dict[str, tuple[str, ...]] = {}
    derived_weights: tuple[DerivedWeight, ...] = ()

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

    @property
    def launches(self) -> tuple[str, ...]:
        """What one run starts on the device, in order."""
        return tuple(launch for call in self.calls for launch in call.launches)

    @property
    def planned_rules(self) -> tuple[str, ...]:
        """The rules of this program that have no code yet; it cannot run while there are any."""
        return tuple(dict.fromkeys(call.rule or call.node_type for call in self.calls if call.is_planned))


class Plan(_Record):
    """The plans of all programs of a compile."""

    backend: str
    programs: tuple[ProgramPlan, ...]


def plan_program(circuit: Circuit, *, name: str, backend: str, dims: Mapping[str, int]) -> ProgramPlan:
    """Plan a specialised circuit at these sizes; every named dim must have one. `LoweringError` for a node that cannot
    run.

    The passes are those of compile.py. The digest covers the circuit that they made, the sizes, rules and tags, the
    sources of the lowerings and kernels, and torch's version.
    """
    target = target_of(backend)
    compiled = compile_circuit(circuit, Request(target, dims), passes=AFTER_SPECIALISING)
    return plan_compiled(compiled, name=name, target=target, dims=dims)


def plan_compiled(compiled: Compiled, *, name: str, target: Target, dims: Mapping[str, int]) -> ProgramPlan:
    """Plan what the passes made; `LoweringError` for a node that the target cannot run."""
    bound, memory = compiled.circuit, compiled.memory
    assert memory is not None, "plan_memory is the last pass"
    fired, unfired = compiled.fired_rules(), compiled.unfired_rules()
    calls = tuple(_call_plan(call, target, unfired) for call in bound.calls)
    covered = {
        "circuit": to_text(bound),
        "calls": [(call.node_type, call.lowering, call.numerics, call.launches, call.is_planned) for call in calls],
        "rules": [fired, unfired],
        "derived": [weight.model_dump() for weight in compiled.derived],
        "backend": target.backend,
        "sources": sources_digest(target.backend),
        "torch": torch.__version__,
    }
    return ProgramPlan(
        name=name,
        backend=target.backend,
        dims=dict(dims),
        calls=calls,
        arena_bytes=memory.arena_bytes,
        unfired_rules=unfired,
        digest=hashlib.sha256(json.dumps(covered, sort_keys=True).encode()).hexdigest(),
        passes=tuple(f"{record.name}: {record.summary}" for record in compiled.records),
        fired_rules=fired,
        derived_weights=compiled.derived,
    )


def require_runnable(plan: ProgramPlan) -> None:
    """Raise `LoweringError` that names the rules of a plan which have no code yet."""
    if planned := plan.planned_rules:
        raise LoweringError(
            f"program {plan.name!r} on {plan.backend}: {len(planned)} rules are planned and have no kernel yet: "
            f"{', '.join(planned)}; run it on another backend"
        )


@cache
def sources_digest(backend: str) -> str:
    """Return the SHA-256 of a backend's sources: two versions of it make two artifacts of one circuit."""
    root = Path(__file__).parent
    # the rules of the triton backend stand in its folder, its kernels in their own
    folders = [root / backend, *([root / "kernels"] if backend == "triton" else [])]
    digest = hashlib.sha256()
    for path in sorted(path for folder in folders for path in folder.rglob("*") if path.suffix in SOURCE_SUFFIXES):
        digest.update(f"{path.relative_to(root).as_posix()}\0".encode())
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


def _call_plan(call: Call, target: Target, unfired: Mapping[str, str]) -> CallPlan:
    node = call.node
    if isinstance(node, Region):
        return _region_plan(call, node, target)
    lowering = lowering_of(node, target.backend)
    if lowering is None and not target.traces_references:
        raise LoweringError(_no_lowering(call, target, unfired))
    if lowering is None and node.writes and target.backend != "reference":
        raise LoweringError(f"{type(node).__name__}: a node that writes state needs a lowering on {target.backend}")
    return _plan_of(
        call,
        node.cost(*(arg.type for arg in call.args)),
        lowering="reference, traced" if lowering is None else lowering.function.__name__,
        numerics=str(REFERENCE if lowering is None else lowering.numerics),
    )


def _region_plan(call: Call, region: Region, target: Target) -> CallPlan:
    rule = rule_of(region, target.backend)
    if rule is None:
        raise LoweringError(f"region {region.rule!r}: {target.backend} has no rule of that name; compile it anew")
    types = [arg.type for arg in call.args]
    inner = zip(region.circuit.calls, region.call_costs(*types), strict=True)
    return _plan_of(
        call,
        region.cost(*types),
        lowering=rule.name if rule.is_planned else rule.function.__name__,
        numerics=str(rule.numerics),
    ).model_copy(
        update={
            "attributes": {},
            "rule": rule.name,
            "body": tuple(_plan_of(held, cost, lowering=rule.name, numerics="") for held, cost in inner),
            "launches": rule.launches,
            "is_planned": rule.is_planned,
        }
    )


def _plan_of(call: Call, cost: Cost, *, lowering: str, numerics: str) -> CallPlan:
    return CallPlan(
        results=tuple(value.name for value in call.results),
        node_type=type(call.node).__name__,
        attributes=call.node.attributes(),
        block=call.block,
        lowering=lowering,
        numerics=numerics,
        flops=cost.flops,
        bytes_read=cost.bytes_read,
        bytes_written=cost.bytes_written,
    )


def _no_lowering(call: Call, target: Target, unfired: Mapping[str, str]) -> str:
    node_type = type(call.node)
    wanted = [
        f"{rule.name} did not fire: {unfired[rule.name]}"
        for rule in region_rules(target.backend)
        if rule.name in unfired and any(step.node_type is node_type for step in rule.pattern if not step.is_outside)
    ]
    known = ", ".join(lowered_nodes(target.backend)) or "none"
    return (
        f"%{call.results[0].name} = {node_type.__name__}: no lowering of its own on {target.backend} (nodes that have "
        f"one: {known}), and no region takes it; {'; '.join(wanted) or 'no rule has this node'}"
    )
