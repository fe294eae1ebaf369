"""A stand-in for the part of torch.cuda that captures graphs, and a plan small enough to follow by hand.

A fake graph records the launches made while it captures, with the memory that they took then, and replays those. As on
a device nothing else may happen meanwhile: an operation on tensors is refused, and so is a launch on another stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

import compiler.triton.cuda_graph as cuda_graph
import compiler.triton.program as launch_program
from compiler.triton.cuda_graph import CudaGraphProgram
from compiler.triton.emission import LaunchPlan
from compiler.triton.launch import Buffer, BufferKind, Launch, View, contiguous
from compiler.triton.memory import Memory
from compiler.triton.program import LaunchProgram

GPU = torch.device("cuda", 0)
VIEWS = {"as_strided", "view", "alias", "detach", "select", "slice"}


class OnlyViews(TorchDispatchMode):
    """Refuses what a captured stream would record beside the launches, memory for its result included."""

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.__name__.partition(".")[0]  # type: ignore[attr-defined]
        if name not in VIEWS:
            raise RuntimeError(f"operation not permitted when stream is capturing: {name}")
        return func(*args, **(kwargs or {}))


class FakeStream:
    """A stream by name; what is asked of it is written down."""

    def __init__(self, cuda: FakeCuda, name: str) -> None:
        self.cuda, self.name = cuda, name

    def wait_stream(self, other: FakeStream) -> None:
        self.cuda.log.append(f"{self.name} waits for {other.name}")

    def synchronize(self) -> None:
        self.cuda.log.append(f"wait for {self.name}")


class FakeGraph:
    """The launches that were made while it captured."""

    def __init__(self) -> None:
        self.launches: list[Callable[[], None]] = []

    def replay(self) -> None:
        for launch in self.launches:
            launch()


class FakeCuda:
    """The stand-in; `bake` may change a launch's arguments when it is started, as a host that reads a length would."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[str] = []
        self.main = self.current = FakeStream(self, "main")
        self.capturing: FakeGraph | None = None
        self.bake: Callable[[dict[str, Any]], dict[str, Any]] | None = None
        self.before_launch: Callable[[Launch], None] | None = None
        for name, stand_in in {
            "Stream": lambda device: FakeStream(self, "side"),
            "current_stream": lambda device: self.current,
            "stream": self._on_stream,
            "synchronize": lambda device: self.log.append("wait for all"),
            "CUDAGraph": FakeGraph,
            "graph": self._capture,
            "device": lambda device: nullcontext(),
        }.items():
            monkeypatch.setattr(torch.cuda, name, stand_in)
        monkeypatch.setattr(launch_program, "run_launch", self._run_launch)
        monkeypatch.setattr(
            cuda_graph, "LaunchProgram", lambda plan, device: LaunchProgram(plan, device=torch.device("cpu"))
        )

    @contextmanager
    def _on_stream(self, stream: FakeStream) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    @contextmanager
    def _capture(self, graph: FakeGraph, *, stream: FakeStream, capture_error_mode: str) -> Iterator[None]:
        assert capture_error_mode == "thread_local"
        self.log.append("capture begins")
        self.capturing = graph
        try:
            with self._on_stream(stream), OnlyViews():
                yield
        finally:
            self.capturing = None
            self.log.append("capture ends")

    def _run_launch(self, launch: Launch, memory: Memory) -> None:
        if self.before_launch is not None:
            self.before_launch(launch)
        arguments = {
            name: memory.tensor(argument) if isinstance(argument, View) else argument
            for name, argument in launch.arguments.items()
        }
        if self.bake is not None:
            with _disable_current_modes():
                arguments = self.bake(arguments)
        kernel = launch_program.kernel_of(launch.kernel)

        def run() -> None:
            kernel[launch.grid](**arguments, **launch.constants)

        if self.capturing is None:
            self.log.append(f"launch on {self.current.name}")
            run()
            return
        assert self.current.name == "side"
        self.capturing.launches.append(run)


class ToyKernel:
    """A function in a kernel's place."""

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def run(*, num_warps: int = 4, num_stages: int = 1, **arguments: Any) -> None:
            self._function(**arguments)

        return run


BLOCK, BLOCKS, WIDTH, TABLE, ROWS = (
    4,
    6,
    3,
    2,
    2,
)  # rows of a block, blocks, columns, blocks of a sequence, rows of a run


