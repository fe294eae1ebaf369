"""Region: a circuit as one node, with the same bits, types that follow, and a cost of what crosses its border."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from hypothesis import given, settings

from circuit import (
    Circuit,
    CircuitError,
    Cost,
    DocumentError,
    StateType,
    TypeRuleError,
    VerifyError,
    bf16,
    diff,
    f32,
    from_document,
    from_graph_module,
    i64,
    interpret,
    load_document,
    node_types,
    save_document,
    to_graph_module,
    to_json,
    to_text,
    to_yaml,
    verify,
)
from compiler.passes import bind_dims
from compiler.region import Region
from nodes import Add, AppendCache, Embedding, Linear, RmsNorm, SelectTopk, Slice, SplitHeads
from tests.support.circuit_strategies import PROPERTY, circuits
from tests.support.node_cases import same_bits
from tests.support.toy_nodes import toy_circuit, toy_tensors


def norm_linear(width: int = 3) -> Circuit:
    circuit = Circuit("norm_linear")
    x = circuit.input("x", f32("n", 8))
    normed = RmsNorm(eps=1e-5)(x, circuit.weight("gain", f32(8))).named("h")
    circuit.output("y", Linear()(normed, circuit.weight("w", f32(width, 8))).named("y"))
    return circuit


def around(region: Region, circuit: Circuit) -> Circuit:
    """A circuit of one call, which takes and gives what `circuit` does."""
    outer = Circuit("outer")
    args = [outer.input(name, value.type) for name, value in circuit.inputs.items()]  # type: ignore[arg-type]
    args += [outer.weight(name, value.type) for name, value in circuit.weights.items()]  # type: ignore[arg-type]
    args += [outer.state(name, value.type) for name, value in circuit.states.items()]  # type: ignore[arg-type]
    names = [f"out {number}" for number in range(len(region.results))]
    results = dict(zip(region.results, outer.add_call(region, args, names=names), strict=True))
    for name in circuit.outputs:
        outer.output(name, results[name])
    for name in circuit.states:
        outer.state_output(name, results[name] if name in region.writes else outer.states[name])
    return outer


def cost_of(circuit: Circuit, **dims: int) -> Cost:
    [call] = bind_dims(around(Region.of("r", circuit), circuit), dims).calls
    return call.node.cost(*(arg.type for arg in call.args))


# interface and types


def test_ports_and_results_follow_from_the_body() -> None:
    region = Region.of("toy", toy_circuit())
    assert region.ports == ("x", "other", "norm.gain", "cache")
    assert region.results == ("cache", "y", "magnitude")
    assert (region.reads, region.writes) == ((), ("cache",))
    read_only = Circuit("read")
    cache = read_only.state("cache", StateType("paged", f32("num_blocks", 4, 8)))
    scores, position = read_only.input("scores", f32("n", 5)), read_only.input("position", i64("n"))
    read_only.output("chosen", SelectTopk(topk=3, pool=1)(scores, position))
    read_only.state_output("cache", cache)
    region = Region.of("read", read_only)
    assert (region.reads, region.writes, region.results) == (("cache",), (), ("chosen",))
    # other regions, and the catalogue's entry, keep their own
    assert Region.of("n", norm_linear()).ports == ("x", "gain", "w")
    assert (Region.ports, Region.writes) == ((), ())
    assert node_types()["Region"] is Region


def test_dims_of_the_body_take_what_they_meet() -> None:
    region = Region.of("r", norm_linear())
    assert region.infer(f32("rows", 8), f32(8), f32(3, 8)) == f32("rows", 3)
    assert region.infer(f32(5, 8), f32(8), f32(3, 8)) == f32(5, 3)
    assert region.infer(f32("2*k", 8), f32(8), f32(3, 8)) == f32("2*k", 3)


@pytest.mark.parametrize("given", [f32("n", 9), bf16("n", 8), f32("n", 8, 1), f32(8)])
def test_type_that_is_not_the_bodys_is_refused_at_its_port(given: Any) -> None:
    with pytest.raises(TypeRuleError, match=r"Region.x: expected f32\[n, 8\] as its body declares, got "):
        Region.of("r", norm_linear()).result_types(given, f32(8), f32(3, 8))


def test_one_dim_is_one_size_at_every_port() -> None:
    circuit = Circuit("sum")
    left, right = circuit.input("left", f32("n", 8)), circuit.input("right", f32("n", 8))
    circuit.output("y", Add()(left, right))
    region = Region.of("r", circuit)
    with pytest.raises(TypeRuleError, match=r"Region.right: expected f32\[n, 8\] as its body declares, got f32\[4"):
        region.infer(f32(3, 8), f32(4, 8))


def test_expression_over_a_dim_that_stands_nowhere_alone_takes_a_number() -> None:
    circuit = Circuit("pools")
    scores, position = circuit.input("scores", f32("n", "16*max_blocks")), circuit.input("position", i64("n"))
    circuit.output("chosen", SelectTopk(topk=8, pool=4)(scores, position).named("chosen"))
    outer = bind_dims(around(Region.of("r", circuit), circuit), {"n": 2, "max_blocks": 3})
    [call] = outer.calls
    assert call.args[0].type == f32(2, 48)
    scores_now, position_now = torch.randn(2, 48), torch.tensor([70, 5])
    ran = interpret(outer, inputs={"scores": scores_now, "position": position_now}, weights={}, states={})
    assert torch.equal(ran.outputs["chosen"], SelectTopk(topk=8, pool=4).reference(scores_now, position_now))


def test_fault_inside_carries_the_place() -> None:
    circuit = Circuit("r")
    split = SplitHeads(num_heads=3)(circuit.input("x", f32("n", "3*d")))
    circuit.output("y", split)
    with pytest.raises(TypeRuleError, match=r"SplitHeads\.x") as caught:
        Region.of("heads", circuit).infer(f32("n", 7))
    assert caught.value.__notes__[-1] == "inside the region 'heads'"


# the reference is the body


@settings(PROPERTY, max_examples=60)
@given(circuits())
def test_region_of_any_circuit_runs_as_the_circuit(circuit: Circuit) -> None:
    if not circuit.calls or {*circuit.outputs} & {*circuit.states}:
        return
    outer = around(Region.of("any", circuit), circuit)
    verify(outer)
    generator = torch.Generator().manual_seed(3)
    tensors = {
        "inputs": {name: torch.randn(5, 3, generator=generator) for name in circuit.inputs},
        "weights": {name: torch.randn(3, generator=generator) for name in circuit.weights},
        "states": {name: torch.randn(2, 2, 3, generator=generator) for name in circuit.states},
    }
    expected, got = interpret(circuit, **tensors), interpret(outer, **tensors)
    assert all(same_bits(got.outputs[name], tensor) for name, tensor in expected.outputs.items())
    assert all(same_bits(got.states[name], tensor) for name, tensor in expected.states.items())
    assert to_text(from_document(to_yaml(outer))) == to_text(outer)
    assert to_text(from_document(to_json(outer))) == to_text(outer)


def test_region_changes_no_argument_and_goes_through_fx() -> None:
    circuit = toy_circuit()
    outer = around(Region.of("toy", circuit), circuit)
    module = to_graph_module(outer)
    assert to_text(from_graph_module(module)) == to_text(outer)
    tensors = toy_tensors()
    before = {name: tensor.clone() for table in tensors.values() for name, tensor in table.items()}
    outputs, states = module(*tensors["inputs"].values(), *tensors["states"].values(), *tensors["weights"].values())
    expected = interpret(circuit, **tensors)
    assert all(torch.equal(outputs[name], tensor) for name, tensor in expected.outputs.items())
    assert torch.equal(states["cache"], expected.states["cache"])
    assert all(torch.equal(before[name], held) for table in tensors.values() for name, held in table.items())


# the cost


def test_cost_counts_sources_once_and_nothing_inside() -> None:
    circuit = Circuit("shared")
    x = circuit.input("x", f32("n", 8))
    normed = RmsNorm(eps=1e-5)(x, circuit.weight("gain", f32(8)))
    first = Linear()(normed, circuit.weight("w1", f32(3, 8)))
    second = Linear()(normed, circuit.weight("w2", f32(5, 8)))
    circuit.output("first", first)
    circuit.output("second", second)
    # the residual reads x again, and it is there already
    circuit.output("sum", Add()(x, normed))
    cost = cost_of(circuit, n=7)
    assert cost.bytes_read == 4 * (7 * 8 + 8 + 3 * 8 + 5 * 8)
    assert cost.bytes_written == 4 * 7 * (3 + 5 + 8)
    inner = Region.of("r", circuit).call_costs(f32(7, 8), f32(8), f32(3, 8), f32(5, 8))
    assert cost.flops == sum(one.flops for one in inner)
    assert sum(one.bytes_read for one in inner) > cost.bytes_read


def test_cost_of_a_value_read_twice_by_one_node_is_its_size() -> None:
    circuit = Circuit("twice")
    x = circuit.input("x", f32("n", 8))
    circuit.output("y", Add()(x, x))
    assert cost_of(circuit, n=3).bytes_read == 4 * 3 * 8


def test_cost_reads_only_the_rows_of_a_table_that_its_node_reads() -> None:
    circuit = Circuit("gather")
    row = Embedding()(circuit.input("token", i64("n")), circuit.weight("table", f32(1000, 8)))
    circuit.output("y", RmsNorm(eps=1e-5)(row, circuit.weight("gain", f32(8))))
    assert cost_of(circuit, n=3) == Cost(
        RmsNorm(eps=1e-5).cost(f32(3, 8), f32(8)).flops, 3 * 8 + 4 * 3 * 8 + 4 * 8, 4 * 3 * 8
    )


def test_cost_of_a_part_that_leaves_is_the_part() -> None:
    circuit = Circuit("parts")
    wide = Linear()(circuit.input("x", f32("n", 8)), circuit.weight("w", f32(9, 8)))
    circuit.output("left", Slice(start=0, width=2)(wide))
    circuit.output("heads", SplitHeads(num_heads=2)(Slice(start=5, width=4)(wide)))
    cost = cost_of(circuit, n=5)
    assert cost.bytes_written == 4 * 5 * (2 + 4)
    assert cost.bytes_read == 4 * (5 * 8 + 9 * 8)


def test_cost_reads_a_view_of_a_source_as_what_it_shows_and_writes_none() -> None:
    circuit = Circuit("view")
    wide = circuit.input("wide", f32("n", 9))
    part = Slice(start=2, width=3)(wide)
    circuit.output("part", part)
    circuit.output("sum", Add()(part, part))
    cost = cost_of(circuit, n=5)
    assert cost.bytes_read == 4 * 5 * 3
    assert cost.bytes_written == 4 * 5 * 3


def test_cost_of_a_state_is_what_its_nodes_say() -> None:
    circuit = Circuit("write")
    cache = circuit.state("cache", StateType("paged", f32("num_blocks", 4, 8)))
    rows = Linear()(circuit.input("x", f32("n", 5)), circuit.weight("w", f32(8, 5)))
    circuit.state_output("cache", AppendCache()(cache, rows, circuit.input("slots", i64("n"))))
    cost = cost_of(circuit, n=3, num_blocks=1000)
    assert cost.bytes_written == 4 * 3 * 8
    assert cost.bytes_read == 4 * (3 * 5 + 8 * 5) + 8 * 3


def test_cost_refuses_open_dims() -> None:
    with pytest.raises(TypeRuleError, match="n not bound"):
        Region.of("r", norm_linear()).cost(f32("n", 8), f32(8), f32(3, 8))


# documents, text, equality


def test_text_shows_the_body_under_its_call_and_two_bodies_are_two_texts() -> None:
    circuit = norm_linear()
    text = to_text(around(Region.of("r", circuit), circuit))
    assert '  %"out 0": f32[n, 3] = Region(rule="r")(%x, %gain, %w)\n    | circuit norm_linear\n' in text
    assert "    |   %y: f32[n, 3] = Linear()(%h, %w)\n" in text
    changed = norm_linear()
    changed.rename(changed.value("h"), "other")
    assert to_text(around(Region.of("r", changed), changed)) != text
    assert diff(around(Region.of("r", circuit), circuit), around(Region.of("r", changed), changed))


def test_regions_are_equal_by_rule_and_body() -> None:
    one, same, other = Region.of("r", norm_linear()), Region.of("r", norm_linear()), Region.of("q", norm_linear())
    assert one == same
    assert hash(one) == hash(same)
    assert one != other
    assert one != Region.of("r", norm_linear(width=4))
    assert str(one) == "Region(rule='r', 2 calls)"


def test_region_survives_a_file(tmp_path: Any) -> None:
    circuit = toy_circuit()
    outer = around(Region.of("toy", circuit), circuit)
    for name in ("outer.yaml", "outer.json"):
        save_document(outer, tmp_path / name)
        assert to_text(load_document(tmp_path / name)) == to_text(outer)


def document(**changes: Any) -> dict[str, Any]:
    circuit = norm_linear()
    held = json.loads(to_json(around(Region.of("r", circuit), circuit)))
    held["nodes"][0]["attributes"]["body"] |= changes
    return held


@pytest.mark.parametrize(
    ("changes", "message", "kind"),
    [
        ({"format": 2}, "the body of region 'r': format: expected 1", DocumentError),
        ({"nodes": [{"node": "Lienar", "inputs": {}, "results": "y"}]}, "unknown node type 'Lienar'", DocumentError),
        ({"outputs": {}}, "reaches no output", VerifyError),
        ({"inputs": {"x": "f32[n, 7]"}}, "expected f32", TypeRuleError),
        ({"nodes": [{"node": "Region", "inputs": {}, "results": "y"}]}, "fuse once", CircuitError),
    ],
)
def test_body_that_is_no_circuit_is_refused_with_its_place(
    changes: dict[str, Any], message: str, kind: type[CircuitError]
) -> None:
    with pytest.raises(kind, match=message) as caught:
        from_document(document(**changes), source="outer.yaml")
    assert any("nodes[0].attributes" in note for note in caught.value.__notes__)


def test_output_named_like_a_written_state_is_refused() -> None:
    circuit = Circuit("clash")
    cache = circuit.state("cache", StateType("paged", f32("num_blocks", 4, 8)))
    rows = circuit.input("rows", f32("n", 8))
    circuit.state_output("cache", AppendCache()(cache, rows, circuit.input("slots", i64("n"))))
    circuit.output("cache", Add()(rows, rows))
    with pytest.raises(CircuitError, match="output 'cache' has the name of a state it writes; rename it"):
        Region.of("r", circuit)
