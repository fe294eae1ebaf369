"""Certify products: a product of which only the best is asked for is read in eight bits first, with a certificate.

before:  %logits = Linear()(%y, %w)                                 %draft = Argmax()(%logits)
after:   weights %w.int8, %w.scale, %w.error
         %logits = CertifiedLinear()(%y, %w, %w.int8, %w.scale, %w.error)   %draft = Argmax()(%logits)

CertifiedLinear means Linear, so that no value changes; the three weights say which rows cannot win. A product whose
logits are read by anything but a grammar's mask and the choice keeps its Linear: a probability is over all of them.
"""

from collections.abc import Collection

from circuit import Call, Circuit, TensorType, Value, f32
from compiler.derived_weights import DerivedWeight, Recipe
from compiler.passes.record import RuleRecord
from nodes import Argmax, CertifiedLinear, GrammarMask, Linear, TrimmedGrammarMask

CERTIFY_PRODUCTS = "certify_products"
_PARTS: tuple[tuple[str, Recipe], ...] = (("int8", "int8_rows"), ("scale", "row_scales"), ("error", "row_errors"))


def certify_products(
    circuit: Circuit, weights: Collection[str]
) -> tuple[Circuit, tuple[DerivedWeight, ...], tuple[RuleRecord, ...]]:
    """Return the circuit with the products of `weights` certified, what that derives, and what became of the rule."""
    if not weights:
        return circuit, (), ()
    found = [call for call in circuit.calls if isinstance(call.node, Linear) and call.args[1].name in weights]
    why_not = {call: reason for call in found if (reason := _read_otherwise(call, circuit))}
    taken = [call for call in found if call not in why_not]
    reasons = tuple(why_not.values()) or (() if taken else (f"no product of {', '.join(weights)}",))
    record = RuleRecord(CERTIFY_PRODUCTS, tuple(call.results[0].name for call in taken), reasons)
    if not taken:
        return circuit, (), (record,)
    sources = dict.fromkeys(call.args[1].name for call in taken)
    derived = tuple(
        DerivedWeight(name=f"{source}.{part}", recipe=recipe, sources=(source,))
        for source in sources
        for part, recipe in _PARTS
    )
    return _rebuilt(circuit, set(taken)), derived, (record,)


def _read_otherwise(call: Call, circuit: Circuit) -> str:
    """Return who reads a product for more than its best entry, empty where nobody does."""
    pending = [call.results[0]]
    for value in pending:
        if value in circuit.outputs.values():
            return f"value %{value.name} is an output"
        for reader in circuit.calls:
            if value not in reader.args or isinstance(reader.node, Argmax):
                continue
            if not isinstance(reader.node, GrammarMask | TrimmedGrammarMask):
                return f"value %{value.name} is read by %{reader.results[0].name} = {type(reader.node).__name__}"
            pending.append(reader.results[0])
    return ""


def _rebuilt(circuit: Circuit, taken: set[Call]) -> Circuit:
    copy, copied = Circuit(circuit.name), dict[Value, Value]()
    for name, value in circuit.inputs.items():
        copied[value] = copy.input(name, _tensor(value))
    for name, value in circuit.weights.items():
        copied[value] = copy.weight(name, _tensor(value))
    parts = {weight: _declared(copy, weight) for weight in dict.fromkeys(call.args[1] for call in taken)}
    for name, value in circuit.states.items():
        copied[value] = copy.state(name, value.type)  # type: ignore[arg-type]
    for call in circuit.calls:
        args = [copied[arg] for arg in call.args]
        if call in taken:
            names = [value.name for value in call.results]
            results = copy.add_call(CertifiedLinear(), [*args, *parts[call.args[1]]], names=names, block=call.block)
        else:
            results = copy.copy_call(call, *args)
        copied.update(zip(call.results, results, strict=True))
    for name, value in circuit.outputs.items():
        copy.output(name, copied[value])
    for name, value in circuit.state_outputs.items():
        copy.state_output(name, copied[value])
    return copy


def _declared(copy: Circuit, weight: Value) -> list[Value]:
    rows, width = _tensor(weight).shape
    types = (TensorType.parse(f"i8[{rows}, {width}]"), f32(rows), f32(rows))
    return [copy.weight(f"{weight.name}.{part}", type_) for (part, _), type_ in zip(_PARTS, types, strict=True)]


def _tensor(value: Value) -> TensorType:
    assert isinstance(value.type, TensorType)
    return value.type
