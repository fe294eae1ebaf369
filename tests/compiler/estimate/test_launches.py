"""The cost of grouped calls: what stays inside a launch is neither read nor written."""

import pytest

from circuit import Circuit, Cost, bf16, f32
from compiler import group_launches, launch_of_call, rank_cuts, roofline_of, split_launch, total_cost
from compiler.devices import Device, Figure
from nodes import Add, Argmax, Linear, RmsNorm, RoutedExperts, SplitHeads, TopkRouter

N, WIDTH, VOCAB = 3, 20, 61


def head() -> Circuit:
    c = Circuit("head")
    x = c.input("x", bf16(N, WIDTH))
    normed = RmsNorm(eps=1e-5)(x, c.weight("norm", bf16(WIDTH))).named("normed")
    logits = Linear()(normed, c.weight("lm_head", bf16(VOCAB, WIDTH))).named("logits")
    c.output("token", Argmax()(logits).named("draft"))
    return c


def grouped(circuit: Circuit, **launch_of: str) -> dict[str, Cost]:
    launches = group_launches(circuit, launch_of, numerics="planned", kernel="planned")
    return {launch.name: launch.cost for launch in launches}


def apart(circuit: Circuit) -> Cost:
    return total_cost(launch_of_call(circuit, call, numerics="", kernel="") for call in circuit.calls)


def test_one_launch_reads_sources_and_writes_outputs_only() -> None:
    circuit = head()
    cost = grouped(circuit, normed="all", logits="all", draft="all")["all"]
    assert cost.bytes_read == 2 * (N * WIDTH + WIDTH + VOCAB * WIDTH)
    assert cost.bytes_written == 8 * N
    assert cost.flops == apart(circuit).flops


def test_what_crosses_launches_is_written_once_and_read_once() -> None:
    costs = grouped(head(), normed="first", logits="second", draft="second")
    assert costs["first"] == Cost(4 * N * WIDTH, 2 * (N * WIDTH + WIDTH), 2 * N * WIDTH)
    assert costs["second"].bytes_read == 2 * (N * WIDTH + VOCAB * WIDTH)
    assert costs["second"].bytes_written == 8 * N


def test_single_calls_cost_what_their_nodes_say() -> None:
    circuit = head()
    costs = grouped(circuit, normed="normed", logits="logits", draft="draft")
    assert sum(costs.values(), start=Cost()) == apart(circuit)


def test_an_output_is_written_though_its_launch_reads_it_too() -> None:
    circuit = head()
    circuit.output("logits", circuit.value("logits"))
    cost = grouped(circuit, normed="all", logits="all", draft="all")["all"]
    assert cost.bytes_written == 8 * N + 2 * N * VOCAB


def test_a_value_that_two_calls_of_a_launch_read_is_read_once() -> None:
    c = Circuit("twice")
    x = c.input("x", bf16(N, WIDTH))
    made = Add()(x, x).named("made")
    left = Linear()(made, c.weight("a", bf16(WIDTH, WIDTH))).named("left")
    right = Linear()(made, c.weight("b", bf16(WIDTH, WIDTH))).named("right")
    c.output("sum", Add()(left, right).named("sum"))
    costs = grouped(c, made="first", left="second", right="second", sum="second")
    assert costs["second"].bytes_read == 2 * (N * WIDTH + 2 * WIDTH * WIDTH)
    assert costs["second"].bytes_written == 2 * N * WIDTH


def test_a_view_passes_through_whichever_launch_it_stands_in() -> None:
    c = Circuit("view")
    q = Linear()(c.input("x", bf16(N, WIDTH)), c.weight("w", bf16(12, WIDTH))).named("q")
    heads = SplitHeads(num_heads=3)(q).named("heads")
    c.output("out", Add()(heads, heads).named("out"))
    for place in ("first", "second"):
        costs = grouped(c, q="first", heads=place, out="second")
        assert costs["first"].bytes_written == 2 * N * 12
        assert costs["second"].bytes_read == 2 * 2 * N * 12  # Add counts both of its sides
    assert grouped(c, q="all", heads="all", out="all")["all"].bytes_read == 2 * (N * WIDTH + 12 * WIDTH) + 2 * N * 12


