"""compile_circuit: the passes in order, each with a record; no write is lost; plans say what fired, and why not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import compiler.inductor.lowering  # noqa: F401 - importing it registers the lowerings
from circuit import BindingError, Circuit, LoweringError, StateType, TensorType, VerifyError, f32, i64, to_text, verify
from compiler import registry
from compiler.compile import PASSES, Compiled, Request, compile_circuit, state_writes
from compiler.passes.loop import loop_step
from compiler.passes.specialise import Use, specialise
from compiler.pattern import Step
from compiler.plan import ProgramPlan, plan_compiled, plan_program, require_runnable, sources_digest
from compiler.region import Region
from compiler.registry import BITWISE, lowering_of, lowers_region, plans_region, region_rules, rule_of, tolerance
from compiler.target import target_of
from drafts.glm5_next import CONFIDENCE, WITHOUT_GRAMMAR
from nodes import Add, AppendCache, Argmax, Linear, RmsNorm
from tests.support.head_scene import DECISIONS, Scene, assert_same
from tests.support.toy_nodes import ToyWrite

DIMS = {"n": 1, "max_blocks": 5, "num_blocks": 11, "num_sequences": 3, "tail_depth": 7}


def head() -> Circuit:
    return Scene({}).binding.step(is_first=True)


def request(backend: str, use: Use | None = None) -> Request:
    made = Request(target_of(backend), DIMS)
    return made if use is None else replace(made, use=use)


def norm_argmax() -> Circuit:
    circuit = Circuit("norm_argmax")
    x = RmsNorm(eps=1e-5)(circuit.input("x", f32("n", 7)), circuit.weight("gain", f32(7))).named("normed")
    circuit.output("y", Argmax()(Linear()(x, circuit.weight("w", f32(5, 7))).named("logits")).named("draft"))
    return circuit


@pytest.fixture
def own_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules registered by a test are gone after it."""
    monkeypatch.setattr(registry, "_RULES", dict(registry._RULES))
    monkeypatch.setattr(registry, "_TABLE", dict(registry._TABLE))


# the story


def test_passes_run_in_the_order_of_the_list_and_each_leaves_a_record() -> None:
    compiled = compile_circuit(head(), request("triton"))
    assert [record.name for record in compiled.records] == [
        "verify",
        "specialise",
        "dead code",
        "place collectives",
        "fold weights",
        "certify products",
        "fuse",
        "bind dims",
        "verify",
        "plan memory",
    ]
    assert len(compiled.records) == len(PASSES)
    assert all(record.summary for record in compiled.records)
    assert all(run.__doc__ for run in PASSES)
    assert compiled.memory is not None
    assert compiled.memory.arena_bytes > 0


def test_every_rule_says_where_it_fired_or_why_not() -> None:
    for backend in ("triton", "inductor", "reference"):
        compiled = compile_circuit(head(), request(backend))
        rules = [rule.rule for rule in compiled.rules]
        assert len(set(rules)) == len(rules)
        assert {*rules} >= {"fold_projections", "split_kv_b", *(rule.name for rule in region_rules(backend))}
        assert {*compiled.fired_rules()} | {*compiled.unfired_rules()} == {*rules}
        assert not {*compiled.fired_rules()} & {*compiled.unfired_rules()}
        assert all(compiled.unfired_rules().values())
    inductor = compile_circuit(head(), request("inductor"))
    assert not inductor.derived
    assert set(inductor.unfired_rules()) == {"fold_projections", "split_kv_b", "fuse"}
    assert "measured" in inductor.unfired_rules()["fold_projections"]
    assert inductor.unfired_rules()["fuse"] == "no chain has a lowering of its own on this backend"


@pytest.mark.parametrize("decisions", DECISIONS.values(), ids=list(DECISIONS))
def test_backend_without_rules_changes_sizes_only(decisions: dict[str, str]) -> None:
    scene = Scene(decisions)
    dims = {name: int(size) for name, size in scene.run(scene.binding.step(is_first=True)).dims.items()}
    for name, program in scene.programs().items():
        compiled = compile_circuit(program, Request(target_of("reference"), dims))
        verify(compiled.circuit)
        expected, got = scene.run(program), scene.run(compiled.circuit)
        assert_same(got.outputs, expected.outputs)
        assert_same(got.states, expected.states)
        assert [value.name for call in compiled.circuit.calls for value in call.results] == [
            value.name for call in program.calls for value in call.results
        ], name
        assert [call.block for call in compiled.circuit.calls] == [call.block for call in program.calls]


