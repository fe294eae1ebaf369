"""The cost of launches: node calls that run as one read and write less than they do apart.

Bytes and operations come from the nodes' `cost` and from nowhere else. Of a group of calls, what one makes and only
another of the group reads never leaves the chip, and what several of them read is read once; both are taken off.

before:  Linear reads %x and %w, writes %logits    Argmax reads %logits, writes %draft
grouped: reads %x and %w, writes %draft
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from circuit import Call, Circuit, Cost, StateType, TensorType, Value


@dataclass(frozen=True, slots=True)
class LaunchCost:
    """One launch: its calls by node type and first result, what it costs, and how it runs.

    weights: the one that is read most first. weight_bytes and state_bytes are the parts of the bytes read that are
    weights and caches. element_bytes: of an element of the first weight, else of the cache, else 0. numerics and kernel
    are what the backend says, `planned` where a launch is designed and not built.
    """

    name: str
    node_types: tuple[str, ...]
    values: tuple[str, ...]
    weights: tuple[str, ...]
    cost: Cost
    weight_bytes: int
    state_bytes: int
    element_bytes: int
    numerics: str
    kernel: str

    @property
    def bytes(self) -> int:
        """Bytes read and written together."""
        return self.cost.bytes_read + self.cost.bytes_written


def total_cost(launches: Iterable[LaunchCost]) -> Cost:
    """Return what launches cost together."""
    return sum((launch.cost for launch in launches), start=Cost())


def launch_of_call(circuit: Circuit, call: Call, *, numerics: str, kernel: str) -> LaunchCost:
    """Return a call that runs by itself, at its node's own cost."""
    return _launch(circuit, [call], name=call.results[0].name, numerics=numerics, kernel=kernel, cost=_cost(call))


def group_launches(
    circuit: Circuit, launch_of: Mapping[str, str], *, numerics: str, kernel: str
) -> tuple[LaunchCost, ...]:
    """Return the launches of a circuit whose dims are bound, in the order of their first calls.

    `launch_of` names the launch of each call, by the call's first result; views need none. Raises ValueError for a call
    without one and for a launch that would have to wait for a later one.
    """
    groups: dict[str, list[Call]] = {}
    for call in circuit.calls:
        name = call.results[0].name
        if name not in launch_of and _cost(call) == Cost():
            continue  # a view runs nothing: its readers are seen to read what it shows
        if name not in launch_of:
            raise ValueError(f"launches of {circuit.name!r}: no launch for {call}; add {name!r} to one")
        groups.setdefault(launch_of[name], []).append(call)
    order = [name for name in dict.fromkeys(launch_of.values()) if name in groups]
    _check_order(circuit, groups, order)
    reach = _Reach(circuit)
    return tuple(
        _launch(circuit, groups[name], name=name, numerics=numerics, kernel=kernel, cost=reach.fused(groups[name]))
        for name in order
    )


def split_launch(
    circuit: Circuit, launches: Sequence[LaunchCost], *, value: str, weight: str, name: str
) -> tuple[LaunchCost, ...]:
    """Return the launches with what one call does with one of its weights taken out, as a launch `name` before its own.

    For a node that runs as two launches: the call that makes `value` gives up the share of its weights' bytes and of
    its operations that `weight` has of its weights, and what it reads beside weights. What the two hand each other is
    not counted: the node states no cost for it.
    """
    call = next((call for call in circuit.calls if call.results[0].name == value), None)
    at = next((index for index, launch in enumerate(launches) if value in launch.values), None)
    if call is None or at is None:
        return tuple(launches)
    own = {arg: _num_bytes(arg) for arg in call.args if arg.kind == "weight"}
    taken = circuit.weights[weight]
    share = own[taken] / sum(own.values())
    cost, rest = _cost(call), _rest(call)
    weight_bytes = round(rest * share)
    moved = Cost(round(cost.flops * share), weight_bytes + cost.bytes_read - rest, 0)
    launch = launches[at]
    first = replace(
        launch,
        name=name,
        node_types=(type(call.node).__name__,),
        values=(value,),
        weights=(weight,),
        cost=moved,
        weight_bytes=weight_bytes,
        state_bytes=0,
    )
    second = replace(
        launch,
        weights=tuple(held for held in launch.weights if held != weight),
        cost=Cost(
            launch.cost.flops - moved.flops,
            max(0, launch.cost.bytes_read - moved.bytes_read),
            launch.cost.bytes_written,
        ),
        weight_bytes=launch.weight_bytes - weight_bytes,
    )
    return (*launches[:at], first, second, *launches[at + 1 :])


