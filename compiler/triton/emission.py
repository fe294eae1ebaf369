"""Emission: what a lowering is handed to turn one region into launches, and the launch plan that comes of all of them.

    @lowers_region("o_proj", O_PROJ, backend=BACKEND, numerics=SUMS)
    def lower_o_proj(emit: RegionEmission) -> None:
        product, residual = emit.call("product"), emit.call("residual")
        emit.launch("o_proj", "gemv.gemv_residual", grid=(..,), arguments={"out_ptr": emit.view(..), ..}, ..)

A value has a view: sources and results of the region those of the call around it, an inner value memory of its own in
the arena, made when first asked for. Slices, heads and what else moves nothing are views into what they show.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod

import torch

from circuit import Call, Circuit, LoweringError, StateType, TensorType, Value
from compiler.derived_weights import DerivedWeight
from compiler.pattern import Matcher
from compiler.region import Region
from compiler.registry import RegionRule, rule_of
from compiler.triton.arena import lay_out
from compiler.triton.launch import Argument, Buffer, BufferKind, Constant, Launch, View, contiguous
from nodes import Slice, SplitHeads

BACKEND = "triton"


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """The launches of one program in order, and the memory they work on.

    inputs, weights, states, outputs: views by the circuit's names. offsets: of arena buffers, in bytes.
    calls: per launch the index of the circuit's call that it belongs to. steps: per launch the draft that it is part
        of, from 0. results: by call, where what it made lies until a later launch takes the place.
    derived: weights made of a checkpoint's.
    """

    name: str
    launches: tuple[Launch, ...]
    calls: tuple[int, ...]
    steps: tuple[int, ...]
    results: Mapping[int, Mapping[str, View]]
    buffers: Mapping[str, Buffer]
    offsets: Mapping[str, int]
    arena_bytes: int
    inputs: Mapping[str, View]
    weights: Mapping[str, View]
    states: Mapping[str, View]
    outputs: Mapping[str, View]
    derived: tuple[DerivedWeight, ...] = ()

    @property
    def num_steps(self) -> int:
        """Drafts of the chain; 1 for what is no chain."""
        return max(self.steps, default=0) + 1


@dataclass(slots=True)
class _Emitted:
    """What all regions of a program add to."""

    buffers: dict[str, Buffer] = field(default_factory=dict)
    launches: list[Launch] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)
    views: dict[Value, View] = field(default_factory=dict)

    def add(self, name: str, kind: BufferKind, dtype: torch.dtype, shape: tuple[int, ...]) -> View:
        if name in self.buffers:
            raise LoweringError(f"buffer {name!r}: made twice; a lowering names each scratch once")
        self.buffers[name] = Buffer(name, kind, dtype, prod(shape))
        return contiguous(name, dtype, shape)


class RegionEmission:
    """One region on its way to launches; see the module."""

    def __init__(self, index: int, call: Call, rule: RegionRule, emitted: _Emitted) -> None:
        region = call.node
        assert isinstance(region, Region)
        self.rule = rule
        self.circuit = region.bound_circuit(*(arg.type for arg in call.args))
        self._index = index
        self._emitted = emitted
        self._label = call.results[0].name
        circuit = self.circuit
        sources = (*circuit.inputs.values(), *circuit.weights.values(), *circuit.states.values())
        # a region's circuit declares its sources in port order, states that are written first among the results
        written = [circuit.state_outputs[name] for name in region.writes]
        results = (*written, *circuit.outputs.values())
        self._views: dict[Value, View] = {}
        for inner, outer in zip(sources, call.args, strict=True):
            self._views[inner] = emitted.views[outer]
        for position, port in enumerate(region.writes):
            emitted.views[call.results[position]] = self._views[circuit.states[port]]
        self._outer = dict(zip(results, call.results, strict=True))
        self._threads = _state_owners(circuit)
        pattern = [step for step in rule.pattern if not step.is_outside]
        match = next(Matcher(circuit, pattern).matches(), None)
        if match is None:
            raise LoweringError(f"region {rule.name!r}: its own pattern does not match its body; report this")
        self._steps = match.calls

    def calls(self, step: str) -> tuple[Call, ...]:
        """Return the calls of a step of the rule's pattern; empty where an optional one is absent."""
        return self._steps[step]

    def call(self, step: str) -> Call:
        """Return the one call of a step that must be there."""
        (call,) = self._steps[step]
        return call

    def type(self, value: Value) -> TensorType:
        """Return a value's type with its sizes; of a state that of its tensor."""
        return value.type.tensor if isinstance(value.type, StateType) else value.type

    def sizes(self, value: Value) -> tuple[int, ...]:
        """Return a value's sizes."""
        return tuple(int(size) for size in self.type(value).sizes())

    def view(self, value: Value) -> View:
        """Return where a value lies; an inner one gets memory when it is first asked for."""
        value = self._threads.get(value, value)
        if value not in self._views:
            self._views[value] = self._shown(value) or self._placed(value)
            outer = self._outer.get(value)
            if outer is not None:
                self._emitted.views[outer] = self._views[value]
        return self._views[value]

    def scratch(self, name: str, dtype: torch.dtype, *shape: int) -> View:
        """Return memory of the region's own in the arena; it holds anything at first."""
        return self._emitted.add(f"{self._label}:{name}", "arena", dtype, shape)

    def counter(self, name: str, num_elements: int = 1) -> View:
        """Return int32 counters that are zero before the run; whoever counts up last sets them to zero again."""
        return self._emitted.add(f"{self._label}:{name}", "counter", torch.int32, (num_elements,))

    def launch(
        self,
        name: str,
        kernel: str,
        *,
        grid: tuple[int, ...],
        arguments: Mapping[str, Argument],
        constants: Mapping[str, Constant],
        num_warps: int = 4,
        num_stages: int = 1,
    ) -> None:
        """Add a launch; `name` is one of the rule's launches, in their order."""
        expected = self.rule.launches[self._num_made() :][:1]
        if expected != (name,):
            raise LoweringError(f"region {self.rule.name!r}: expected launch {expected}, got {name!r}")
        self._emitted.launches.append(
            Launch(name, kernel, grid, dict(arguments), dict(constants), num_warps, num_stages)
        )
        self._emitted.calls.append(self._index)

    def finish(self) -> None:
        """Hold that every launch was made, and give views to results that no launch asked for."""
        if self._num_made() != len(self.rule.launches):
            raise LoweringError(
                f"region {self.rule.name!r}: expected launches {self.rule.launches}, got {self._num_made()} of them"
            )
        for inner in self._outer:
            self.view(inner)

    def _num_made(self) -> int:
        return self._emitted.calls.count(self._index)

    def _shown(self, value: Value) -> View | None:
        """The view that a call makes which moves nothing, None for any other."""
        if value.call is None:
            return None
        match value.call.node:
            case Slice(start=start, width=width):
                return self.view(value.call.args[0]).columns(start, width)
            case SplitHeads(num_heads=heads):
                return self.view(value.call.args[0]).split_last(heads)
        return None

    def _placed(self, value: Value) -> View:
        outer = self._outer.get(value)
        # the runner reads an output where it made room for it
        if outer is not None and outer in self._emitted.views:
            return self._emitted.views[outer]
        name = outer.name if outer is not None else f"{self._label}:{value.name}"
        type_ = self.type(value)
        return self._emitted.add(name, "arena", type_.dtype, self.sizes(value))


