"""Fuse: calls that a backend runs as one become one region, whose reference is still those calls.

before:  %h = RmsNorm(..)(%x, %g)   %y = Linear()(%h, %w)   output y = %y
after:   %y = Region(rule="norm_linear")(%x, %g, %w)        output y = %y

A chain fuses if and only if a rule for it is registered, nothing outside reads what the rule keeps inside, and the
region is convex: no path leaves it and comes back, through data or through the order of a state's versions (who reads a
version runs before who replaces it). Longer chains are tried first; each call is in one region at most.
"""

from collections.abc import Sequence
from heapq import heappop, heappush

from circuit import Call, Circuit, StateType, TensorType, Value
from compiler.passes.record import RuleRecord
from compiler.pattern import Match, Matcher
from compiler.region import Region
from compiler.registry import RegionRule


def fuse(circuit: Circuit, rules: Sequence[RegionRule]) -> tuple[Circuit, tuple[RuleRecord, ...]]:
    """Return the circuit with regions for `rules`, and what became of each rule. Changes no value."""
    groups = _Groups(circuit)
    records = tuple(_apply(rule, circuit, groups) for rule in rules)
    return _rebuilt(circuit, groups), records


def _apply(rule: RegionRule, circuit: Circuit, groups: "_Groups") -> RuleRecord:
    fired: list[str] = []
    # by reason: many matches may fail for one
    refused: dict[str, None] = {}
    while True:
        matcher = Matcher(circuit, rule.pattern, taken=groups.rule_of)
        members = _first_legal(rule, matcher, circuit, groups, refused=refused)
        if not members:
            break
        groups.join(members, rule.name)
        fired.append(min(members, key=groups.index.__getitem__).results[0].name)
    if not fired and not refused:
        refused = {matcher.absent() or _blocked(matcher, groups) or matcher.stuck(): None}
    return RuleRecord(rule.name, tuple(fired), tuple(refused))


def _blocked(matcher: Matcher, groups: "_Groups") -> str:
    """Return which call that would have fitted is in a region already, empty when none is."""
    taken = [f"{_spelled(call)} is part of the region {groups.rule_of[call]!r}" for call in matcher.blocked()]
    return "; ".join(taken[:1] + ([f"and {len(taken) - 1} more like it"] if len(taken) > 1 else []))


def _first_legal(
    rule: RegionRule, matcher: Matcher, circuit: Circuit, groups: "_Groups", *, refused: dict[str, None]
) -> list[Call]:
    """Return the calls of the first match that may fuse, none when there is none; reasons go into `refused`."""
    for match in matcher.matches():
        members = [call for step in rule.pattern if not step.is_outside for call in match.calls[step.name]]
        why_not = _read_outside(rule, match, circuit) or groups.why_not_convex(members)
        if not why_not:
            return members
        refused[why_not] = None
    return []


def _read_outside(rule: RegionRule, match: Match, circuit: Circuit) -> str:
    """Return which value that the rule keeps inside is read outside, empty when none is."""
    members = {call for step in rule.pattern if not step.is_outside for call in match.calls[step.name]}
    kept = {
        value
        for step in rule.pattern
        if not step.leaves and not step.is_outside
        for call in match.calls[step.name]
        for value in call.results
        if isinstance(value.type, TensorType)
    }
    for name, value in circuit.outputs.items():
        if value in kept:
            return f"value %{value.name} is read outside, by the output {name!r}"
    for call in circuit.calls:
        if call not in members:
            for arg in call.args:
                if arg in kept:
                    return f"value %{arg.name} is read outside, by {_spelled(call)}"
    return ""


