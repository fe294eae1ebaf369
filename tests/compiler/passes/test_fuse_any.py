"""fuse on any circuit with any rules, and on the real head: bits, writes, names and blocks stay."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from circuit import Circuit, StateType, from_document, to_json, to_text, verify
from compiler.compile import state_writes
from compiler.passes.fold_weights import fold_weights
from compiler.passes.fuse import fuse
from compiler.pattern import Step
from compiler.registry import RegionRule, region_rules
from tests.support.circuit_strategies import PROPERTY, circuits
from tests.support.fusing import blocks, rule, same_run, value_names
from tests.support.head_scene import DECISIONS, Scene, assert_same

# any circuit, any rules


@st.composite
def rules_for(draw: st.DrawFn, circuit: Circuit) -> Sequence[RegionRule]:
    """Draw rules made of pieces of the circuit, with traits drawn at random: legal and illegal ones."""
    made = []
    for number in range(draw(st.integers(1, 3))):
        picked = draw(st.lists(st.sampled_from(circuit.calls), min_size=1, max_size=4, unique=True))
        picked.sort(key=circuit.calls.index)
        steps = []
        for index, call in enumerate(picked):
            edges = {}
            for port, arg in zip(call.node.ports, call.args, strict=True):
                makers = [step for step, other in enumerate(picked[:index]) if arg.call is other]
                if makers and draw(st.booleans()):
                    result = arg.call.node.results[arg.result]  # type: ignore[union-attr]
                    edges[port] = f"s{makers[0]}.{result}"
                elif draw(st.booleans()):
                    edges[port] = f"v{circuit.values.index(arg)}"
            steps.append(
                Step(
                    f"s{index}",
                    type(call.node),
                    edges,
                    leaves=draw(st.booleans()),
                    at_least=draw(st.sampled_from([1, 1, 1, 0])),
                    at_most=draw(st.sampled_from([1, 1, None])),
                    is_outside=draw(st.sampled_from([False, False, False, True])),
                )
            )
        candidate = rule(f"rule{number}", *steps)
        if candidate.num_required:
            made.append(candidate)
    return made


@settings(PROPERTY, max_examples=60)
@given(st.data())
def test_any_rules_on_any_circuit_keep_bits_writes_names_and_the_law(data: st.DataObject) -> None:
    circuit = data.draw(circuits().filter(lambda drawn: len(drawn.calls) > 1))
    live = _without_dead_calls(circuit)
    rules = data.draw(rules_for(live))
    fused, records = fuse(live, rules)
    verify(fused)
    same_run(live, fused, num_columns=3)
    assert state_writes(fused) == state_writes(live)
    assert value_names(fused) == value_names(live)
    assert blocks(fused) == blocks(live)
    for record in records:
        assert bool(record.fired) != bool(record.why_not)
    regions = sum(call.node.inner_circuit() is not None for call in fused.calls)
    assert regions == sum(len(record.fired) for record in records)


def _without_dead_calls(circuit: Circuit) -> Circuit:
    for call in circuit.calls:
        read = {arg for other in circuit.calls for arg in other.args}
        read |= {*circuit.outputs.values(), *circuit.state_outputs.values()}
        if read.isdisjoint(call.results):
            value = next(value for value in call.results if not isinstance(value.type, StateType))
            circuit.output(f"kept {value.name}", value)
    return circuit


# the real head


@pytest.fixture(params=DECISIONS, ids=list(DECISIONS))
def scene(request: pytest.FixtureRequest) -> Scene:
    return Scene(DECISIONS[request.param])


def test_fused_programs_of_the_head_keep_every_bit_and_every_write(scene: Scene) -> None:
    for name, program in scene.programs().items():
        folded, derived, _ = fold_weights(program, why_not={})
        weights = {weight.name: weight.make([scene.binding.weights[s] for s in weight.sources]) for weight in derived}
        fused, records = fuse(folded, region_rules("triton"))
        verify(fused)
        assert [record for record in records if record.fired], name
        assert not [call for call in fused.calls if call.node.inner_circuit() is None], name
        held = {**scene.binding.weights, **weights}
        expected, got = scene.run(folded, weights=held), scene.run(fused, weights=held)
        assert_same(got.outputs, expected.outputs)
        assert_same(got.states, expected.states)
        assert state_writes(fused) == state_writes(program)
        assert value_names(fused) == value_names(folded)
        assert blocks(fused) == blocks(folded)
        assert to_text(from_document(to_json(fused))) == to_text(fused)


def test_random_rules_fire_and_fail_often_enough_to_mean_something() -> None:
    """A property over rules that never fire, or never fail, would hold of anything."""
    fired: list[str] = []
    reasons: list[str] = []

    # what is drawn hangs on the nodes that other tests of the process declared, so the counts are asked of many draws
    @settings(PROPERTY, max_examples=120, database=None)
    @given(st.data())
    def gather(data: st.DataObject) -> None:
        live = _without_dead_calls(data.draw(circuits().filter(lambda drawn: len(drawn.calls) > 1)))
        _, records = fuse(live, data.draw(rules_for(live)))
        fired.extend(name for record in records for name in record.fired)
        reasons.extend(reason for record in records for reason in record.reasons)

    gather()
    assert len(fired) >= 20
    assert sum("read outside" in reason for reason in reasons) >= 3
    assert sum("not convex" in reason for reason in reasons) >= 1
