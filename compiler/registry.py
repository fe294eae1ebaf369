"""Which node or region runs how on which backend: tables filled by `@lowers` and `@lowers_region`.

A file under a backend's lowering/ registers the lowering of a node; a chain of nodes fuses if and only if a region rule
for it is registered, see passes/fuse.py. A rule may be planned: it shapes plans, and refuses by name to run.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from circuit import LoweringError, Node
from compiler.pattern import Step
from compiler.region import Region


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


@dataclass(frozen=True, slots=True)
class RegionRule:
    """How one chain of nodes runs on one backend as one call.

    launches: what the call starts on the device, in order; one for most.
    is_planned: there is no code yet; `function` refuses to run.
    """

    name: str
    backend: str
    pattern: tuple[Step, ...]
    launches: tuple[str, ...]
    numerics: Numerics
    function: Callable[..., Any]
    is_planned: bool = False

    @property
    def num_required(self) -> int:
        """How many calls it takes at the least: longer chains are tried first."""
        return sum(step.at_least for step in self.pattern if not step.is_outside)


_TABLE: dict[tuple[str, str], Lowering] = {}
_RULES: dict[tuple[str, str], RegionRule] = {}


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


def lowers_region(
    rule: str, pattern: Sequence[Step], *, backend: str, numerics: Numerics, launches: Sequence[str] = ()
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated function as the lowering of the chain `pattern`; `launches` is the rule's name if empty.

    Raises LoweringError for a second rule of that name, and for a pattern that has no call of its own.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        _add_rule(
            RegionRule(rule, backend, tuple(pattern), tuple(launches) or (rule,), numerics, function),
            _taken_by(function),
        )
        return function

    return register


def plans_region(
    rule: str, pattern: Sequence[Step], *, backend: str, numerics: Numerics, launches: Sequence[str] = ()
) -> RegionRule:
    """Register a rule that has no code yet: it fuses in plans, and a program that holds it refuses to run."""

    def refuse(node: Node, *arguments: object) -> NoReturn:
        raise LoweringError(f"region {rule!r} on {backend}: planned, it has no kernel yet; choose another backend")

    planned = RegionRule(rule, backend, tuple(pattern), tuple(launches) or (rule,), numerics, refuse, is_planned=True)
    return _add_rule(planned, "a planned rule")


def region_rules(backend: str) -> tuple[RegionRule, ...]:
    """Return a backend's rules in the order in which they are tried: longer chains first, else as registered."""
    rules = [rule for (owner, _), rule in _RULES.items() if owner == backend]
    return tuple(sorted(rules, key=lambda rule: -rule.num_required))


def rule_of(region: Region, backend: str) -> RegionRule | None:
    """Return the rule that a region was fused by, None where the backend has none of that name."""
    return _RULES.get((backend, region.rule))


def lowering_of(node: Node, backend: str) -> Lowering | None:
    """Return the lowering of a node or a region on a backend, None where there is none."""
    if isinstance(node, Region):
        rule = rule_of(node, backend)
        return None if rule is None else Lowering(backend, Region, rule.function, rule.numerics)
    return _TABLE.get((backend, type(node).__name__))


def lowered_nodes(backend: str) -> tuple[str, ...]:
    """Return the names of the node types that a backend lowers, sorted."""
    return tuple(sorted(name for owner, name in _TABLE if owner == backend))


def _add_rule(rule: RegionRule, owner: str) -> RegionRule:
    key = (rule.backend, rule.name)
    if key in _RULES:
        raise LoweringError(f"region {rule.name!r} on {rule.backend}: registered already; name that of {owner} anew")
    if not rule.num_required:
        raise LoweringError(
            f"region rule {rule.name!r} on {rule.backend}: expected a step that must be there, got none"
        )
    _RULES[key] = rule
    return rule


def _taken_by(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{function.__qualname__}"
