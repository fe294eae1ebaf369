"""fold_weights: products of one input become one, kv_b is parted, values stay what they were to a rounding."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from circuit import Circuit, bf16, f32, interpret, to_text, verify
from compiler.derived_weights import DerivedWeight
from compiler.passes import bind_dims
from compiler.passes.fold_weights import FOLD_PROJECTIONS, SPLIT_KV_B, fold_weights
from nodes import Add, Cast, Linear, Slice
from tests.support.head_scene import DECISIONS, Scene, writes

HOLD_SUMS = 1e-5  # float32 sums of a few hundred products in another order


def whole(*shape: int, seed: int) -> Tensor:
    """Small whole numbers: every sum of their products is exact in float32, in any order."""
    return torch.randint(-8, 9, shape, generator=torch.Generator().manual_seed(seed)).float()


def derived_tensors(derived: tuple[DerivedWeight, ...], weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {weight.name: weight.make([weights[source] for source in weight.sources]) for weight in derived}


def projections(widths: list[int], fan_in: int = 7) -> Circuit:
    circuit = Circuit("projections")
    x = circuit.input("x", f32("n", fan_in))
    for index, width in enumerate(widths):
        with circuit.block(f"block {index}"):
            out = Linear()(x, circuit.weight(f"w{index}", f32(width, fan_in))).named(f"out{index}")
        circuit.output(f"out{index}", out)
    return circuit


@pytest.mark.parametrize("widths", [[1, 1], [3, 5, 1], [63, 1, 7, 2, 11]])
@pytest.mark.parametrize("num_rows", [0, 1, 5])
def test_products_of_one_input_become_one_product_and_its_parts(widths: list[int], num_rows: int) -> None:
    circuit = projections(widths)
    folded, derived, [rule, _] = fold_weights(circuit, why_not={})
    verify(folded)
    count = len(widths) - 1
    assert rule.fired == (f"out0+{count}",)
    assert derived == (
        DerivedWeight(name=f"w0+{count}", recipe="rows", sources=tuple(f"w{i}" for i in range(len(widths)))),
    )
    assert [type(call.node) for call in folded.calls] == [Linear, *[Slice] * len(widths)]
    assert list(folded.weights) == [f"w0+{count}"]
    # every name and block of the circuit is there as it was
    assert {value.name for call in circuit.calls for value in call.results} <= {value.name for value in folded.values}
    assert [call.block for call in folded.calls[1:]] == [call.block for call in circuit.calls]
    inputs = {"x": whole(num_rows, 7, seed=1)}
    weights = {f"w{index}": whole(width, 7, seed=index) for index, width in enumerate(widths)}
    expected = interpret(circuit, inputs=inputs, weights=weights, states={})
    got = interpret(folded, inputs=inputs, weights=derived_tensors(derived, weights), states={})
    assert all(torch.equal(got.outputs[name], tensor) for name, tensor in expected.outputs.items())


def test_one_product_of_an_input_stays_and_says_so() -> None:
    circuit = Circuit("apart")
    x, y = circuit.input("x", f32("n", 7)), circuit.input("y", f32("n", 7))
    circuit.output("a", Linear()(x, circuit.weight("w", f32(3, 7))))
    circuit.output("b", Linear()(y, circuit.weight("v", f32(3, 7))))
    folded, derived, records = fold_weights(circuit, why_not={})
    assert to_text(folded) == to_text(circuit)
    assert derived == ()
    assert [record.why_not for record in records] == [
        "no two products of one input and dtype over weights",
        "no AbsorbQuery or AbsorbValue over a weight with both halves",
    ]


def test_weight_that_another_call_reads_stays_beside_the_joined_one() -> None:
    circuit = projections([7, 5])
    x = circuit.inputs["x"]
    doubled = Linear()(Add()(x, x), circuit.weights["w0"]).named("doubled")
    circuit.output("doubled", doubled)
    folded, derived, _ = fold_weights(circuit, why_not={})
    verify(folded)
    assert set(folded.weights) == {"w0", "w0+1"}
    weights = {"w0": whole(7, 7, seed=1), "w1": whole(5, 7, seed=2)}
    inputs = {"x": whole(3, 7, seed=3)}
    held = {**weights, **derived_tensors(derived, weights)}
    expected = interpret(circuit, inputs=inputs, weights=weights, states={})
    got = interpret(folded, inputs=inputs, weights=held, states={})
    assert all(torch.equal(got.outputs[name], tensor) for name, tensor in expected.outputs.items())


def test_product_over_a_computed_value_or_an_open_width_is_left_alone() -> None:
    circuit = Circuit("open")
    x = circuit.input("x", f32("n", 7))
    circuit.output("a", Linear()(x, circuit.weight("w", f32("width", 7))))
    circuit.output("b", Linear()(x, circuit.weight("v", f32(3, 7))))
    circuit.output("c", Linear()(x, circuit.input("matrix", f32(3, 7))))
    folded, _, [rule, _] = fold_weights(circuit, why_not={})
    assert not rule.fired
    bound, _, [rule, _] = fold_weights(bind_dims(folded, {"width": 5}), why_not={})
    assert rule.fired == ("linear_1+1",)
    assert "matrix" in bound.inputs


def test_name_that_is_taken_is_not_taken_twice() -> None:
    circuit = projections([2, 3])
    circuit.output(
        "other", Linear()(circuit.input("z", f32("n", 7)), circuit.weight("w0+1", f32(2, 7))).named("out0+1")
    )
    folded, derived, _ = fold_weights(circuit, why_not={})
    verify(folded)
    assert [weight.name for weight in derived] == ["w0+1.2"]
    assert "out0+1.2" in {value.name for value in folded.values}


def test_dtypes_are_not_mixed() -> None:
    circuit = Circuit("mixed")
    x = circuit.input("x", bf16("n", 7))
    wide = Cast(dtype="f32")(x)
    circuit.output("a", Linear()(x, circuit.weight("w", bf16(3, 7))))
    circuit.output("b", Linear()(wide, circuit.weight("v", f32(3, 7))))
    assert fold_weights(circuit, why_not={})[1] == ()


def test_target_that_does_not_want_a_rule_gets_the_circuit_as_it_is_and_the_reason() -> None:
    circuit = Scene({}).binding.step(is_first=True)
    reasons = {FOLD_PROJECTIONS: "one launch as it is", SPLIT_KV_B: "rows of a head lie together"}
    folded, derived, records = fold_weights(circuit, why_not=reasons)
    assert to_text(folded) == to_text(circuit)
    assert derived == ()
    assert {record.rule: record.why_not for record in records} == reasons
    _, derived, records = fold_weights(circuit, why_not={FOLD_PROJECTIONS: "no"})
    assert {weight.recipe for weight in derived} == {"key_rows", "value_rows"}
    assert records[0].why_not == "no"


# the real head


@pytest.fixture(params=DECISIONS, ids=list(DECISIONS))
def scene(request: pytest.FixtureRequest) -> Scene:
    return Scene(DECISIONS[request.param])


def test_programs_of_the_head_keep_their_ids_values_and_writes(scene: Scene) -> None:
    weights = scene.binding.weights
    for name, program in scene.programs().items():
        folded, derived, _ = fold_weights(program, why_not={})
        verify(folded)
        assert writes(folded) == writes(program)
        before, after = scene.run(program), scene.run(folded, weights={**weights, **derived_tensors(derived, weights)})
        for got, expected in ((after.outputs, before.outputs), (after.states, before.states)):
            for key, tensor in expected.items():
                if not tensor.is_floating_point():
                    assert torch.equal(got[key], tensor), (name, key)
                    continue
                ours, theirs = got[key].nan_to_num(0.0), tensor.nan_to_num(0.0)
                assert torch.equal(got[key].isnan(), tensor.isnan())
                assert (ours - theirs).norm() <= HOLD_SUMS * theirs.norm(), (name, key)


def test_drafts_of_a_chain_share_each_derived_weight(scene: Scene) -> None:
    _, one, _ = fold_weights(scene.binding.step(is_first=True), why_not={})
    folded, many, _ = fold_weights(scene.chain(3), why_not={})
    assert {weight.sources for weight in one} <= {weight.sources for weight in many}
    # drafts 2..K of a shared selection ask for no index query, and so fold other products
    assert len(many) <= 2 * len(one)
    assert len({weight.name for weight in many}) == len(many)
    read = [arg.name for call in folded.calls for arg in call.args if arg.name in {weight.name for weight in many}]
    assert len(read) > len(many)


def test_halves_of_kv_b_are_its_rows(scene: Scene) -> None:
    config, weights = scene.binding.config, scene.binding.weights
    _, derived, _ = fold_weights(scene.binding.step(is_first=True), why_not={FOLD_PROJECTIONS: "no"})
    keys, values = (derived_tensors(derived, weights)[f"self_attn.kv_b_proj.{half}_rows"] for half in ("key", "value"))
    per_head = weights["self_attn.kv_b_proj"].unflatten(0, (config.num_attention_heads, -1))
    nope = config.qk_nope_head_dim
    assert torch.equal(keys.unflatten(0, (config.num_attention_heads, -1)), per_head[:, :nope])
    assert torch.equal(values.unflatten(0, (config.num_attention_heads, -1)), per_head[:, nope:])
    assert keys.is_contiguous()
    assert keys.data_ptr() != weights["self_attn.kv_b_proj"].data_ptr()


def test_parts_lie_side_by_side_and_cover_the_product() -> None:
    folded, derived, _ = fold_weights(Scene({}).binding.step(is_first=True), why_not={SPLIT_KV_B: "no"})
    assert len(derived) == 3
    for weight in derived:
        [product] = [call for call in folded.calls if weight.name in {arg.name for arg in call.args}]
        parts = [call.node for call in folded.calls if call.args[0] is product.results[0]]
        spans = [(part.start, part.start + part.width) for part in parts if isinstance(part, Slice)]
        assert spans[0][0] == 0
        assert all(left[1] == right[0] for left, right in pairwise(spans))
        assert spans[-1][1] == product.results[0].type.shape[1]  # type: ignore[union-attr]
