"""Nodes for the tests of the language, which knows no node of its own: small, and each with one trait to test."""

from typing import Literal

import torch
from torch import Tensor

from circuit import Circuit, Node, PortType, StateType, TensorType, f32

Tensors = dict[str, dict[str, Tensor]]


class ToyScale(Node):
    """x * factor."""

    factor: float

    def reference(self, x: Tensor) -> Tensor:
        return x * self.factor

    def infer(self, x: TensorType) -> TensorType:
        return x


class ToyAdd(Node):
    """x + other, of one type."""

    def reference(self, x: Tensor, other: Tensor) -> Tensor:
        return x + other

    def infer(self, x: TensorType, other: TensorType) -> TensorType:
        if other != x:
            raise self.reject("other", other, f"{x}, like x")
        return x


class ToyMinMax(Node):
    """The lesser and the greater of x and y: a node of two results."""

    results = ("least", "most")

    def reference(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return torch.minimum(x, y), torch.maximum(x, y)

    def infer(self, x: TensorType, y: TensorType) -> tuple[TensorType, TensorType]:
        if y != x:
            raise self.reject("y", y, f"{x}, like x")
        return x, x


class ToyGain(Node):
    """x times a gain of x's last dim."""

    def reference(self, x: Tensor, gain: Tensor) -> Tensor:
        return x * gain

    def infer(self, x: TensorType, gain: TensorType) -> TensorType:
        if gain.shape != x.shape[-1:]:
            raise self.reject("gain", gain, f"{x.with_shape(*x.shape[-1:])}, like x's last dim")
        return x


class ToyOptions(Node):
    """x, unchanged; carries an attribute of every kind."""

    count: int
    ratio: float = 0.5
    is_on: bool = False
    mode: Literal["fast", "exact"] = "fast"
    label: str = ""
    sizes: tuple[int, ...] = ()
    limit: int | None = None

    def reference(self, x: Tensor) -> Tensor:
        return x.clone()

    def infer(self, x: TensorType) -> TensorType:
        return x


class ToyWrite(Node):
    """Add the sum of the rows to every entry of the cache, and return how large the rows are."""

    writes = ("cache",)
    results = ("cache", "magnitude")

    def reference(self, cache: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        return cache + rows.sum(0), rows.abs()

    def infer(self, cache: StateType, rows: TensorType) -> tuple[PortType, ...]:
        if rows.shape[-1:] != cache.tensor.shape[-1:]:
            raise self.reject("rows", rows, f"rows of {cache}")
        return cache, rows


class ToyRead(Node):
    """x plus the cache's first entry."""

    reads = ("cache",)

    def reference(self, cache: Tensor, x: Tensor) -> Tensor:
        return x + cache[0, 0]

    def infer(self, cache: StateType, x: TensorType) -> TensorType:
        return x


class ToyFail(Node):
    """Raises in its reference, as a node with a bug or a bad index does."""

    def reference(self, x: Tensor) -> Tensor:
        raise IndexError("index 7 is out of range")

    def infer(self, x: TensorType) -> TensorType:
        return x


class ToyLiar(Node):
    """Returns one column fewer than its type rule says."""

    def reference(self, x: Tensor) -> Tensor:
        return x[:, 1:]

    def infer(self, x: TensorType) -> TensorType:
        return x


def toy_circuit() -> Circuit:
    """Return a legal circuit with every kind of value: two inputs, a weight, a state, blocks, two results."""
    circuit = Circuit("toy")
    x, other = circuit.input("x", f32("n", 8)), circuit.input("other", f32("n", 8))
    cache = circuit.state("cache", StateType("paged", f32("num_blocks", 4, 8), 2))
    with circuit.block("head"):
        scaled = ToyScale(factor=1e-5)(x).named("scaled")
        with circuit.block("inner"):
            least, most = ToyMinMax()(scaled, other)
            gained = ToyGain()(most.named("most"), circuit.weight("norm.gain", f32(8)))
    next_cache, magnitude = ToyWrite()(cache, least.named("least: a"))
    read = ToyRead()(next_cache.named("next_cache"), gained)
    circuit.output("y", read)
    circuit.output("magnitude", magnitude)
    circuit.state_output("cache", next_cache)
    return circuit


def toy_tensors(num_rows: int = 3, num_blocks: int = 2) -> Tensors:
    """Return inputs, weights and states for `toy_circuit`, the same ones on every call."""
    generator = torch.Generator().manual_seed(7)
    return {
        "inputs": {name: torch.randn(num_rows, 8, generator=generator) for name in ("x", "other")},
        "weights": {"norm.gain": torch.randn(8, generator=generator)},
        "states": {"cache": torch.randn(num_blocks, 4, 8, generator=generator)},
    }