class _Reach:
    """Who reads which value, with views seen through: a call that costs nothing passes its input on."""

    def __init__(self, circuit: Circuit) -> None:
        self._producer = {value: call for call in circuit.calls for value in call.results}
        self._readers: dict[Value, set[int]] = {}
        for index, call in enumerate(circuit.calls):
            if _cost(call) != Cost():
                for arg in call.args:
                    self._readers.setdefault(self.root(arg), set()).add(index)
        self._outputs = {self.root(value) for value in circuit.outputs.values()}
        self._index = {id(call): index for index, call in enumerate(circuit.calls)}

    def root(self, value: Value) -> Value:
        """The value whose memory `value` is."""
        while value in self._producer and _cost(self._producer[value]) == Cost():
            value = self._producer[value].args[0]
        return value

    def fused(self, calls: Sequence[Call]) -> Cost:
        """Return what `calls` cost as one launch."""
        inside = {self._index[id(call)] for call in calls}
        made = {value for call in calls if _cost(call) != Cost() for value in call.results}
        read_once: set[Value] = set()
        total = Cost()
        for call in calls:
            cost = _cost(call)
            if cost == Cost():
                continue
            spared_reads = 0
            for arg in dict.fromkeys(call.args):
                root = self.root(arg)
                # a weight, an input or a state may be read in part, and only the node's cost says how much
                if isinstance(arg.type, StateType) or root not in self._producer:
                    continue
                if root in made or root in read_once:
                    spared_reads += _num_bytes(arg)
                read_once.add(root)
            spared_writes = sum(
                _num_bytes(value)
                for value in call.results
                if isinstance(value.type, TensorType)
                and value not in self._outputs
                and self._readers.get(value, set()) <= inside
            )
            total += Cost(
                cost.flops,
                max(0, cost.bytes_read - spared_reads),
                max(0, cost.bytes_written - spared_writes),
                cost.bytes_sent,
            )
        return total


def _launch(
    circuit: Circuit, calls: Sequence[Call], *, name: str, numerics: str, kernel: str, cost: Cost
) -> LaunchCost:
    weights = {value: name for name, value in circuit.weights.items()}
    # by what is read of each: a table that gives one row counts for that row
    read = {arg: min(_num_bytes(arg), _rest(call)) for call in calls for arg in call.args if arg in weights}
    held = sorted(read, key=lambda value: -read[value])
    return LaunchCost(
        name=name,
        node_types=tuple(type(call.node).__name__ for call in calls),
        values=tuple(call.results[0].name for call in calls),
        weights=tuple(weights[value] for value in held),
        cost=cost,
        weight_bytes=sum(_rest(call) for call in calls if not call.node.reads and weights.keys() & {*call.args}),
        state_bytes=sum(_rest(call) for call in calls if call.node.reads),
        element_bytes=_element_bytes(calls, held),
        numerics=numerics,
        kernel=kernel,
    )


def _element_bytes(calls: Sequence[Call], weights: Sequence[Value]) -> int:
    if weights:
        return _tensor(weights[0]).dtype.itemsize
    states = [arg.type for call in calls for arg in call.args if isinstance(arg.type, StateType)]
    return states[0].tensor.dtype.itemsize if states else 0


def _rest(call: Call) -> int:
    """What a call reads beside the values that other calls made: its weights' part, or its states'."""
    others = sum(
        _num_bytes(arg) for arg in dict.fromkeys(call.args) if isinstance(arg.type, TensorType) and arg.kind != "weight"
    )
    return max(0, _cost(call).bytes_read - others)


def _check_order(circuit: Circuit, groups: Mapping[str, Sequence[Call]], order: Sequence[str]) -> None:
    place = {value: order.index(name) for name, calls in groups.items() for call in calls for value in call.results}
    for name, calls in groups.items():
        for call in calls:
            for arg in call.args:
                if arg in place and place[arg] > order.index(name):
                    raise ValueError(
                        f"launches of {circuit.name!r}: launch {name!r} reads {arg.name!r} of the later launch "
                        f"{order[place[arg]]!r}; move one of them"
                    )


def _cost(call: Call) -> Cost:
    return call.node.cost(*(arg.type for arg in call.args))


def _num_bytes(value: Value) -> int:
    return _tensor(value).num_bytes()


def _tensor(value: Value) -> TensorType:
    assert isinstance(value.type, TensorType)
    return value.type