def emit(circuit: Circuit, *, name: str, derived: tuple[DerivedWeight, ...] = ()) -> LaunchPlan:
    """Return the launches of a fused circuit whose dims are bound.

    Raises LoweringError for a call that no rule took, and for a rule that is planned and has no kernel yet.
    """
    emitted = _Emitted()
    kinds: tuple[tuple[BufferKind, Mapping[str, Value]], ...] = (
        ("input", circuit.inputs),
        ("weight", circuit.weights),
        ("state", circuit.states),
    )
    declared: dict[BufferKind, dict[str, View]] = {}
    for kind, values in kinds:
        declared[kind] = {
            name: emitted.views.setdefault(value, _declare(emitted, kind, name, value))
            for name, value in values.items()
        }
    for name_, value in circuit.outputs.items():
        if value.kind == "result" and value not in emitted.views:
            emitted.views[value] = _declare(emitted, "output", f"output:{name_}", value)
    for index, call in enumerate(circuit.calls):
        _emit_call(index, call, emitted)
    outputs = {name_: _kept(emitted, f"output:{name_}", value) for name_, value in circuit.outputs.items()}
    offsets, arena_bytes = lay_out(emitted.buffers, emitted.launches)
    return LaunchPlan(
        name=name,
        launches=tuple(emitted.launches),
        calls=tuple(emitted.calls),
        steps=tuple(_step_of(circuit.calls[index]) for index in emitted.calls),
        results={
            index: {value.name: emitted.views[value] for value in call.results}
            for index, call in enumerate(circuit.calls)
        },
        buffers=emitted.buffers,
        offsets=offsets,
        arena_bytes=arena_bytes,
        inputs=declared["input"],
        weights=declared["weight"],
        states=declared["state"],
        outputs=outputs,
        derived=derived,
    )


def _emit_call(index: int, call: Call, emitted: _Emitted) -> None:
    rule = rule_of(call.node, BACKEND) if isinstance(call.node, Region) else None
    if rule is None:
        raise LoweringError(f"{call}: no rule of {BACKEND} took it; see the plan's unfired rules")
    if rule.is_planned:
        raise LoweringError(f"region {rule.name!r} on {BACKEND}: planned, it has no kernel yet; choose another backend")
    region = RegionEmission(index, call, rule, emitted)
    rule.function(region)
    region.finish()


def _step_of(call: Call) -> int:
    """A chain puts the blocks of draft i under `draft i`."""
    word, _, number = call.block.partition("/")[0].partition(" ")
    return int(number) - 1 if word == "draft" else 0


def _declare(emitted: _Emitted, kind: BufferKind, name: str, value: Value) -> View:
    held = value.type.tensor if isinstance(value.type, StateType) else value.type
    return emitted.add(name, kind, held.dtype, tuple(int(size) for size in held.sizes()))


def _kept(emitted: _Emitted, declared: str, value: Value) -> View:
    """Return where an output lies; what shows a part of another value lies there, and that outlives the last launch."""
    view = emitted.views[value]
    held = emitted.buffers[view.buffer]
    if held.kind == "arena":
        emitted.buffers[held.name] = replace(held, kind="output")
    if held.name != declared:
        emitted.buffers.pop(declared, None)
    return view


def _state_owners(circuit: Circuit) -> dict[Value, Value]:
    """Each state version lies where the version it replaces did."""
    owner: dict[Value, Value] = {value: value for value in circuit.states.values()}
    for call in circuit.calls:
        for position, port in enumerate(call.node.writes):
            owner[call.results[position]] = owner[call.args[call.node.ports.index(port)]]
    return owner