# one declared circuit, several uses


@pytest.mark.parametrize("decisions", DECISIONS.values(), ids=list(DECISIONS))
def test_uses_are_the_programs_that_the_drafter_runs(decisions: dict[str, str]) -> None:
    scene = Scene(decisions)
    binding = scene.binding
    parts: Any = {"bypassed": WITHOUT_GRAMMAR, "dropped_outputs": (CONFIDENCE,)}
    looped, _ = loop_step(binding.step(is_first=True), feedback=binding.feedback)
    expected = [
        (Use(kind="step", **parts), binding.step(is_first=True)),
        (Use(kind="next_step", feedback=binding.feedback, **parts), binding.step(is_first=False)),
        (Use(kind="loop", feedback=binding.feedback, **parts), looped),
        (Use(kind="context"), binding.context()),
        (Use(), binding.circuit),
    ]
    for use, program in expected:
        assert to_text(specialise(binding.circuit, use)) == to_text(program), str(use)
    use = Use(kind="chain", num_drafts=3, feedback=binding.feedback, outputs=("token",), **parts)
    compiled = compile_circuit(binding.circuit, request("reference", use))
    assert to_text(compile_circuit(scene.chain(3), request("reference")).circuit) == to_text(compiled.circuit)
    assert state_writes(compiled.circuit) == dict.fromkeys(compiled.circuit.states, 3)


@pytest.mark.parametrize("kind, num_drafts", [("chain", 0), ("step", 2), ("context", 3)])
def test_use_with_drafts_it_cannot_have_is_refused(kind: str, num_drafts: int) -> None:
    with pytest.raises(BindingError, match="expected 1 draft, more for a chain only"):
        Use(kind=kind, num_drafts=num_drafts)  # type: ignore[arg-type]


# a pass that loses something is caught


def twice_written() -> Circuit:
    circuit = Circuit("twice")
    cache = circuit.state("cache", StateType("paged", TensorType.parse("f32[num_blocks, 4, 5]")))
    rows, slots = circuit.input("rows", f32("n", 5)), circuit.input("slots", i64("n"))
    first = AppendCache()(cache, rows, slots).named("first")
    circuit.state_output("cache", AppendCache()(first, Add()(rows, rows), slots).named("second"))
    return circuit


def without_call(circuit: Circuit, dropped: int) -> Circuit:
    """A copy that lacks one write, and is a legal circuit all the same."""
    copy = Circuit(circuit.name)
    copied = {value: copy.input(name, value.type) for name, value in circuit.inputs.items()}  # type: ignore[arg-type]
    copied |= {value: copy.state(name, value.type) for name, value in circuit.states.items()}  # type: ignore[arg-type]
    for index, call in enumerate(circuit.calls):
        if index == dropped:
            copied[call.results[0]] = copied[call.args[0]]
            continue
        copied.update(zip(call.results, copy.copy_call(call, *(copied[arg] for arg in call.args)), strict=True))
    for name, value in circuit.state_outputs.items():
        copy.state_output(name, copied[value])
    return copy


def test_pass_that_drops_a_write_is_caught_wherever_it_stands() -> None:
    circuit = twice_written()
    # the mutant is legal: verify alone would let it through
    verify(without_call(circuit, 0))

    def careless(compiled: Compiled, request: Request) -> Compiled:
        done = PASSES[0](compiled, request)
        return replace(done, circuit=without_call(done.circuit, 0))

    asked = Request(target_of("reference"), {"n": 3, "num_blocks": 4})
    compile_circuit(circuit, asked)
    for place in range(1, len(PASSES) + 1):
        with pytest.raises(VerifyError, match="expected 2 writes of the state 'cache' as before it, got 1") as caught:
            compile_circuit(circuit, asked, passes=(*PASSES[:place], careless, *PASSES[place:]))
        assert caught.value.at == "cache"