class _Groups:
    """The calls of a circuit, joined into regions one after another; an edge is an order that must hold."""

    def __init__(self, circuit: Circuit) -> None:
        self.index = {call: number for number, call in enumerate(circuit.calls)}
        self.rule_of: dict[Call, str] = {}
        self._group: dict[Call, tuple[Call, ...]] = {call: (call,) for call in circuit.calls}
        self._next: dict[Call, list[Call]] = {call: [] for call in circuit.calls}
        readers: dict[Value, list[Call]] = {}
        for call in circuit.calls:
            for arg in call.args:
                if arg.call is not None:
                    self._next[arg.call].append(call)
            for port in call.node.writes:
                # whoever reads the version that this call replaces comes first
                for reader in readers.get(call.args[call.node.ports.index(port)], ()):
                    self._next[reader].append(call)
            for arg in call.args:
                if isinstance(arg.type, StateType):
                    readers.setdefault(arg, []).append(call)

    def following(self, call: Call) -> list[Call]:
        """Return the first calls of the groups that must run after the group of `call`."""
        own = self._group[call]
        heads = {self._group[after][0]: None for member in own for after in self._next[member]}
        return [head for head in heads if head is not own[0]]

    def why_not_convex(self, members: list[Call]) -> str:
        """Return the call through which a path leaves the members and comes back, empty when there is none."""
        inside = set(members)
        pending = [head for call in members for head in self.following(call) if head not in inside]
        seen = dict.fromkeys(pending)
        while pending:
            head = pending.pop()
            for after in self.following(head):
                if after in inside:
                    rule = self.rule_of.get(head)
                    return f"not convex: path through {f'the region {rule!r}' if rule else _spelled(head)}"
                if after not in seen:
                    seen[after] = None
                    pending.append(after)
        return ""

    def join(self, members: list[Call], rule: str) -> None:
        """Make one region of calls that are in none."""
        ordered = tuple(sorted(members, key=self.index.__getitem__))
        for call in ordered:
            self._group[call] = ordered
            self.rule_of[call] = rule

    def in_order(self) -> list[tuple[Call, ...]]:
        """Return the groups so that each comes after all it needs, else in the order of their last calls."""
        heads = [call for call in self.index if self._group[call][0] is call]
        waits = dict.fromkeys(heads, 0)
        for head in heads:
            for after in self.following(head):
                waits[after] += 1
        ready: list[tuple[int, int, Call]] = []

        def push(head: Call) -> None:
            heappush(ready, (self.index[self._group[head][-1]], self.index[head], head))

        for head in heads:
            if waits[head] == 0:
                push(head)
        ordered = []
        while ready:
            head = heappop(ready)[-1]
            ordered.append(self._group[head])
            for after in self.following(head):
                waits[after] -= 1
                if waits[after] == 0:
                    push(after)
        assert len(ordered) == len(heads), "regions wait for one another"
        return ordered


def _rebuilt(circuit: Circuit, groups: _Groups) -> Circuit:
    copy = Circuit(circuit.name)
    copied: dict[Value, Value] = {}
    for name, value in circuit.inputs.items():
        copied[value] = copy.input(name, value.type)  # type: ignore[arg-type]
    for name, value in circuit.weights.items():
        copied[value] = copy.weight(name, value.type)  # type: ignore[arg-type]
    for name, value in circuit.states.items():
        copied[value] = copy.state(name, value.type)  # type: ignore[arg-type]
    for members in groups.in_order():
        if members[0] not in groups.rule_of:
            (call,) = members
            copied.update(zip(call.results, copy.copy_call(call, *(copied[arg] for arg in call.args)), strict=True))
            continue
        body = _body(members, circuit, name=groups.rule_of[members[0]])
        region = Region.of(body.name, body)
        written = [body.state_outputs[name].name for name in region.writes]
        names = [*written, *body.outputs]
        results = copy.add_call(
            region,
            [copied[circuit.value(port)] for port in region.ports],
            names=names,
            block=_common_block(members),
        )
        copied.update(zip((circuit.value(name) for name in names), results, strict=True))
    for name, value in circuit.outputs.items():
        copy.output(name, copied[value])
    for name, value in circuit.state_outputs.items():
        copy.state_output(name, copied[value])
    return copy


def _body(members: tuple[Call, ...], circuit: Circuit, *, name: str) -> Circuit:
    """Return the circuit of some calls: what they read from outside, what they do, what is read outside."""
    body, inside = Circuit(name), set(members)
    made = {value for call in members for value in call.results}
    sources = list(dict.fromkeys(arg for call in members for arg in call.args if arg not in made))
    copied: dict[Value, Value] = {}
    for value in sources:
        declare = (
            body.state if isinstance(value.type, StateType) else body.weight if value.kind == "weight" else body.input
        )
        copied[value] = declare(value.name, value.type)  # type: ignore[arg-type]
    for call in members:
        copied.update(zip(call.results, body.copy_call(call, *(copied[arg] for arg in call.args)), strict=True))
    read = {*circuit.outputs.values(), *(arg for call in circuit.calls if call not in inside for arg in call.args)}
    for call in members:
        for value in call.results:
            if value in read and isinstance(value.type, TensorType):
                body.output(value.name, copied[value])
    last = {value: value for value in sources if isinstance(value.type, StateType)}
    for call in members:
        for position, port in enumerate(call.node.writes):
            before = call.args[call.node.ports.index(port)]
            origin = next(source for source, version in last.items() if version is before)
            last[origin] = call.results[position]
    for source, version in last.items():
        body.state_output(source.name, copied[version])
    return body


def _common_block(members: tuple[Call, ...]) -> str:
    first, *others = [call.block.split("/") for call in members]
    common = []
    for depth, part in enumerate(first):
        if any(len(block) <= depth or block[depth] != part for block in others):
            break
        common.append(part)
    return "/".join(common)


def _spelled(call: Call) -> str:
    return f"%{call.results[0].name} = {type(call.node).__name__}"
