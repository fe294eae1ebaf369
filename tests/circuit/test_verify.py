"""Each invariant, broken alone: circuits that the builder would not make are made by editing its tables."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings

from circuit import Call, Circuit, StateType, TypeRuleError, Value, VerifyError, f32, verify
from circuit.verify import (
    check_no_stale_reads,
    check_nothing_unused,
    check_order,
    check_single_writer,
    check_states_reach_outputs,
    check_types,
)
from tests.support.circuit_strategies import PROPERTY, circuits
from tests.support.toy_nodes import ToyMinMax, ToyRead, ToyScale, ToyWrite, toy_circuit

Check = Callable[[Circuit], None]
CHECKS: list[Check] = [
    check_order,
    check_types,
    check_single_writer,
    check_no_stale_reads,
    check_states_reach_outputs,
    check_nothing_unused,
]
CACHE = StateType("paged", f32("num_blocks", 4, 8))


def edited(circuit: Circuit, index: int, *args: Value) -> Circuit:
    """Rewire the call `index` behind the builder's back."""
    circuit.calls[index] = replace(circuit.calls[index], args=args)
    return circuit


def late_definition() -> Circuit:
    circuit = toy_circuit()
    circuit.calls.reverse()
    return circuit


def foreign_argument() -> Circuit:
    return edited(toy_circuit(), 0, toy_circuit().inputs["x"])


def unmade_output() -> Circuit:
    circuit = toy_circuit()
    circuit.outputs["y"] = toy_circuit().outputs["y"]
    return circuit


def wrong_result_type() -> Circuit:
    circuit = toy_circuit()
    circuit.value("scaled").type = f32("n", 9)
    return circuit


def missing_result() -> Circuit:
    circuit = toy_circuit()
    least, _ = ToyMinMax()(circuit.inputs["x"], circuit.inputs["x"])
    circuit.calls[-1] = replace(circuit.calls[-1], results=(least,))
    circuit.output("z", least)
    return circuit


def rejected_argument() -> Circuit:
    circuit = toy_circuit()
    return edited(circuit, 2, circuit.value("most"), circuit.inputs["x"])


def two_writers() -> Circuit:
    circuit = toy_circuit()
    _, magnitude = ToyWrite()(circuit.states["cache"], circuit.inputs["x"])
    circuit.output("z", magnitude)
    return circuit


def stale_read() -> Circuit:
    circuit = toy_circuit()
    return edited(circuit, 4, circuit.states["cache"], circuit.value("toy_gain_1"))


def missing_state_output() -> Circuit:
    circuit = toy_circuit()
    del circuit.state_outputs["cache"]
    return circuit


def old_state_output() -> Circuit:
    circuit = toy_circuit()
    circuit.state_outputs["cache"] = circuit.states["cache"]
    return circuit


def unread_weight() -> Circuit:
    circuit = toy_circuit()
    circuit.weight("more", f32(8))
    return circuit


def unread_result() -> Circuit:
    circuit = toy_circuit()
    ToyScale(factor=1.0)(circuit.inputs["x"])
    return circuit


FAULTS: list[tuple[Callable[[], Circuit], Check, str, str | None]] = [
    (
        late_definition,
        check_order,
        r"at call 0: .*%next_cache.* is not defined before it; move",
        "toy_read_1",
    ),
    (foreign_argument, check_order, "%x: .* is not defined before it", "scaled"),
    (unmade_output, check_order, "output 'y' is %toy_read_1: .*, which no call makes", "y"),
    (wrong_result_type, check_types, r"expected %scaled: f32\[n, 8\], got %scaled: f32\[n, 9\]", "scaled"),
    (missing_result, check_types, "expected 2 results, got 1", "toy_min_max.least_1"),
    (
        two_writers,
        check_single_writer,
        "%cache is written already, by %next_cache, .*take",
        "toy_write.cache_1",
    ),
    (stale_read, check_no_stale_reads, "reads %cache after %next_cache, .* replaced it", "toy_read_1"),
    (
        missing_state_output,
        check_states_reach_outputs,
        "ends as %next_cache, its state output is missing",
        "cache",
    ),
    (old_state_output, check_states_reach_outputs, "ends as %next_cache, its state output is %cache", "cache"),
    (unread_weight, check_nothing_unused, r"weight %more: f32\[8\] is never read", "more"),
    (unread_result, check_nothing_unused, "%toy_scale_1 = .* reaches no output", "toy_scale_1"),
]


def test_legal_circuit_passes_every_check() -> None:
    for check in CHECKS:
        check(toy_circuit())
    verify(toy_circuit())
    verify(Circuit("nothing"))


@pytest.mark.parametrize("broken, check, words, at", FAULTS, ids=[fault[0].__name__ for fault in FAULTS])
def test_broken_invariant_is_named(broken: Callable[[], Circuit], check: Check, words: str, at: str | None) -> None:
    with pytest.raises(VerifyError, match=words) as caught:
        check(broken())
    assert caught.value.at == at
    with pytest.raises(VerifyError):
        verify(broken())


@pytest.mark.parametrize("broken, check", [fault[:2] for fault in FAULTS], ids=[fault[0].__name__ for fault in FAULTS])
def test_broken_invariant_is_the_first_one_that_verify_finds(broken: Callable[[], Circuit], check: Check) -> None:
    circuit = broken()
    for earlier in CHECKS[: CHECKS.index(check)]:
        earlier(circuit)
    with pytest.raises(VerifyError):
        check(circuit)


def test_rejected_argument_carries_the_place_as_a_note() -> None:
    with pytest.raises(TypeRuleError) as caught:
        verify(rejected_argument())
    assert caught.value.report().splitlines() == [
        "ToyGain.gain: expected f32[8], like x's last dim, got f32[n, 8]",
        "in circuit 'toy', at call 2: %toy_gain_1 = ToyGain()(%most, %x)",
    ]


def test_chain_of_writers_is_followed_to_its_last_version() -> None:
    circuit = Circuit("chain")
    x, state = circuit.input("x", f32("n", 8)), circuit.state("cache", CACHE)
    version = state
    for index in range(3):
        version, magnitude = ToyWrite()(version, x)
        circuit.output(f"magnitude{index}", magnitude)
    circuit.state_output("cache", version)
    verify(circuit)


def test_read_before_the_write_is_legal() -> None:
    circuit = Circuit("early")
    x, state = circuit.input("x", f32("n", 8)), circuit.state("cache", CACHE)
    circuit.output("y", ToyRead()(state, x))
    version, magnitude = ToyWrite()(state, x)
    circuit.output("magnitude", magnitude)
    circuit.state_output("cache", version)
    verify(circuit)


def test_unread_input_is_refused_unless_it_is_an_output() -> None:
    circuit = Circuit("through")
    x = circuit.input("x", f32("n"))
    with pytest.raises(VerifyError, match="input %x"):
        verify(circuit)
    circuit.output("x", x)
    verify(circuit)


def test_call_without_place_in_the_order_is_found_by_identity() -> None:
    """Two calls alike in all but their results are two calls."""
    circuit = Circuit("alike")
    x = circuit.input("x", f32("n"))
    first, second = ToyScale(factor=1.0)(x), ToyScale(factor=1.0)(x)
    circuit.output("first", first)
    with pytest.raises(VerifyError, match=r"%toy_scale_2 = .* reaches no output"):
        verify(circuit)
    circuit.output("second", second)
    verify(circuit)
    assert isinstance(first.call, Call)


@settings(PROPERTY, max_examples=15)
@given(circuits())
def test_random_circuits_are_legal(circuit: Circuit) -> None:
    verify(circuit)