def test_writes_inside_a_region_count_one_by_one() -> None:
    circuit = twice_written()
    outer = Circuit("outer")
    args = [outer.input(name, value.type) for name, value in circuit.inputs.items()]  # type: ignore[arg-type]
    cache = outer.state("held", circuit.states["cache"].type)  # type: ignore[arg-type]
    (written,) = outer.add_call(Region.of("r", circuit), [*args, cache], names=["next"])
    outer.state_output("held", written)
    assert state_writes(outer) == {"held": 2}
    lossy = Circuit("outer")
    args = [lossy.input(name, value.type) for name, value in circuit.inputs.items()]  # type: ignore[arg-type]
    cache = lossy.state("held", circuit.states["cache"].type)  # type: ignore[arg-type]
    lossy.state_output("held", lossy.add_call(Region.of("r", without_call(circuit, 0)), [*args, cache], names=["n"])[0])
    assert state_writes(lossy) == {"held": 1}


# plans


def plan(circuit: Circuit, backend: str) -> ProgramPlan:
    return plan_program(circuit, name="p", backend=backend, dims=DIMS)


def test_region_in_a_plan_carries_its_rule_and_the_calls_inside(own_tables: None) -> None:
    @lowers_region(
        "norm_linear_argmax",
        (
            Step("normed", RmsNorm),
            Step("logits", Linear, {"x": "normed"}),
            Step("draft", Argmax, {"logits": "logits"}, leaves=True),
        ),
        backend="inductor",
        numerics=tolerance(1e-6, "a test"),
    )
    def lower_head(node: Region, *tensors: torch.Tensor) -> torch.Tensor:
        return tensors[0]

    made = plan(norm_argmax(), "inductor")
    [call] = made.calls
    assert (call.rule, call.node_type, call.lowering) == ("norm_linear_argmax", "Region", "lower_head")
    assert call.numerics == "tolerance(1e-06, a test)"
    assert call.launches == ("norm_linear_argmax",)
    assert [inner.node_type for inner in call.body] == ["RmsNorm", "Linear", "Argmax"]
    assert call.flops == sum(inner.flops for inner in call.body)
    assert call.bytes_read == 4 * (7 + 7 + 5 * 7)
    assert call.bytes_written == 8
    assert made.fired_rules == {"norm_linear_argmax": ("normed",)}
    assert "norm_linear_argmax" not in made.unfired_rules
    assert ProgramPlan.model_validate_json(made.model_dump_json()) == made
    require_runnable(made)
    region = compile_circuit(norm_argmax(), request("inductor")).circuit.calls[0].node
    lowering = lowering_of(region, "inductor")
    assert lowering is not None
    assert lowering.function is lower_head
    assert lowering_of(region, "reference") is None


def test_rule_tag_and_reason_each_change_the_digest(own_tables: None) -> None:
    pattern = (Step("logits", Linear), Step("draft", Argmax, {"logits": "logits"}, leaves=True))
    before = plan(norm_argmax(), "inductor")
    planned = plans_region("logits_argmax", pattern, backend="inductor", numerics=BITWISE)
    fused = plan(norm_argmax(), "inductor")
    key = ("inductor", "logits_argmax")
    registry._RULES[key] = replace(planned, numerics=tolerance(1e-3, "other"))
    tagged = plan(norm_argmax(), "inductor")
    registry._RULES[key] = replace(planned, launches=("one", "two"))
    launched = plan(norm_argmax(), "inductor")
    registry._RULES[key] = replace(planned, is_planned=False)
    built = plan(norm_argmax(), "inductor")
    registry._RULES[key] = replace(planned, pattern=(Step("draft", Argmax), Step("again", Argmax, {"logits": "draft"})))
    unfired = plan(norm_argmax(), "inductor")
    digests = [made.digest for made in (before, fused, tagged, launched, built, unfired)]
    assert len(set(digests)) == len(digests)
    assert plan(norm_argmax(), "inductor").digest == unfired.digest
    assert launched.launches == ("one", "two")


def test_sources_of_a_backend_are_its_own_and_kernels_count_for_triton() -> None:
    digests = {backend: sources_digest(backend) for backend in ("triton", "inductor", "reference")}
    assert len(set(digests.values())) == 3


