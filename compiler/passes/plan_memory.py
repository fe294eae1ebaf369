"""Plan memory: one arena for all intermediate values, each at an offset that nothing alive shares; states in place.

before:  %a = Linear()(%x, %w)   %b = Linear()(%a, %v)   %c = Linear()(%b, %u)   output y = %c
after:   %a at 0, %b at 512, %c at 0: %a is dead when %c is made
"""

from collections.abc import Mapping
from dataclasses import dataclass

from circuit import Circuit, StateType, TensorType, Value

ALIGNMENT = 64  # bytes: a cache line, and more than any vector load asks for


@dataclass(frozen=True, slots=True)
class Buffer:
    """Where a value lies in the arena, in bytes, and the calls (by index) between which it is alive, both included."""

    offset: int
    num_bytes: int
    first_call: int
    last_call: int


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Buffers by value, the arena's size in bytes, and for each state version the declared state whose memory it is."""

    buffers: dict[Value, Buffer]
    arena_bytes: int
    in_place: dict[Value, Value]


def plan_memory(circuit: Circuit) -> MemoryPlan:
    """Lay out every result of a circuit whose dims are bound; `TypeRuleError` names a dim that is not.

    Outputs stay alive to the end.
    """
    alive = _lifetimes(circuit)
    sizes = {value.name: _num_bytes(value) for value in alive}
    offsets, arena = place_by_lifetime(sizes, {value.name: alive[value] for value in alive})
    buffers = {value: Buffer(offsets[value.name], sizes[value.name], *alive[value]) for value in alive}
    return MemoryPlan(buffers, arena, _in_place(circuit))


def place_by_lifetime(sizes: Mapping[str, int], alive: Mapping[str, tuple[int, int]]) -> tuple[dict[str, int], int]:
    """Return the offset of each buffer and the arena's size, in bytes; `alive` holds first and last use, both included.

    Largest first, each at the lowest offset where it meets nothing alive at the same time: the usual greedy layout,
    within a few percent of the largest set of values alive at once for circuits of this shape.
    """
    placed: dict[str, Buffer] = {}
    for name in sorted(sizes, key=lambda name: (-sizes[name], alive[name][0], name)):
        first, last = alive[name]
        others = [held for held in placed.values() if held.first_call <= last and first <= held.last_call]
        placed[name] = Buffer(_lowest_gap(others, sizes[name]), sizes[name], first, last)
    arena = max((buffer.offset + buffer.num_bytes for buffer in placed.values()), default=0)
    return {name: buffer.offset for name, buffer in placed.items()}, arena


def _lifetimes(circuit: Circuit) -> dict[Value, tuple[int, int]]:
    alive: dict[Value, tuple[int, int]] = {}
    for index, call in enumerate(circuit.calls):
        for value in call.results:
            if isinstance(value.type, TensorType):
                alive[value] = (index, index)
        for arg in call.args:
            if arg in alive:
                alive[arg] = (alive[arg][0], index)
    for value in circuit.outputs.values():
        if value in alive:
            alive[value] = (alive[value][0], len(circuit.calls))
    return alive


def _lowest_gap(others: list[Buffer], size: int) -> int:
    offset = 0
    for held in sorted(others, key=lambda buffer: buffer.offset):
        if offset + size <= held.offset:
            break
        offset = max(offset, -(-(held.offset + held.num_bytes) // ALIGNMENT) * ALIGNMENT)
    return offset


def _in_place(circuit: Circuit) -> dict[Value, Value]:
    """Each state version lies where the version it replaces did: a verified circuit reads none after its successor."""
    owner: dict[Value, Value] = {value: value for value in circuit.states.values()}
    for call in circuit.calls:
        for position, port in enumerate(call.node.writes):
            owner[call.results[position]] = owner[call.args[call.node.ports.index(port)]]
    return {value: state for value, state in owner.items() if isinstance(value.type, StateType) and value is not state}


def _num_bytes(value: Value) -> int:
    assert isinstance(value.type, TensorType)
    return value.type.num_bytes()
