"""place_collectives: what becomes of a split weight, and that the circuit of all ranks together means the whole one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from circuit import Circuit, LoweringError, RunResult, VerifyError, communicating, f32, interpret, to_text, verify
from compiler.compile import PASSES, Request, compile_circuit
from compiler.passes.place_collectives import Split, collectives, place_collectives
from compiler.plan import plan_program
from compiler.target import target_of
from nodes import AllReduce, Argmax, Linear, RmsNorm
from tests.support.head_scene import Scene

N = 3


class Threads:
    """Ranks as threads of this process: a rank that makes another exchange than the rest fails by timeout."""

    def __init__(self, num_ranks: int) -> None:
        self.num_ranks = num_ranks
        self.parts: list[Tensor | None] = [None] * num_ranks
        self.barrier = threading.Barrier(num_ranks, timeout=10)

    def gather(self, rank: int, tensor: Tensor) -> Tensor:
        self.parts[rank] = tensor
        self.barrier.wait()
        stacked = torch.stack([part for part in self.parts if part is not None])
        self.barrier.wait()
        return stacked

    def run(self, body: Callable[[int], RunResult], axes: tuple[str, ...] = ("tp", "ep")) -> list[RunResult]:
        results: list[RunResult | BaseException | None] = [None] * self.num_ranks

        def work(rank: int) -> None:
            try:
                with communicating({axis: _Thread(self, rank) for axis in axes}):
                    results[rank] = body(rank)
            except BaseException as error:
                results[rank] = error
                self.barrier.abort()

        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(self.num_ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return results  # type: ignore[return-value]


class _Thread:
    def __init__(self, threads: Threads, rank: int) -> None:
        self.threads, self.rank, self.num_ranks = threads, rank, threads.num_ranks

    def all_reduce(self, tensor: Tensor) -> Tensor:
        return self.threads.gather(self.rank, tensor).sum(0)

    def all_gather(self, tensor: Tensor) -> Tensor:
        return self.threads.gather(self.rank, tensor)


def two_products(*, reads_whole: bool = False) -> Circuit:
    """x through 8 columns and back, with a residual; `reads_whole` norms the columns in between."""
    c = Circuit("two_products")
    x = c.input("x", f32("n", 6))
    up = Linear()(x, c.weight("up", f32(8, 6))).named("up_out")
    if reads_whole:
        up = RmsNorm(eps=1e-5)(up, c.weight("gain", f32(8))).named("normed")
    down = Linear()(up, c.weight("down", f32(6, 8))).named("down_out")
    c.output("y", down)
    return c


def shares(rank: int, num_ranks: int = 2, size: int = 8) -> dict[str, Split]:
    each = size // num_ranks
    part = Split("tp", num_ranks, 0, rank * each, (rank + 1) * each, size)
    return {"up": part, "down": replace(part, dim=1)}


def weights_of(circuit: Circuit, splits: Mapping[str, Split]) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(5)
    whole = {
        name: torch.randn(value.type.sizes(), generator=generator)  # type: ignore[union-attr]
        for name, value in circuit.weights.items()
    }
    return {
        name: weight if name not in splits else weight.narrow(splits[name].dim, splits[name].start, splits[name].width)
        for name, weight in whole.items()
    }


def run_on(num_ranks: int, circuit: Circuit, splits: Callable[[int], dict[str, Split]]) -> list[RunResult]:
    inputs = {"x": torch.randn(N, 6, generator=torch.Generator().manual_seed(6))}

    def body(rank: int) -> RunResult:
        placed = place_collectives(circuit, splits(rank))
        verify(placed)
        return interpret(placed, inputs=inputs, weights=weights_of(circuit, splits(rank)), states={})

    return Threads(num_ranks).run(body)


def test_part_of_a_sum_is_added_up_at_once_under_the_name_of_the_whole() -> None:
    placed = place_collectives(two_products(), shares(1))
    assert to_text(placed).splitlines()[-4:] == [
        "  %up_out: f32[n, 4] = Linear()(%x, %up)",
        "  %down_out.part: f32[n, 6] = Linear()(%up_out, %down)",
        '  %down_out: f32[n, 6] = AllReduce(axis="tp", num_ranks=2)(%down_out.part)',
        "  output y = %down_out",
    ]
    assert placed.weights["down"].type == f32(6, 4)


def test_reader_that_needs_the_whole_has_it_gathered_once() -> None:
    placed = place_collectives(two_products(reads_whole=True), {"up": shares(0)["up"]})
    assert [str(call.node) for call in collectives(placed)] == ["AllGather(axis='tp', num_ranks=2)"]
    assert placed.value("up_out.whole").type == f32("n", 8)


@pytest.mark.parametrize("reads_whole", [False, True])
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_ranks_together_are_the_whole_circuit(reads_whole: bool, num_ranks: int) -> None:
    circuit = two_products(reads_whole=reads_whole)

    def splits(rank: int) -> dict[str, Split]:
        held = shares(rank, num_ranks)
        return {"up": held["up"]} if reads_whole else held

    (whole,) = run_on(1, circuit, lambda rank: {})
    for part in run_on(num_ranks, circuit, splits):
        torch.testing.assert_close(part.outputs["y"], whole.outputs["y"], rtol=1e-5, atol=1e-6)


def test_one_rank_keeps_the_circuit_itself() -> None:
    circuit = two_products()
    assert place_collectives(circuit, {}) is circuit
    assert place_collectives(circuit, {"up": Split("tp", 1, 0, 0, 8, 8)}) is circuit
    assert place_collectives(circuit, {"not here": shares(0)["up"]}) is circuit


def test_uneven_part_that_must_be_gathered_is_refused_by_name() -> None:
    uneven = {"up": Split("tp", 3, 0, 0, 3, 8)}
    with pytest.raises(LoweringError, match=r"%up_out: f32\[n, 3\] is split over 3 ranks along dim 1.*RmsNorm"):
        place_collectives(two_products(reads_whole=True), uneven)


def test_split_of_another_checkpoint_is_refused() -> None:
    with pytest.raises(LoweringError, match="weight %up: expected 9 entries along dim 0"):
        place_collectives(two_products(), {"up": Split("tp", 3, 0, 0, 3, 9)})


def test_columns_without_the_matching_rows_are_refused() -> None:
    with pytest.raises(LoweringError, match=r"%down.*needs it whole"):
        place_collectives(two_products(), {"down": shares(0)["down"]})


# as a pass


@pytest.mark.parametrize("backend", ["inductor", "triton"])
def test_backend_that_cannot_exchange_refuses_the_circuit_by_name(backend: str) -> None:
    request = Request(target_of(backend), {"n": N}, splits=shares(0))
    expected = rf"AllReduce\(axis='tp', num_ranks=2\).*: a program of {backend} runs on one rank .*backend reference"
    with pytest.raises(LoweringError, match=expected):
        compile_circuit(two_products(), request)
    with pytest.raises(LoweringError, match=expected):
        plan_program(place_collectives(two_products(), shares(0)), name="p", backend=backend, dims={"n": N})


def test_pass_records_what_it_placed_and_plans_what_it_sends() -> None:
    request = Request(target_of("reference"), {"n": N}, splits=shares(0))
    compiled = compile_circuit(two_products(), request)
    (record,) = [record for record in compiled.records if record.name == "place collectives"]
    assert record.summary == "1 exchanges"
    (reduce,) = collectives(compiled.circuit)
    assert reduce.node.cost(*(arg.type for arg in reduce.args)).bytes_sent == N * 6 * 4
    whole = compile_circuit(two_products(), replace(request, splits={}))
    assert "place collectives: one rank" in [f"{record.name}: {record.summary}" for record in whole.records]


def test_pass_that_loses_an_exchange_is_caught() -> None:
    def lose(compiled, request):  # type: ignore[no-untyped-def]
        c = Circuit("two_products")
        x = c.input("x", f32("n", 6))
        up = Linear()(x, c.weight("up", f32(4, 6)))
        c.output("y", Linear()(up, c.weight("down", f32(6, 4))).named("down_out"))
        return replace(compiled, circuit=c, records=(*compiled.records, replace(compiled.records[-1], name="lose")))

    request = Request(target_of("reference"), {"n": N}, splits=shares(0))
    index = [run.__name__ for run in PASSES].index("_place_collectives") + 1
    with pytest.raises(VerifyError, match=r"pass 'lose': expected the exchanges down_out = AllReduce.*got none"):
        compile_circuit(two_products(), request, passes=(*PASSES[:index], lose, *PASSES[index:]))


def test_argmax_over_a_split_vocabulary_exchanges_pairs_and_not_logits() -> None:
    c = Circuit("head")
    logits = Linear()(c.input("x", f32("n", 6)), c.weight("up", f32(8, 6))).named("logits")
    c.output("token", Argmax()(logits).named("draft"))
    placed = place_collectives(c, {"up": shares(1)["up"]})
    assert [type(call.node).__name__ for call in placed.calls] == ["Linear", "LocalArgmax", "ArgmaxExchange"]
    (exchange,) = collectives(placed)
    assert str(exchange.node.payload(*(arg.type for arg in exchange.args))) == "f64[n, 2]"
    (whole,) = run_on(1, c, lambda rank: {})
    for part in run_on(2, c, lambda rank: {"up": shares(rank)["up"]}):
        assert torch.equal(part.outputs["token"], whole.outputs["token"])


def test_head_without_its_context_part_exchanges_twice_where_lm_head_is_whole() -> None:
    binding = Scene({}).binding
    heads, v, nope = 3, binding.config.v_head_dim, binding.config.qk_nope_head_dim
    part = Split("tp", 3, 0, 1, 2, heads)
    splits = {
        "self_attn.q_b_proj": part.along(0, entry=nope),
        "self_attn.kv_b_proj": part.along(0, entry=nope + v),
        "self_attn.o_proj": part.along(1, entry=v),
        "mlp.experts.gate_up_proj": Split("ep", 3, 0, 2, 4, 6),
        "mlp.experts.down_proj": Split("ep", 3, 0, 2, 4, 6),
    }
    assert all(splits.values())
    held: dict[str, Split] = {name: split for name, split in splits.items() if split}
    step = place_collectives(binding.step(is_first=True), held)
    verify(step)
    assert [call.results[0].name for call in collectives(step)] == ["attn_out", "experts_out"]
    context = binding.context()
    assert place_collectives(context, held) is context
    # the residual and the shared expert are added to what is whole
    for name in ("x1", "moe_out"):
        assert all(not arg.name.endswith(".part") for arg in step.value(name).call.args)  # type: ignore[union-attr]


def test_collective_without_a_communicator_says_what_is_missing() -> None:
    c = Circuit("alone")
    c.output("y", AllReduce(axis="ep", num_ranks=2)(c.input("x", f32("n", 6))).named("y"))
    with pytest.raises(Exception, match="expected a communicator of 2 ranks along 'ep', got none"):
        interpret(c, inputs={"x": torch.ones(2, 6)}, weights={}, states={})
    with pytest.raises(Exception, match="expected 2 ranks along 'ep', got 3"):
        Threads(3).run(lambda rank: interpret(c, inputs={"x": torch.ones(2, 6)}, weights={}, states={}))
