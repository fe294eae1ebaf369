"""Fold weights: products of one input become one product, and kv_b is parted into what keys and values need.

before:  %a = Linear()(%x, %w1)   %b = Linear()(%x, %w2)
after:   weight %w1+1             %w1+1.out = Linear()(%x, %w1+1)
         %a = Slice(start=0, width=..)(%w1+1.out)   %b = Slice(start=.., width=..)(%w1+1.out)

before:  AbsorbQuery(v_head_dim=128)(%q, %kv_b)     AbsorbValue(.., qk_nope_head_dim=128)(%c, %kv_b)
after:   AbsorbQuery(v_head_dim=0)(%q, %kv_b.key_rows)   AbsorbValue(.., qk_nope_head_dim=0)(%c, %kv_b.value_rows)

Each row of a product is the sum it was; how a library orders that sum may depend on the weight's shape, so a fold keeps
values to a tolerance and not to the bit. What the derived weights are made of is recorded, see derived_weights.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from circuit import Call, Circuit, TensorType, Value
from compiler.derived_weights import DerivedWeight
from compiler.passes.record import RuleRecord
from nodes import AbsorbQuery, AbsorbValue, Linear, Slice

FOLD_PROJECTIONS = "fold_projections"
SPLIT_KV_B = "split_kv_b"


def fold_weights(
    circuit: Circuit, *, why_not: Mapping[str, str]
) -> tuple[Circuit, tuple[DerivedWeight, ...], tuple[RuleRecord, ...]]:
    """Return the circuit with folded weights, what they are made of, and what became of the two rules.

    `why_not` names the rules that the target does not want, each with its reason.
    """
    fold = _Fold(circuit)
    groups = {} if FOLD_PROJECTIONS in why_not else _shared_inputs(circuit)
    fold.add_projections(groups)
    if SPLIT_KV_B not in why_not:
        fold.add_kv_b()
    folded = fold.rebuilt()
    projections = tuple(fold.names[group[0]] for group in groups.values())
    records = (
        _record(FOLD_PROJECTIONS, projections, why_not, "no two products of one input and dtype over weights"),
        _record(SPLIT_KV_B, tuple(fold.split), why_not, "no AbsorbQuery or AbsorbValue over a weight with both halves"),
    )
    return folded, tuple(fold.derived.values()), records


def _record(rule: str, fired: tuple[str, ...], why_not: Mapping[str, str], otherwise: str) -> RuleRecord:
    return RuleRecord(rule, fired, () if fired else (why_not.get(rule, otherwise),))


def _shared_inputs(circuit: Circuit) -> dict[Value, list[Call]]:
    """Return the products over a weight by the value they read, where there are two or more."""
    groups: dict[Value, list[Call]] = {}
    for call in circuit.calls:
        if isinstance(call.node, Linear) and call.args[1].kind == "weight":
            groups.setdefault(call.args[0], []).append(call)
    return {value: calls for value, calls in groups.items() if len(calls) > 1 and _has_numbers(calls)}


def _has_numbers(calls: list[Call]) -> bool:
    return all(_tensor(call.args[1]).shape[0].is_Integer for call in calls)


@dataclass(slots=True)
class _Fold:
    """One fold of one circuit, gathered first and then done."""

    circuit: Circuit
    derived: dict[tuple[str, tuple[str, ...]], DerivedWeight] = field(default_factory=dict)
    types: dict[str, TensorType] = field(default_factory=dict)
    first: dict[Call, DerivedWeight] = field(default_factory=dict)
    slices: dict[Call, tuple[Call, Slice]] = field(default_factory=dict)
    names: dict[Call, str] = field(default_factory=dict)
    halves: dict[Call, DerivedWeight] = field(default_factory=dict)
    split: list[str] = field(default_factory=list)
    taken: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.taken = {value.name for value in self.circuit.values}

    def add_projections(self, groups: Mapping[Value, list[Call]]) -> None:
        for calls in groups.values():
            sources = tuple(call.args[1].name for call in calls)
            widths = [int(_tensor(call.args[1]).shape[0]) for call in calls]
            fan_in = _tensor(calls[0].args[1]).shape[1]
            weight = self._derive(
                "rows",
                sources,
                f"{sources[0]}+{len(calls) - 1}",
                _tensor(calls[0].args[1]).with_shape(sum(widths), fan_in),
            )
            self.first[calls[0]] = weight
            self.names[calls[0]] = self._free(f"{calls[0].results[0].name}+{len(calls) - 1}")
            start = 0
            for call, width in zip(calls, widths, strict=True):
                self.slices[call] = (calls[0], Slice(start=start, width=width))
                start += width

    def add_kv_b(self) -> None:
        for call in self.circuit.calls:
            if not isinstance(call.node, AbsorbQuery | AbsorbValue) or call.args[1].kind != "weight":
                continue
            weight = _tensor(call.args[1])
            if isinstance(call.node, AbsorbQuery):
                heads, key_dim = _tensor(call.args[0]).shape[1:]
                value_dim = call.node.v_head_dim
                recipe, kept, left = "key_rows", key_dim, value_dim
            else:
                heads, key_dim = _tensor(call.args[0]).shape[1], call.node.qk_nope_head_dim
                value_dim = call.node.v_head_dim
                recipe, kept, left = "value_rows", value_dim, key_dim
            if not left or not all(getattr(dim, "is_Integer", True) for dim in (heads, key_dim)):
                continue
            name = call.args[1].name
            self.halves[call] = self._derive(
                recipe,
                (name,),
                f"{name}.{recipe}",
                weight.with_shape(heads * kept, weight.shape[1]),
                heads=(int(heads), int(key_dim), int(value_dim)),
            )
            self.split.append(call.results[0].name)

    def rebuilt(self) -> Circuit:
        copy, copied = Circuit(self.circuit.name), dict[Value, Value]()
        for name, value in self.circuit.inputs.items():
            copied[value] = copy.input(name, _tensor(value))
        replaced = {call.args[1] for call in (*self.slices, *self.halves)}
        still_read = {arg for call in self.circuit.calls if not self._is_changed(call) for arg in call.args}
        still_read |= {call.args[0] for call in self.circuit.calls} | {*self.circuit.outputs.values()}
        for name, value in self.circuit.weights.items():
            if value not in replaced or value in still_read:
                copied[value] = copy.weight(name, _tensor(value))
        weights = {weight.name: copy.weight(weight.name, self.types[weight.name]) for weight in self.derived.values()}
        for name, value in self.circuit.states.items():
            copied[value] = copy.state(name, value.type)  # type: ignore[arg-type]
        products: dict[Call, Value] = {}
        for call in self.circuit.calls:
            names = [value.name for value in call.results]
            if call in self.first:
                args = (copied[call.args[0]], weights[self.first[call].name])
                (products[call],) = copy.add_call(call.node, args, names=[self.names[call]], block=call.block)
            if call in self.slices:
                first, columns = self.slices[call]
                results = copy.add_call(columns, [products[first]], names=names, block=call.block)
            elif call in self.halves:
                weight = self.halves[call]
                half = {"v_head_dim" if weight.recipe == "key_rows" else "qk_nope_head_dim": 0}
                node = call.node.model_copy(update=half)
                results = copy.add_call(
                    node, [copied[call.args[0]], weights[weight.name]], names=names, block=call.block
                )
            else:
                results = copy.copy_call(call, *(copied[arg] for arg in call.args))
            copied.update(zip(call.results, results, strict=True))
        for name, value in self.circuit.outputs.items():
            copy.output(name, copied[value])
        for name, value in self.circuit.state_outputs.items():
            copy.state_output(name, copied[value])
        return copy

    def _is_changed(self, call: Call) -> bool:
        return call in self.slices or call in self.halves

    def _derive(
        self,
        recipe: str,
        sources: tuple[str, ...],
        name: str,
        type: TensorType,
        *,
        heads: tuple[int, int, int] = (1, 0, 0),
    ) -> DerivedWeight:
        """Return the one derived weight of these sources: the drafts of a chain share it."""
        key = (recipe, sources)
        if key not in self.derived:
            weight = DerivedWeight(
                name=self._free(name),
                recipe=recipe,  # type: ignore[arg-type]
                sources=sources,
                num_heads=heads[0],
                key_dim=heads[1],
                value_dim=heads[2],
            )
            self.derived[key] = weight
            self.types[weight.name] = type
        return self.derived[key]

    def _free(self, name: str) -> str:
        number, free = 2, name
        while free in self.taken:
            free = f"{name}.{number}"
            number += 1
        self.taken.add(free)
        return free


def _tensor(value: Value) -> TensorType:
    assert isinstance(value.type, TensorType)
    return value.type
