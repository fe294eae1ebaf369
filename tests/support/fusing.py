"""What tests of fusion share: rules of toy nodes, and what must survive a fusion."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from circuit import Circuit, StateType, f32, interpret
from compiler.pattern import Step
from compiler.registry import BITWISE, RegionRule
from tests.support.node_cases import same_bits
from tests.support.toy_nodes import ToyAdd, ToyGain, ToyScale


def rule(name: str, *steps: Step) -> RegionRule:
    return RegionRule(name, "toy", steps, (name,), BITWISE, lambda node, *tensors: None)


def cache_type() -> StateType:
    return StateType("paged", f32("num_blocks", 4, 8), 2)


def line() -> Circuit:
    """x -> twice -> gained -> sum with x -> y."""
    circuit = Circuit("line")
    x = circuit.input("x", f32("n", 8))
    with circuit.block("head"):
        with circuit.block("inner"):
            twice = ToyScale(factor=2.0)(x).named("twice")
        gained = ToyGain()(twice, circuit.weight("gain", f32(8))).named("gained")
    circuit.output("y", ToyAdd()(gained, x).named("sum"))
    return circuit


def kinds(circuit: Circuit) -> list[str]:
    return [getattr(call.node, "rule", type(call.node).__name__) for call in circuit.calls]


def value_names(circuit: Circuit) -> set[str]:
    """Every name of a value, those inside regions too."""
    names = {value.name for value in circuit.values}
    for call in circuit.calls:
        inner = call.node.inner_circuit()
        names |= set() if inner is None else value_names(inner)
    return names


def blocks(circuit: Circuit) -> dict[str, str]:
    """The block of every call by its first result, inside regions or out."""
    held: dict[str, str] = {}
    for call in circuit.calls:
        inner = call.node.inner_circuit()
        held |= {call.results[0].name: call.block} if inner is None else blocks(inner)
    return held


def same_run(before: Circuit, after: Circuit, *, num_columns: int = 8) -> None:
    generator = torch.Generator().manual_seed(11)

    def tensors(values: Mapping[str, Any], *shape: int) -> dict[str, torch.Tensor]:
        return {name: torch.randn(*shape, generator=generator) for name in values}

    fed: dict[str, Any] = {
        "inputs": tensors(before.inputs, 5, num_columns),
        "weights": tensors(before.weights, num_columns),
        "states": {name: torch.randn(3, *value.type.tensor.sizes()[1:]) for name, value in _bound(before).items()},
    }
    expected, got = interpret(before, **fed), interpret(after, **fed)
    assert {*got.outputs} == {*expected.outputs}
    assert all(same_bits(got.outputs[name], tensor) for name, tensor in expected.outputs.items())
    assert all(same_bits(got.states[name], tensor) for name, tensor in expected.states.items())


def _bound(circuit: Circuit) -> dict[str, Any]:
    class Bound:
        def __init__(self, type: Any) -> None:
            self.type = type.bind({"num_blocks": 3})

    return {name: Bound(value.type) for name, value in circuit.states.items()}
