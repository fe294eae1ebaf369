"""fuse: a chain with a rule becomes a region, the bits stay, and each rule that did not fire says why."""

from __future__ import annotations

import pytest

from circuit import Circuit, f32, from_document, to_json, to_text, verify
from compiler.compile import state_writes
from compiler.passes.fuse import fuse
from compiler.pattern import Step
from tests.support.fusing import blocks, cache_type, kinds, line, rule, same_run, value_names
from tests.support.toy_nodes import ToyAdd, ToyGain, ToyMinMax, ToyRead, ToyScale, ToyWrite

SCALE_GAIN = rule("scale_gain", Step("scale", ToyScale), Step("gain", ToyGain, {"x": "scale"}, leaves=True))


# a rule that fires


def test_chain_becomes_a_region_that_keeps_names_blocks_and_bits() -> None:
    circuit = line()
    fused, [record] = fuse(circuit, [SCALE_GAIN])
    verify(fused)
    assert kinds(fused) == ["scale_gain", "ToyAdd"]
    assert record.fired == ("twice",)
    assert record.why_not == ""
    [region, _] = fused.calls
    assert [value.name for value in region.results] == ["gained"]
    assert region.block == "head"
    assert blocks(fused) == blocks(circuit)
    assert value_names(fused) == value_names(circuit)
    body = region.node.inner_circuit()
    assert body is not None
    assert [*body.inputs, *body.weights, *body.outputs] == ["x", "gain", "gained"]
    same_run(circuit, fused)
    assert to_text(from_document(to_json(fused))) == to_text(fused)


def test_rule_fires_wherever_its_chain_stands() -> None:
    circuit = Circuit("many")
    value = circuit.input("x", f32("n", 8))
    gain = circuit.weight("gain", f32(8))
    for number in range(5):
        value = ToyGain()(ToyScale(factor=float(number))(value), gain).named(f"g{number}")
    circuit.output("y", value)
    fused, [record] = fuse(circuit, [SCALE_GAIN])
    assert kinds(fused) == ["scale_gain"] * 5
    assert len(record.fired) == 5
    same_run(circuit, fused)


def test_value_that_may_leave_is_a_result_only_where_it_is_read() -> None:
    circuit = line()
    both = rule("both", Step("gain", ToyGain, leaves=True), Step("sum", ToyAdd, {"x": "gain"}, leaves=True))
    fused, _ = fuse(circuit, [both])
    assert [value.name for value in fused.calls[-1].results] == ["sum"]
    circuit.output("gained", circuit.value("gained"))
    fused, _ = fuse(circuit, [both])
    assert [value.name for value in fused.calls[-1].results] == ["gained", "sum"]
    same_run(circuit, fused)


def test_longer_chain_is_tried_before_a_shorter_one_registered_earlier() -> None:
    circuit = line()
    longer = rule(
        "longer",
        Step("scale", ToyScale),
        Step("gain", ToyGain, {"x": "scale"}),
        Step("sum", ToyAdd, {"x": "gain"}, leaves=True),
    )
    ordered = sorted([SCALE_GAIN, longer], key=lambda one: -one.num_required)
    fused, records = fuse(circuit, ordered)
    assert kinds(fused) == ["longer"]
    assert records[1].why_not == "%twice = ToyScale is part of the region 'longer'"


def test_optional_several_and_alternative_steps() -> None:
    several = rule(
        "several",
        Step("first", ToyScale, at_least=0),
        Step("gain", ToyGain, {"x": "first"}),
        Step("uses", ToyScale, {"x": "gain"}, leaves=True, at_most=None),
        Step("sum", ToyAdd, {"x": ("uses", "gain"), "other": "x"}, leaves=True, at_least=0),
    )

    def circuit(*, with_first: bool, num_uses: int) -> Circuit:
        made = Circuit("several")
        x = made.input("x", f32("n", 8))
        gain = ToyGain()(ToyScale(factor=2.0)(x) if with_first else x, made.weight("gain", f32(8)))
        uses = [ToyScale(factor=float(number))(gain).named(f"use{number}") for number in range(num_uses)]
        for use in uses:
            made.output(use.name, use)
        made.output("sum", ToyAdd()(uses[-1] if uses else gain, x))
        return made

    for with_first in (True, False):
        for num_uses in (1, 3):
            made = circuit(with_first=with_first, num_uses=num_uses)
            fused, [record] = fuse(made, [several])
            assert kinds(fused) == ["several"], (with_first, num_uses, record)
            same_run(made, fused)
    _, [record] = fuse(circuit(with_first=True, num_uses=0), [several])
    assert record.why_not == "no such chain in this circuit: no ToyScale with x = gain"


