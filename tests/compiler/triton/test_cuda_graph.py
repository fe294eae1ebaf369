"""Capture and replay without a device: what a graph may bake in, what drops it, and what happens where it fails."""

from __future__ import annotations

import gc
import logging
import weakref
from typing import Any

import pytest
import torch

from circuit import LoweringError
from compiler.triton.cuda_graph import CudaGraphProgram
from compiler.triton.launch import Launch
from tests.support.fake_cuda import FakeCuda, ToyRun, toy_kernels, toy_plan

# the launches of a toy, which need triton's word that nothing of this process runs on a GPU
pytestmark = pytest.mark.interpreted


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    return FakeCuda(monkeypatch)


@pytest.fixture
def run(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> ToyRun:
    return ToyRun(cuda, monkeypatch)


def test_replays_are_the_launches_at_every_length(run: ToyRun) -> None:
    """The first run captures; what it drafts, and what every later one does, is what the launches draft."""
    tokens = [run.check(position, seed=position) for position in (0, 1, 3, 4, 6, 2)]
    assert len({tuple(row) for row in tokens}) > 1
    assert run.captured.counts == {"captured": 1, "replayed": 6}


def test_each_number_of_steps_is_a_graph_in_any_order(run: ToyRun) -> None:
    for position, num_steps in ((3, 2), (2, 1), (4, 2), (5, 1)):
        run.check(position, num_steps=num_steps)
    assert run.captured.counts == {"captured": 2, "replayed": 4}


def test_capture_is_on_a_stream_of_its_own_after_a_warm_up(run: ToyRun) -> None:
    run.captured.run(states=run.states, weights=run.weights, inputs=run.inputs(3), num_steps=1, outputs=("token",))
    log = run.cuda.log
    begins = log.index("capture begins")
    assert log[:begins] == ["side waits for main", *["launch on side"] * 4, "wait for side"]
    assert log[begins : begins + 3] == ["capture begins", "capture ends", "main waits for side"]
    # the self-test: launches and a replay, at two lengths
    assert log[begins + 3 :] == [*["launch on main"] * 2, *["wait for all"] * 2] * 2


@pytest.mark.parametrize("baked", ["position", "token"])
def test_what_is_baked_in_is_caught_by_the_self_test(run: ToyRun, baked: str, caplog: pytest.LogCaptureFixture) -> None:
    """A host that reads a length when a launch is started, and starts it with a number."""

    def bake(arguments: dict[str, Any]) -> dict[str, Any]:
        return arguments | {baked: arguments[baked].clone()} if baked in arguments else arguments

    run.cuda.bake = bake
    run.check(3)
    run.check(5, seed=1)
    assert run.captured.counts == {"uncaptured": 2}
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1
    assert said[0].startswith("program toy: not captured, its launches are started one by one from here on: ")
    assert "a replay at position 6 differs from its launches run one by one" in said[0]


def test_length_baked_in_at_the_second_test_alone_is_caught(run: ToyRun) -> None:
    """A kernel chosen by length: one that is right at the longest and not at half of it."""

    def bake(arguments: dict[str, Any]) -> dict[str, Any]:
        if run.cuda.capturing is None or "out" not in arguments:
            return arguments
        return arguments | {"position": arguments["position"].clone().fill_(7)}

    run.cuda.bake = bake
    run.check(3, num_steps=1)
    assert run.captured.counts == {"uncaptured": 1}
    assert "a replay at position 3 differs" in run.captured.why_uncaptured


def test_weights_bound_to_other_memory_are_captured_anew(run: ToyRun) -> None:
    before = run.check(3)
    run.weights["weight"] = run.weights["weight"].flip(0) * 7
    assert run.check(3) != before
    assert run.captured.counts == {"captured": 2, "recaptured": 1, "replayed": 2}


def test_cache_at_another_address_is_captured_anew(run: ToyRun) -> None:
    run.check(3)
    run.check(2, num_steps=1)
    old = run.states["latent_cache"]
    run.states["latent_cache"] = old.clone()
    old.fill_(torch.nan)
    run.check(4)
    # the other number of steps too
    run.check(5, num_steps=1)
    assert run.captured.counts == {"captured": 4, "recaptured": 1, "replayed": 4}


def test_weights_copied_into_their_memory_are_seen_by_the_same_graph(run: ToyRun) -> None:
    before = run.check(3)
    run.weights["weight"].copy_(run.weights["weight"].flip(0) * 7)
    assert run.check(3) != before
    assert run.captured.counts == {"captured": 1, "replayed": 2}


def test_kernels_loaded_anew_are_captured_anew(run: ToyRun) -> None:
    run.check(3)
    run.kernels.update(toy_kernels())
    run.check(4)
    assert run.captured.counts["recaptured"] == 1


def test_failing_capture_is_said_once_and_counted_and_its_launches_run(
    run: ToyRun, caplog: pytest.LogCaptureFixture
) -> None:
    """An operation that may not be captured, in the middle of the launches."""

    def disturb(launch: Launch) -> None:
        if run.cuda.capturing is not None and launch.name == "choose":
            torch.zeros(3)

    run.cuda.before_launch = disturb
    with caplog.at_level(logging.WARNING, logger="circuit"):
        for position in (3, 4, 5):
            run.check(position)
    assert run.captured.counts == {"uncaptured": 3}
    assert run.captured.why_uncaptured == "operation not permitted when stream is capturing: zeros"
    assert len(caplog.records) == 1
    # what the warm-up still does comes before the launches that follow
    assert run.cuda.log[run.cuda.log.index("capture ends") + 1] == "main waits for side"


def test_failure_of_a_launch_itself_is_raised_and_not_taken_for_a_failed_capture(run: ToyRun) -> None:
    def refuse(launch: Launch) -> None:
        raise ValueError(f"no such kernel: {launch.kernel}")

    run.cuda.before_launch = refuse
    with pytest.raises(ValueError, match=r"no such kernel: toy\.write"):
        run.check(3)
    run.cuda.before_launch = None
    run.check(3)
    assert run.captured.counts == {"captured": 1, "replayed": 1}


def test_counter_that_a_run_leaves_counted_up_is_caught(run: ToyRun) -> None:
    """The next replay would wait for too few, or take another for the last one."""
    choose = run.kernels["toy.choose"]

    class Forgetful:
        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            def start(**arguments: Any) -> None:
                choose[grid](**arguments)
                arguments["arrived"].add_(1)

            return start

    run.kernels["toy.choose"] = Forgetful()  # type: ignore[assignment]
    run.check(3)
    assert run.captured.counts == {"uncaptured": 1}
    assert "left a counter counted up" in run.captured.why_uncaptured


def test_capture_and_self_test_touch_nothing_but_the_null_block(run: ToyRun) -> None:
    before = run.states["latent_cache"].clone()
    run.check(3, num_steps=1)
    is_other = torch.ones(before.shape[:2], dtype=torch.bool)
    # row 3 of the sequence of blocks 1 and 4, row 2 of that of 3 and 2
    is_other[0] = is_other[1, 3] = is_other[3, 2] = False
    assert torch.equal(run.states["latent_cache"][is_other], before[is_other])


def test_nothing_is_collected_while_a_graph_is_captured(run: ToyRun) -> None:
    seen = []
    run.cuda.before_launch = lambda _: seen.append((run.cuda.capturing is not None, gc.isenabled()))
    run.check(3)
    assert (True, False) in seen
    assert (True, True) not in seen
    assert gc.isenabled()


def test_drop_releases_the_graphs_and_the_next_run_captures_again(run: ToyRun) -> None:
    run.check(3)
    graph = weakref.ref(run.captured._graphs[2].graph)
    run.captured.drop()
    gc.collect()
    assert graph() is None
    run.check(4)
    assert run.captured.counts == {"captured": 2, "replayed": 2}


def test_steps_that_the_plan_lacks_are_refused_and_leave_its_graphs(run: ToyRun) -> None:
    run.check(3)
    with pytest.raises(ValueError, match="expected 1 to 2 steps, got 3"):
        run.check(3, num_steps=3)
    run.check(4)
    assert run.captured.counts["captured"] == 1
    assert not run.captured.why_uncaptured


def test_device_that_captures_nothing_is_refused() -> None:
    with pytest.raises(LoweringError, match="CUDA graphs need a CUDA device, got cpu"):
        CudaGraphProgram(toy_plan(), device=torch.device("cpu"))
