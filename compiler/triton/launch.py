"""Launches as data: a kernel by name, its grid, and arguments that say where tensors lie. Nothing here imports triton.

The same launch runs on a device, under Triton's interpreter, captured in a graph, and is compiled ahead of time: each
of these resolves the views to memory, or to types, in its own way.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Literal, TypeAlias

import torch

BufferKind = Literal["input", "weight", "state", "output", "arena", "counter"]


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory that launches read and write.

    kind: `input` and `output` belong to the runner, `weight` and `state` to the drafter; `arena` is shared by
        intermediate values whose lives do not meet; `counter` is zero before every run and left so by it.
    """

    name: str
    kind: BufferKind
    dtype: torch.dtype
    num_elements: int

    @property
    def num_bytes(self) -> int:
        """Its size."""
        return self.num_elements * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class View:
    """A tensor inside a buffer; strides and offset in elements."""

    buffer: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    @property
    def row_stride(self) -> int:
        """Elements from one row to the next."""
        return self.strides[0]

    @property
    def is_contiguous(self) -> bool:
        """Whether its elements lie side by side in order."""
        return self.strides == contiguous_strides(self.shape)

    def columns(self, start: int, width: int) -> "View":
        """Return columns of the last dim."""
        assert 0 <= start <= self.shape[-1] - width, (self, start, width)
        offset = self.offset + start * self.strides[-1]
        return replace(self, shape=(*self.shape[:-1], width), offset=offset)

    def split_last(self, parts: int) -> "View":
        """Return the last dim as [parts, rest]."""
        width, stride = self.shape[-1] // parts, self.strides[-1]
        assert parts * width == self.shape[-1], (self, parts)
        return replace(
            self, shape=(*self.shape[:-1], parts, width), strides=(*self.strides[:-1], width * stride, stride)
        )


Argument: TypeAlias = View | int | float
Constant: TypeAlias = int | float | bool | str


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch.

    name: of the rule's launches. kernel: `module.function` under compiler.kernels.
    arguments, constants: by parameter name, run-time values and constexprs. A number among the arguments is baked into
        a captured graph, so lengths, positions and tokens are views.
    """

    name: str
    kernel: str
    grid: tuple[int, ...]
    arguments: Mapping[str, Argument]
    constants: Mapping[str, Constant]
    num_warps: int = 4
    num_stages: int = 1

    @property
    def views(self) -> tuple[View, ...]:
        """The tensors that it takes."""
        return tuple(argument for argument in self.arguments.values() if isinstance(argument, View))


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of a tensor whose elements lie side by side in order."""
    return tuple(prod(shape[index + 1 :]) for index in range(len(shape)))


def contiguous(buffer: str, dtype: torch.dtype, shape: tuple[int, ...], offset: int = 0) -> View:
    """Return a view of elements that lie side by side in order."""
    return View(buffer, dtype, shape, contiguous_strides(shape), offset)
