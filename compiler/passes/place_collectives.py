"""Place collectives: weights become this rank's shares, and what several ranks must know is exchanged.

A weight's split says which part of it this rank has. From there the pass goes call by call: a value is whole on every
rank, or this rank has a range of its heads or columns, or a part of its sum. A part of a sum is added up at once,
before anything else is added to it; a range goes on as far as the nodes can work on it, and is gathered where one
cannot. The value that is whole again keeps its name.

before:  %attn_out = Linear()(%heads, %o_proj)            %x1 = Add()(%x, %attn_out)
after:   %attn_out.part = Linear()(%heads, %o_proj)       o_proj: this rank's columns
         %attn_out = AllReduce(axis="tp", num_ranks=2)(%attn_out.part)   %x1 = Add()(%x, %attn_out)
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from circuit import Axis, Call, Circuit, LoweringError, Node, StateType, TensorType, Value
from nodes import (
    AbsorbQuery,
    AbsorbValue,
    AllGather,
    AllReduce,
    Argmax,
    ArgmaxExchange,
    Linear,
    LocalArgmax,
    LocalExperts,
    RoutedExperts,
    SparseMlaAttention,
    SplitHeads,
)


@dataclass(frozen=True, slots=True)
class Split:
    """This rank's part of a tensor: entries `start` to `stop` of the `size` along `dim`; an axis has `num_ranks`."""

    axis: Axis
    num_ranks: int
    dim: int
    start: int
    stop: int
    size: int

    @property
    def width(self) -> int:
        """Entries that this rank has."""
        return self.stop - self.start

    def along(self, dim: int, *, entry: int = 1, of: int = 1) -> "Split | None":
        """The same part of another tensor, along `dim`, where `of` entries here are `entry` there; None if uneven."""
        numbers = (self.start, self.stop, self.size)
        if any(number * entry % of for number in numbers):
            return None
        return Split(self.axis, self.num_ranks, dim, *(number * entry // of for number in numbers))


def place_collectives(circuit: Circuit, splits: Mapping[str, Split]) -> Circuit:
    """Return the circuit of this rank, with `splits` of its weights by name; without any, the circuit itself.

    Every rank's circuit has the same collectives in the same order. Raises LoweringError for a split that no node of
    the circuit can work on.
    """
    used = {name: splits[name] for name in circuit.weights if name in splits and splits[name].num_ranks > 1}
    return _Placer(circuit, used).placed() if used else circuit


def collectives(circuit: Circuit) -> tuple[Call, ...]:
    """Return the calls that exchange with other ranks, in order, those inside regions among them."""
    found: list[Call] = []
    for call in circuit.calls:
        inner = call.node.inner_circuit()
        if inner is not None:
            found += collectives(inner)
        # one rank has nobody to exchange with
        elif call.node.exchange is not None and call.node.attributes()["num_ranks"] > 1:
            found.append(call)
    return tuple(found)


class _Placer:
    """One pass over one circuit; `split` holds what is not whole, by value of the new circuit."""

    def __init__(self, circuit: Circuit, splits: Mapping[str, Split]) -> None:
        self.circuit = circuit
        self.splits = splits
        self.made = Circuit(circuit.name)
        self.split: dict[Value, Split] = {}
        self.copied: dict[Value, Value] = {}
        self.gathered: dict[Value, Value] = {}

    def placed(self) -> Circuit:
        circuit, made = self.circuit, self.made
        for name, value in circuit.inputs.items():
            self.copied[value] = made.input(name, _tensor(value))
        for name, value in circuit.weights.items():
            self.copied[value] = made.weight(name, self._share(name, _tensor(value)))
            if name in self.splits:
                self.split[self.copied[value]] = self.splits[name]
        for name, value in circuit.states.items():
            self.copied[value] = made.state(name, value.type)  # type: ignore[arg-type]
        for call in circuit.calls:
            self._place(call)
        for name, value in circuit.outputs.items():
            made.output(name, self._whole(self.copied[value], call=None))
        for name, value in circuit.state_outputs.items():
            made.state_output(name, self.copied[value])
        return made

    def _share(self, name: str, whole: TensorType) -> TensorType:
        split = self.splits.get(name)
        if split is None:
            return whole
        if len(whole.shape) <= split.dim or whole.shape[split.dim] != split.size:
            raise LoweringError(
                f"circuit {self.circuit.name!r}: weight %{name}: expected {split.size} entries along dim {split.dim} "
                f"to split, got {whole}; split it as this checkpoint has it"
            )
        return whole.with_shape(*whole.shape[: split.dim], split.width, *whole.shape[split.dim + 1 :])

    def _place(self, call: Call) -> None:
        args = [self.copied[arg] for arg in call.args]
        held = [self.split.get(arg) for arg in args]
        rule = _RULES.get(type(call.node))
        if any(held) and rule is not None and rule(self, call, args, held):
            return
        whole = [self._whole(arg, call=call) for arg in args]
        self.copied.update(zip(call.results, self.made.copy_call(call, *whole), strict=True))

    def keep(self, call: Call, node: Node, args: list[Value], split: Split | None) -> bool:
        """Append the call with `node` in its place; its one result is the part that `split` says."""
        (value,) = self.made.add_call(node, args, names=[call.results[0].name], block=call.block)
        self.copied[call.results[0]] = value
        if split is not None:
            self.split[value] = split
        return True

    def add_up(self, call: Call, node: Node, args: list[Value], split: Split) -> bool:
        """Append the call as a part of a sum, and the sum over ranks under its name."""
        name = call.results[0].name
        (part,) = self.made.add_call(node, args, names=[f"{name}.part"], block=call.block)
        return self.keep(call, AllReduce(axis=split.axis, num_ranks=split.num_ranks), [part], None)

    def _whole(self, value: Value, *, call: Call | None) -> Value:
        """Return the value as every rank has it, gathered at its first reader that needs it so."""
        split = self.split.get(value)
        if split is None:
            return value
        reader = "an output" if call is None else str(call)
        last = len(_tensor(value).shape) - 1
        if value.kind == "weight" or split.dim != last or split.width * split.num_ranks != split.size:
            raise LoweringError(
                f"circuit {self.circuit.name!r}: {value!r} is split over {split.num_ranks} ranks along dim "
                f"{split.dim}, and {reader} needs it whole; split it evenly along its last dim, or not at all"
            )
        if value not in self.gathered:
            node = AllGather(axis=split.axis, num_ranks=split.num_ranks)
            block = call.block if call is not None else ""
            (self.gathered[value],) = self.made.add_call(node, [value], names=[f"{value.name}.whole"], block=block)
        return self.gathered[value]


_Held = list[Split | None]
_Rule = Callable[[_Placer, Call, list[Value], _Held], bool]


def _linear(placer: _Placer, call: Call, args: list[Value], held: _Held) -> bool:
    """Split rows of the weight give split columns; split columns of both give a part of the sum."""
    x, weight = held
    if weight is None:
        return False
    if weight.dim == 1 and x == weight.along(len(_tensor(args[0]).shape) - 1):
        return placer.add_up(call, call.node, args, weight)
    if weight.dim == 0 and x is None:
        return placer.keep(call, call.node, args, weight.along(len(_tensor(args[0]).shape) - 1))
    return False


def _split_heads(placer: _Placer, call: Call, args: list[Value], held: _Held) -> bool:
    """Whole heads stay where they are."""
    (split,) = held
    assert isinstance(call.node, SplitHeads)
    assert split is not None
    heads = split.along(1, entry=call.node.num_heads, of=split.size)
    if heads is None or heads.width == 0:
        return False
    return placer.keep(call, SplitHeads(num_heads=heads.width), args, heads)


def _absorb_query(placer: _Placer, call: Call, args: list[Value], held: _Held) -> bool:
    query, kv_b = held
    if query is None or kv_b is None or query != kv_b.along(1, entry=query.size, of=kv_b.size):
        return False
    return placer.keep(call, call.node, args, query)


def _attention(placer: _Placer, call: Call, args: list[Value], held: _Held) -> bool:
    """Each head attends by itself; the selection is the same for all of them."""
    query = held[1]
    if query is None or query.dim != 1 or any(held[:1] + held[2:]):
        return False
    return placer.keep(call, call.node, args, query)


def _absorb_value(placer: _Placer, call: Call, args: list[Value], held: _Held) -> bool:
    attended, kv_b = held
    assert isinstance(call.node, AbsorbValue)
    if attended is None or kv_b is None or attended != kv_b.along(1, entry=attended.size, of=kv_b.size):
        return False
    return placer.keep(call, call.node, args, attended.along(1, entry=call.node.v_head_dim))


def _routed_experts(placer: _Placer, call: Call, args: list[Value], held: _Held) -> bool:
    """Experts that are elsewhere add zeros, and the ranks' sums are added up."""
    gate_up, down = held[3:]
    assert isinstance(call.node, RoutedExperts)
    if gate_up is None or gate_up != down or gate_up.dim != 0 or any(held[:3]):
        return False
    node = LocalExperts(limit=call.node.limit, first=gate_up.start, num_experts=gate_up.size)
    return placer.add_up(call, node, args, gate_up)


def _argmax(placer: _Placer, call: Call, args: list[Value], held: _Held) -> bool:
    """Each rank's best token and its logit are exchanged in place of the logits."""
    (split,) = held
    assert split is not None
    # an earlier reader may have had the logits gathered: then there is nothing left to exchange
    if split.dim != 1 or args[0] in placer.gathered:
        return False
    name = call.results[0].name
    best = placer.made.add_call(
        LocalArgmax(first=split.start), args, names=[f"{name}.value", f"{name}.token"], block=call.block
    )
    return placer.keep(call, ArgmaxExchange(axis=split.axis, num_ranks=split.num_ranks), list(best), None)


_RULES: dict[type[Node], _Rule] = {
    Linear: _linear,
    SplitHeads: _split_heads,
    AbsorbQuery: _absorb_query,
    SparseMlaAttention: _attention,
    AbsorbValue: _absorb_value,
    RoutedExperts: _routed_experts,
    Argmax: _argmax,
}


def _tensor(value: Value) -> TensorType:
    return value.type.tensor if isinstance(value.type, StateType) else value.type