def test_planned_rule_refuses_by_name_and_nothing_runs_silently(own_tables: None) -> None:
    pattern = (Step("logits", Linear), Step("draft", Argmax, {"logits": "logits"}, leaves=True))
    plans_region("logits_argmax", pattern, backend="inductor", numerics=BITWISE)
    made = plan(norm_argmax(), "inductor")
    assert made.planned_rules == ("logits_argmax",)
    with pytest.raises(LoweringError, match=r"1 rules are planned and have no kernel yet: logits_argmax;"):
        require_runnable(made)
    region = compile_circuit(norm_argmax(), request("inductor")).circuit.calls[-1].node
    lowering = lowering_of(region, "inductor")
    assert lowering is not None
    with pytest.raises(LoweringError, match="region 'logits_argmax' on inductor: planned, it has no kernel yet"):
        lowering.function(region, torch.zeros(1, 7))


def test_node_that_no_rule_takes_is_refused_with_the_reasons_of_the_rules_that_would() -> None:
    circuit = norm_argmax()
    circuit.output("logits", circuit.value("logits"))
    with pytest.raises(LoweringError) as caught:
        plan(circuit, "triton")
    message = str(caught.value)
    assert message.startswith("%normed = RmsNorm: no lowering of its own on triton")
    assert "lm_head did not fire: value %logits is read outside, by the output 'logits'" in message
    circuit = Circuit("writes")
    cache = circuit.state("cache", StateType("paged", f32("num_blocks", 4, 8), 2))
    written, magnitude = ToyWrite()(cache, circuit.input("x", f32("n", 8)))
    circuit.state_output("cache", written)
    circuit.output("magnitude", magnitude)
    with pytest.raises(LoweringError, match="and no region takes it; no rule has this node"):
        plan(circuit, "triton")


def test_backend_of_another_name_is_refused() -> None:
    with pytest.raises(LoweringError, match="backend 'tritn': there is none of that name; did you mean 'triton'"):
        plan(norm_argmax(), "tritn")


@pytest.mark.parametrize("what", ["weight", "state"])
def test_dtype_that_a_target_does_not_run_is_refused_by_name(what: str) -> None:
    circuit = Circuit("wide")
    if what == "weight":
        circuit.output("y", Linear()(circuit.input("x", f64("n", 7)), circuit.weight("w", f64(5, 7))))
    else:
        cache = circuit.state("w", StateType("paged", f64("num_blocks", 4, 7)))
        written = AppendCache()(cache, circuit.input("x", f64("n", 7)), circuit.input("slots", i64("n")))
        circuit.state_output("w", written)
    plan(circuit, "reference")
    for backend in ("inductor", "triton"):
        with pytest.raises(LoweringError, match=f"{what} %w: .*f64.*: {backend} runs bf16, f16, f32; bind the drafter"):
            plan(circuit, backend)


def f64(*dims: int | str) -> TensorType:
    return TensorType.of(torch.float64, *dims)


def test_rule_names_are_taken_once_and_a_rule_needs_a_call(own_tables: None) -> None:
    pattern = (Step("draft", Argmax, leaves=True),)
    plans_region("once", pattern, backend="inductor", numerics=BITWISE)
    with pytest.raises(LoweringError, match="region 'once' on inductor: registered already"):
        plans_region("once", pattern, backend="inductor", numerics=BITWISE)
    with pytest.raises(LoweringError, match="expected a step that must be"):
        plans_region("none", (Step("draft", Argmax, at_least=0),), backend="inductor", numerics=BITWISE)
    assert rule_of(Region.of("once", norm_argmax()), "inductor") is not None
    assert rule_of(Region.of("twice", norm_argmax()), "inductor") is None


def test_plan_of_derived_weights_lists_recipe_and_sources() -> None:
    made = plan(head(), "triton")
    assert {weight.recipe for weight in made.derived_weights} == {"rows", "key_rows", "value_rows"}
    assert all(weight.sources for weight in made.derived_weights)
    compiled = compile_circuit(head(), request("triton"))
    whole = plan_compiled(compiled, name="p", target=target_of("triton"), dims=DIMS)
    assert whole.passes[2:] == made.passes
    assert whole.digest == made.digest