def _write(
    latent: Tensor, mixed: Tensor, hidden: Tensor, weight: Tensor, token: Tensor, position: Tensor, table: Tensor
) -> None:
    """mixed = hidden * weight[token], which is also the row's entry of the cache."""
    mixed.copy_(hidden * weight[token])
    for row, at in enumerate(position.tolist()):
        latent[table[row, at // BLOCK], at % BLOCK] = mixed[row]


def _choose(
    out: Tensor, next_position: Tensor, arrived: Tensor, latent: Tensor, position: Tensor, table: Tensor
) -> None:
    """out = a token by the sum of the rows up to position."""
    arrived += 1
    for row, at in enumerate(position.tolist()):
        held = latent[table[row]].flatten(0, 1)[: at + 1]
        out[row] = int(held.nan_to_num(0.0).sum().abs() * 100) % 5
    next_position.copy_(position + 1)
    arrived -= 1


def toy_kernels() -> dict[str, ToyKernel]:
    """Kernels of the toy plan by name."""
    return {"toy.write": ToyKernel(_write), "toy.choose": ToyKernel(_choose)}


def toy_plan(num_steps: int = 2) -> LaunchPlan:
    """Two launches a draft over a paged cache; a draft is fed by the one before."""
    views: dict[str, View] = {}
    buffers: dict[str, Buffer] = {}

    def add(name: str, kind: BufferKind, dtype: torch.dtype, *shape: int) -> View:
        views[name] = contiguous(name, dtype, shape)
        buffers[name] = Buffer(name, kind, dtype, torch.Size(shape).numel())
        return views[name]

    integers, floats = torch.int64, torch.float32
    inputs = {
        "token": add("token", "input", integers, ROWS),
        "position": add("position", "input", integers, ROWS),
        "block_table": add("block_table", "input", integers, ROWS, TABLE),
        "target_hidden": add("target_hidden", "input", floats, ROWS, WIDTH),
    }
    weight = add("weight", "weight", floats, 5, WIDTH)
    latent = add("latent_cache", "state", floats, BLOCKS, BLOCK, WIDTH)
    arrived, mixed = add("arrived", "counter", torch.int32, 1), add("mixed", "arena", floats, ROWS, WIDTH)
    launches: list[Launch] = []
    outputs: dict[str, View] = {}
    token, position = inputs["token"], inputs["position"]
    for step in range(1, num_steps + 1):
        out = outputs[f"token.{step}"] = add(f"token.{step}", "output", integers, ROWS)
        following = add(f"position.{step}", "output", integers, ROWS)
        writes = {"latent": latent, "mixed": mixed, "hidden": inputs["target_hidden"], "weight": weight}
        reads = {"position": position, "table": inputs["block_table"]}
        chooses = {"out": out, "next_position": following, "arrived": arrived, "latent": latent}
        launches.append(Launch("write", "toy.write", (ROWS,), {**writes, "token": token, **reads}, {}))
        launches.append(Launch("choose", "toy.choose", (1,), {**chooses, **reads}, {}))
        token, position = out, following
    numbers = tuple(index // 2 for index in range(2 * num_steps))
    return LaunchPlan(
        name="toy",
        launches=tuple(launches),
        calls=tuple(range(2 * num_steps)),
        steps=numbers,
        results={},
        buffers=buffers,
        offsets={"mixed": 0},
        arena_bytes=buffers["mixed"].num_bytes,
        inputs=inputs,
        weights={"weight": weight},
        states={"latent_cache": latent},
        outputs=outputs,
    )


class ToyRun:
    """The toy plan captured beside itself launch by launch, over caches that start alike."""

    def __init__(self, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kernels = toy_kernels()
        for module in (launch_program, cuda_graph):
            monkeypatch.setattr(module, "kernel_of", lambda name: self.kernels[name])
        self.cuda = cuda
        self.captured = CudaGraphProgram(toy_plan(), device=GPU)
        self.plain = LaunchProgram(toy_plan(), device=torch.device("cpu"))
        generator = torch.Generator().manual_seed(0)
        self.weights = {"weight": torch.randn(5, WIDTH, generator=generator)}
        self.cache = torch.randn(BLOCKS, BLOCK, WIDTH, generator=generator)
        self.states = {"latent_cache": self.cache.clone()}

    def inputs(self, position: int, seed: int = 0) -> Mapping[str, Tensor]:
        """Rows of two sequences, the second one row behind."""
        generator = torch.Generator().manual_seed(seed)
        return {
            "token": torch.randint(5, (ROWS,), generator=generator),
            "position": torch.tensor([position, max(position - 1, 0)]),
            "block_table": torch.tensor([[1, 4], [3, 2]]),
            "target_hidden": torch.randn(ROWS, WIDTH, generator=generator),
        }

    def check(self, position: int, *, num_steps: int = 2, seed: int = 0) -> list[int]:
        """Run both; they must give the same tokens and leave the same rows of all but the null block."""
        fed: dict[str, Any] = {"weights": self.weights, "num_steps": num_steps, "outputs": ("token",)}
        fed["inputs"] = self.inputs(position, seed)
        got = self.captured.run(states=self.states, **fed)["token"]
        twin = {"latent_cache": self.cache}
        expected = self.plain.run(states=twin, **fed)["token"]
        assert torch.equal(got, expected)
        assert torch.equal(self.states["latent_cache"][1:], self.cache[1:])
        return [int(token) for token in got.flatten()]