def test_a_call_without_a_launch_and_a_launch_that_waits_for_a_later_one_are_refused() -> None:
    with pytest.raises(ValueError, match=r"no launch for .*add 'draft' to one"):
        grouped(head(), normed="a", logits="a")
    with pytest.raises(ValueError, match="launch 'a' reads 'logits' of the later launch 'b'"):
        grouped(head(), normed="a", draft="a", logits="b")


def experts() -> Circuit:
    c = Circuit("experts")
    x = c.input("x", bf16(N, WIDTH))
    logits = c.input("logits", f32(N, 6))
    ids, weights = TopkRouter(top_k=2, n_group=1, topk_group=1, norm_topk_prob=True, scale=1.0)(
        logits, c.weight("bias", f32(6))
    )
    gate_up, down = c.weight("gate_up", bf16(6, 18, WIDTH)), c.weight("down", bf16(6, WIDTH, 9))
    ids, weights = ids.named("ids"), weights.named("weights")
    c.output("out", RoutedExperts(limit=1.0)(x, ids, weights, gate_up, down).named("out"))
    return c


def test_split_launches_share_one_call_and_lose_nothing() -> None:
    circuit = experts()
    whole = group_launches(circuit, {"ids": "router", "out": "experts"}, numerics="", kernel="")
    parts = split_launch(circuit, whole, value="out", weight="gate_up", name="gate_up")
    assert [launch.name for launch in parts] == ["router", "gate_up", "experts"]
    assert total_cost(parts) == total_cost(whole)
    # gate and up are two of the three matrices
    assert parts[1].weight_bytes == pytest.approx(2 * parts[2].weight_bytes, abs=2)
    assert parts[1].cost.bytes_written == 0
    assert parts[1].weights == ("gate_up",)
    assert "gate_up" not in parts[2].weights


def test_split_of_a_call_that_is_not_there_changes_nothing() -> None:
    whole = group_launches(head(), {"normed": "a", "logits": "a", "draft": "a"}, numerics="", kernel="")
    assert split_launch(head(), whole, value="experts_out", weight="gate_up", name="b") == whole


def a_device(**figures: float) -> Device:
    return Device(name="d", title="d", **{key: Figure(value=value, source="s") for key, value in figures.items()})


def test_floor_is_the_slower_of_moving_and_computing() -> None:
    device = a_device(memory_bandwidth_gbps=1.0, bf16_tflops=0.001)
    roofline = roofline_of(device, is_16_bit=True)
    assert roofline.floor_us(Cost(1, 600, 400)) == pytest.approx(1.0)
    assert roofline.floor_us(Cost(5000, 600, 400)) == pytest.approx(5.0)
    # a dtype whose rate is not stated is bound by its bytes
    assert roofline_of(device, is_16_bit=False).floor_us(Cost(5000, 600, 400)) == pytest.approx(1.0)


def test_floor_takes_the_measured_rate_where_there_is_one_and_what_is_given_before_both() -> None:
    both = a_device(memory_bandwidth_gbps=4.0, copy_rate_gbps=2.0)
    assert roofline_of(both, is_16_bit=True).bytes_per_s == 2e9
    assert roofline_of(both, is_16_bit=True).bandwidth_kind == "measured copy rate"
    assert roofline_of(both, is_16_bit=True, bandwidth=1e9).bytes_per_s == 1e9
    assert roofline_of(a_device(memory_bandwidth_gbps=4.0), is_16_bit=True).bandwidth_kind == "datasheet"


def test_cuts_are_ranked_and_save_no_more_than_is_there() -> None:
    circuit = head()
    launches = group_launches(circuit, {"normed": "a", "logits": "b", "draft": "b"}, numerics="", kernel="")
    roofline = roofline_of(a_device(memory_bandwidth_gbps=1.0, launch_gap_us=0.1), is_16_bit=True)
    cuts = rank_cuts(launches, roofline, num_launches=2)
    assert [cut.where for cut in cuts] == ["b", "all launches", "a"]
    assert [cut.saves_us for cut in cuts] == pytest.approx([VOCAB * WIDTH / 1e3, 0.2, WIDTH / 1e3])
    # an operation that is bound by its arithmetic gains nothing from fewer bytes
    slow = roofline_of(a_device(memory_bandwidth_gbps=1.0, bf16_tflops=1e-9), is_16_bit=True)
    assert [cut.saves_us for cut in rank_cuts(launches, slow, num_launches=2)] == [0.0, 0.0]