def test_variable_is_one_value_wherever_it_stands() -> None:
    pair = rule(
        "pair",
        Step("left", ToyScale, {"x": "shared"}),
        Step("right", ToyGain, {"x": "shared"}),
        Step("sum", ToyAdd, {"x": "left", "other": "right"}, leaves=True),
    )

    def circuit(*, is_shared: bool) -> Circuit:
        made = Circuit("pair")
        x, other = made.input("x", f32("n", 8)), made.input("other", f32("n", 8))
        right = ToyGain()(x if is_shared else other, made.weight("gain", f32(8)))
        made.output("y", ToyAdd()(ToyScale(factor=2.0)(x), right))
        made.output("z", ToyAdd()(x, other))
        return made

    assert "pair" in kinds(fuse(circuit(is_shared=True), [pair])[0])
    fused, [record] = fuse(circuit(is_shared=False), [pair])
    assert "pair" not in kinds(fused)
    assert record.why_not == "no such chain in this circuit: no ToyGain with x = shared"


def test_step_outside_ties_a_match_and_stays_outside() -> None:
    tied = rule(
        "tied",
        Step("maker", ToyMinMax, is_outside=True),
        Step("low", ToyScale, {"x": "maker"}, leaves=True),
        Step("high", ToyScale, {"x": "maker.most"}, leaves=True),
    )
    circuit = Circuit("tied")
    x, y = circuit.input("x", f32("n", 8)), circuit.input("y", f32("n", 8))
    halves = [ToyMinMax()(x, y), ToyMinMax()(y, x)]
    for number, (least, most) in enumerate(halves):
        # listed so that neighbours are of two makers
        circuit.output(f"high{number}", ToyScale(factor=3.0)(halves[1 - number][1]).named(f"high{1 - number}"))
        circuit.output(f"low{number}", ToyScale(factor=2.0)(least).named(f"low{number}"))
        assert most.call is least.call
    fused, [record] = fuse(circuit, [tied])
    assert sorted(kinds(fused)) == ["ToyMinMax", "ToyMinMax", "tied", "tied"]
    for call in fused.calls:
        if kinds(fused)[fused.calls.index(call)] == "tied":
            assert len({arg.call for arg in call.args}) == 1
    assert len(record.fired) == 2
    same_run(circuit, fused)


# a rule that does not


def test_value_read_outside_by_a_call_or_an_output_keeps_a_rule_from_firing() -> None:
    circuit = line()
    circuit.output("twice", circuit.value("twice"))
    fused, [record] = fuse(circuit, [SCALE_GAIN])
    assert kinds(fused) == kinds(circuit)
    assert record.why_not == "value %twice is read outside, by the output 'twice'"
    circuit = line()
    circuit.output("z", ToyScale(factor=5.0)(circuit.value("twice")).named("again"))
    _, [record] = fuse(circuit, [SCALE_GAIN])
    assert record.why_not == "value %twice is read outside, by %again = ToyScale"


def test_chain_that_is_not_there_says_what_is_missing() -> None:
    circuit = line()
    wanted = rule("wanted", Step("least", ToyMinMax), Step("read", ToyRead, {"x": "least"}, leaves=True))
    backwards = rule("backwards", Step("gain", ToyGain), Step("scale", ToyScale, {"x": "gain"}, leaves=True))
    fused, records = fuse(circuit, [wanted, backwards])
    assert to_text(fused) == to_text(circuit)
    assert [record.why_not for record in records] == [
        "no such chain in this circuit: it has no ToyMinMax and no ToyRead",
        "no such chain in this circuit: no ToyScale with x = gain",
    ]


def test_path_through_a_call_outside_is_not_convex() -> None:
    circuit = Circuit("around")
    x = circuit.input("x", f32("n", 8))
    twice = ToyScale(factor=2.0)(x).named("twice")
    gained = ToyGain()(twice, circuit.weight("gain", f32(8))).named("gained")
    circuit.output("y", ToyAdd()(twice, gained).named("sum"))
    around = rule("around", Step("scale", ToyScale, leaves=True), Step("sum", ToyAdd, {"x": "scale"}, leaves=True))
    fused, [record] = fuse(circuit, [around])
    assert kinds(fused) == kinds(circuit)
    assert record.why_not == "not convex: path through %gained = ToyGain"


