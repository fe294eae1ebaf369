"""Patterns: which calls a fusion rule takes, as node types and the edges between them.

    Step("normed", RmsNorm), Step("logits", Linear, {"x": "normed"}), Step("draft", Argmax, {"logits": "logits"})

matches a norm, a product that reads it, and the choice that reads the product. What an edge is compared with is the
name of a step, `step.result` for another than its first result, or any other word: a variable, which stands for one
value wherever it is written. A step that is absent acts as a variable too.
"""

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from circuit import Call, Circuit, Node, Value

Edge = str | tuple[str, ...]
_NO_EDGES: Mapping[str, Edge] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Step:
    """One call of a pattern.

    name: what later steps call it.
    edges: by port, what it must read; of several words any one will do. Ports that are not named read anything.
    leaves: whether its results may be read outside the region; states that it writes always may.
    at_least, at_most: how many calls there may be, None for any number. Of a step that takes several, each fits alone.
    is_outside: it must be there, and does not become part of the region; ties parts together that share no value.
    """

    name: str
    node_type: type[Node]
    edges: Mapping[str, Edge] = field(default_factory=lambda: _NO_EDGES)
    leaves: bool = False
    at_least: int = 1
    at_most: int | None = 1
    is_outside: bool = False

    def __post_init__(self) -> None:
        if stray := [port for port in self.edges if port not in self.node_type.ports]:
            raise ValueError(
                f"step {self.name!r}: {self.node_type.__name__} has no port {stray[0]!r}; its ports are "
                f"{', '.join(self.node_type.ports)}"
            )


@dataclass(frozen=True, slots=True)
class Match:
    """The calls that a pattern takes, by step, and the values of its variables."""

    calls: Mapping[str, tuple[Call, ...]] = field(default_factory=dict)
    variables: Mapping[str, Value] = field(default_factory=dict)

    def used(self) -> set[Call]:
        """Return all calls of the match, those outside the region too."""
        return {call for calls in self.calls.values() for call in calls}


class Matcher:
    """Finds a pattern's matches in one circuit, earliest calls first; knows how far the best attempt came.

    Calls of `taken` are in a region already: they may stand outside a match, never in it.
    """

    def __init__(self, circuit: Circuit, steps: Sequence[Step], *, taken: Container[Call] = ()) -> None:
        self._steps = tuple(steps)
        self._taken = taken
        self._by_type: dict[type[Node], list[Call]] = {}
        self._readers: dict[Value, dict[Call, int]] = {}
        for index, call in enumerate(circuit.calls):
            self._by_type.setdefault(type(call.node), []).append(call)
            for arg in call.args:
                self._readers.setdefault(arg, {})[call] = index
        self._farthest = 0
        self._blocked: dict[int, dict[Call, None]] = {}

    def matches(self) -> Iterator[Match]:
        """Yield every match."""
        yield from self._extend(Match(), 0)

    def blocked(self) -> tuple[Call, ...]:
        """Return the taken calls that would have fitted where the best attempt ended; after `matches` was read."""
        return tuple(self._blocked.get(self._farthest, ()))

    def absent(self) -> str:
        """Return which node types the circuit lacks, empty when it has all."""
        lacking = sorted({step.node_type.__name__ for step in self._steps if self._is_absent(step)})
        return f"no such chain in this circuit: it has no {' and no '.join(lacking)}" if lacking else ""

    def stuck(self) -> str:
        """Return the step at which the best attempt ended, in words; after `matches` was read."""
        stuck = self._steps[self._farthest]
        edges = ", ".join(f"{port} = {_words(edge)}" for port, edge in stuck.edges.items())
        return f"no such chain in this circuit: no {stuck.node_type.__name__} with {edges or 'a free place'}"

    def _is_absent(self, step: Step) -> bool:
        return step.at_least > 0 and step.node_type not in self._by_type

    def _extend(self, match: Match, index: int) -> Iterator[Match]:
        if index == len(self._steps):
            yield match
            return
        self._farthest = max(self._farthest, index)
        step = self._steps[index]
        used = match.used()
        free = [call for call in self._candidates(step, match) if call not in used]
        if step.at_most == 1:
            for call in free:
                variables = self._bind(step, call, match)
                if variables is not None:
                    yield from self._extend(_with(match, step, (call,), variables), index + 1)
        else:
            yield from self._extend_by_several(match, index, free)
        if step.at_least == 0:
            yield from self._extend(_with(match, step, (), match.variables), index + 1)

    def _extend_by_several(self, match: Match, index: int, free: list[Call]) -> Iterator[Match]:
        step = self._steps[index]
        # words that the earlier steps leave open are bound by the first call, and hold for all
        for first in range(len(free)):
            calls: list[Call] = []
            variables = match.variables
            for call in free[first:]:
                bound = self._bind(step, call, Match(match.calls, variables))
                if bound is None or len(calls) == step.at_most:
                    continue
                calls.append(call)
                variables = bound
            if calls and len(calls) >= step.at_least:
                yield from self._extend(_with(match, step, tuple(calls), variables), index + 1)
                return

    def _candidates(self, step: Step, match: Match) -> list[Call]:
        """Return the calls that may be `step`: who reads a value that one of its edges knows already, else all."""
        for edge in step.edges.values():
            words = (edge,) if isinstance(edge, str) else edge
            known = [
                value for word in words if match.calls.get(word.partition(".")[0]) for value in _results(match, word)
            ]
            if not known and words[0] in match.variables:
                known = [match.variables[words[0]]]
            if known:
                found = {call: index for value in known for call, index in self._readers.get(value, {}).items()}
                return [call for call in sorted(found, key=found.__getitem__) if type(call.node) is step.node_type]
        return self._by_type.get(step.node_type, [])

    def _bind(self, step: Step, call: Call, match: Match) -> Mapping[str, Value] | None:
        """Return the variables once `call` is `step`, None where an edge is another or the call is taken."""
        variables = dict(match.variables)
        for port, edge in step.edges.items():
            arg = call.args[call.node.ports.index(port)]
            words = (edge,) if isinstance(edge, str) else edge
            present = [word for word in words if match.calls.get(word.partition(".")[0])]
            if present:
                if not any(arg in _results(match, word) for word in present):
                    return None
            elif variables.setdefault(words[0], arg) is not arg:
                return None
        if call in self._taken and not step.is_outside:
            self._blocked.setdefault(self._steps.index(step), {})[call] = None
            return None
        return variables


def _results(match: Match, word: str) -> list[Value]:
    name, _, result = word.partition(".")
    return [call.results[call.node.results.index(result) if result else 0] for call in match.calls[name]]


def _with(match: Match, step: Step, calls: tuple[Call, ...], variables: Mapping[str, Value]) -> Match:
    return Match({**match.calls, step.name: calls}, variables)


def _words(edge: Edge) -> str:
    return edge if isinstance(edge, str) else " or ".join(edge)