def test_regions_that_would_wait_for_one_another_do_not_both_form() -> None:
    """a1 -> b1 and b2 -> a2: either pair is convex alone, both together are a cycle."""
    circuit = Circuit("cycle")
    x, gain = circuit.input("x", f32("n", 8)), circuit.weight("gain", f32(8))
    a1, b2 = ToyScale(factor=2.0)(x).named("a1"), ToyScale(factor=3.0)(x).named("b2")
    b1, a2 = ToyGain()(a1, gain).named("b1"), ToyGain()(b2, gain).named("a2")
    circuit.output("b1", b1)
    circuit.output("a2", a2)
    anti = rule(
        "anti",
        Step("a1", ToyScale, {"x": "x"}, leaves=True),
        Step("b2", ToyScale, {"x": "x"}, is_outside=True),
        Step("a2", ToyGain, {"x": "b2"}, leaves=True),
    )
    fused, [record] = fuse(circuit, [anti])
    assert kinds(fused).count("anti") == 1
    assert record.reasons == ("not convex: path through the region 'anti'",)
    verify(fused)
    same_run(circuit, fused)


def stateful(*, reads_late: bool) -> Circuit:
    """Two writes of one cache; a read of the version between them, whose result the second write takes or not."""
    circuit = Circuit("stateful")
    x = circuit.input("x", f32("n", 8))
    cache = circuit.state("cache", cache_type())
    first, magnitude = ToyWrite()(cache, x)
    first, magnitude = first.named("first"), magnitude.named("magnitude")
    read = ToyRead()(first, x).named("read")
    second, rest = ToyWrite()(first, read if reads_late else magnitude)
    circuit.state_output("cache", second.named("second"))
    circuit.output("rest", rest.named("rest"))
    circuit.output("y", ToyScale(factor=2.0)(read))
    return circuit


BOTH_WRITES = rule(
    "both_writes", Step("one", ToyWrite, leaves=True), Step("two", ToyWrite, {"cache": "one"}, leaves=True)
)


@pytest.mark.parametrize("reads_late", [True, False])
def test_reader_of_a_version_between_two_writes_is_never_left_behind(reads_late: bool) -> None:
    circuit = stateful(reads_late=reads_late)
    verify(circuit)
    fused, [record] = fuse(circuit, [BOTH_WRITES])
    # without a data edge it is the order of the versions alone that forbids it
    assert record.why_not == "not convex: path through %read = ToyRead"
    assert kinds(fused) == kinds(circuit)


def test_region_threads_its_writes_and_runs_after_the_readers_of_what_it_replaces() -> None:
    circuit = Circuit("threads")
    x = circuit.input("x", f32("n", 8))
    cache = circuit.state("cache", cache_type())
    scaled = ToyScale(factor=2.0)(x).named("scaled")
    old = ToyRead()(cache, ToyScale(factor=7.0)(x)).named("old")
    first, magnitude = ToyWrite()(cache, scaled)
    second, rest = ToyWrite()(first.named("first"), magnitude.named("magnitude"))
    circuit.state_output("cache", second.named("second"))
    circuit.output("y", ToyAdd()(old, rest.named("rest")))
    threads = rule(
        "threads",
        Step("scale", ToyScale),
        Step("one", ToyWrite, {"rows": "scale"}),
        Step("two", ToyWrite, {"cache": "one", "rows": "one.magnitude"}, leaves=True),
    )
    fused, [record] = fuse(circuit, [threads])
    assert record.fired == ("scaled",)
    verify(fused)
    [region] = [call for call in fused.calls if call.node.inner_circuit() is not None]
    assert region.node.writes == ("cache",)
    assert [value.name for value in region.results] == ["second", "rest"]
    # the reader of the old version stands before the region now, as it must
    assert [value.name for value in fused.calls[-3].results] == ["old"]
    assert state_writes(fused) == state_writes(circuit) == {"cache": 2}
    same_run(circuit, fused)


def test_region_that_only_reads_a_state_lets_it_through() -> None:
    circuit = Circuit("reads")
    x = circuit.input("x", f32("n", 8))
    cache = circuit.state("cache", cache_type())
    circuit.state_output("cache", cache)
    circuit.output("y", ToyScale(factor=2.0)(ToyRead()(cache, x)))
    reads = rule("reads", Step("read", ToyRead), Step("scale", ToyScale, {"x": "read"}, leaves=True))
    fused, _ = fuse(circuit, [reads])
    verify(fused)
    assert fused.calls[0].node.reads == ("cache",)
    same_run(circuit, fused)


def test_step_with_a_port_that_its_node_has_not_is_refused() -> None:
    with pytest.raises(ValueError, match="step 'sum': ToyAdd has no port 'left'; its ports are x, other"):
        Step("sum", ToyAdd, {"left": "x"})
