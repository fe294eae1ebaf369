"""Derived weights: what a fold made of a checkpoint's weights, and whether it still is what the sources make.

A weight reloaded by a copy into its memory is seen by torch's version count, and the derived tensor is made again in
its own memory, so that captured addresses stay true. A weight bound to other memory is refused: nothing that was
compiled or captured knows of it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from circuit import BindingError, Count, NonNegative
from compiler.quantised_rows import int8_rows, row_errors, row_scales

Recipe = Literal["rows", "key_rows", "value_rows", "take_rows", "int8_rows", "row_scales", "row_errors"]


# recipes that take a weight, or the rows of it that a second source names
_OF_ROWS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "take_rows": lambda rows: rows,
    "int8_rows": int8_rows,
    "row_scales": row_scales,
    "row_errors": row_errors,
}


class DerivedWeight(BaseModel):
    """A weight that a pass made of others.

    recipe: `rows` lays the sources one under the other; `key_rows` and `value_rows` take the first `key_dim` and the
        last `value_dim` of the rows of each head of the one source; `take_rows` takes the rows of the first source
        that the second names; `int8_rows` and `row_scales` put a weight into eight bits, or the rows of it that a
        second source names, and `row_errors` says how far off those are, see quantised_rows.py.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    name: str
    recipe: Recipe
    sources: tuple[str, ...] = Field(min_length=1)
    num_heads: Count = 1
    key_dim: NonNegative = 0
    value_dim: NonNegative = 0

    def make(self, sources: Sequence[Tensor]) -> Tensor:
        """Return the derived tensor, contiguous and in memory of its own."""
        if self.recipe == "rows":
            return torch.cat(tuple(sources), dim=0)
        if self.recipe in _OF_ROWS:
            rows = torch.index_select(sources[0], 0, sources[1]) if len(sources) == 2 else sources[0]
            return _OF_ROWS[self.recipe](rows)
        (source,) = sources
        per_head = source.reshape(self.num_heads, self.key_dim + self.value_dim, *source.shape[1:])
        rows = per_head[:, : self.key_dim] if self.recipe == "key_rows" else per_head[:, self.key_dim :]
        return rows.flatten(0, 1).clone(memory_format=torch.contiguous_format)

    def __str__(self) -> str:
        return f"{self.recipe}({', '.join(self.sources)})"


@dataclass(frozen=True, slots=True)
class SourceVersion:
    """A source as it was when something was made of it: its memory, and how often torch had written there."""

    tensor: Tensor
    data_ptr: int
    version: int

    @staticmethod
    def of(name: str, tensor: Tensor) -> "SourceVersion":
        """Return the version of a tensor; `BindingError` where torch does not count writes."""
        if tensor.is_inference():
            raise BindingError(
                f"weight {name!r}: made in inference mode, where torch counts no writes and reloads pass unseen; "
                f"load weights outside torch.inference_mode()"
            )
        return SourceVersion(tensor, tensor.data_ptr(), tensor._version)


class DerivedWeights:
    """The derived weights of one binding, in memory of their own; `refresh` before a run that must see a reload."""

    def __init__(self, derived: Sequence[DerivedWeight], weights: Mapping[str, Tensor]) -> None:
        self._derived = tuple(derived)
        self._sources: dict[str, SourceVersion] = {}
        for weight in self._derived:
            for name in weight.sources:
                if name not in weights:
                    raise BindingError(f"derived weight {weight.name!r}: source {name!r} is missing; load it first")
                self._sources[name] = SourceVersion.of(name, weights[name])
        self._tensors = {weight.name: weight.make(self._of(weight, weights)) for weight in self._derived}

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """The derived tensors by name; the same objects for as long as the store lives."""
        return self._tensors

    @property
    def versions(self) -> dict[str, tuple[int, int]]:
        """Per source, the address and version that the derived tensors were made of."""
        return {name: (source.data_ptr, source.version) for name, source in self._sources.items()}

    @torch.no_grad()
    def refresh(self, weights: Mapping[str, Tensor], *, everything: bool = False) -> tuple[str, ...]:
        """Make again, in place, what was made of sources written since; return the names of what was made.

        `everything` makes all of it, for writes that torch does not count: through numpy, a raw pointer or `.data`.
        Raises BindingError for a source bound to other memory, before anything is changed.
        """
        found = {name: self._checked(name, weights) for name in self._sources}
        stale = {name for name, version in found.items() if everything or self._is_newer(name, version)}
        made = tuple(weight for weight in self._derived if stale.intersection(weight.sources))
        for weight in made:
            self._tensors[weight.name].copy_(weight.make(self._of(weight, weights)))
        self._sources = found
        return tuple(weight.name for weight in made)

    def _checked(self, name: str, weights: Mapping[str, Tensor]) -> SourceVersion:
        known = self._sources[name]
        tensor = weights.get(name)
        if tensor is None:
            raise BindingError(f"weight {name!r}: missing, and derived weights are made of it; bind it again")
        same_layout = (tensor.dtype, tensor.shape, tensor.stride(), tensor.device) == (
            known.tensor.dtype,
            known.tensor.shape,
            known.tensor.stride(),
            known.tensor.device,
        )
        if not same_layout or tensor.data_ptr() != known.data_ptr:
            users = ", ".join(weight.name for weight in self._derived if name in weight.sources)
            raise BindingError(
                f"weight {name!r}: bound to other memory than {users} was made of; copy new values into the tensor "
                f"that was bound, or bind a new runner"
            )
        return SourceVersion.of(name, tensor)

    def _is_newer(self, name: str, version: SourceVersion) -> bool:
        # another tensor over the same memory may count on its own
        known = self._sources[name]
        return version.tensor is not known.tensor or version.version != known.version

    @staticmethod
    def _of(weight: DerivedWeight, weights: Mapping[str, Tensor]) -> list[Tensor]:
        return [weights[name] for name in weight.sources]


class WithDerived(Mapping[str, Tensor]):
    """Weights by name with derived ones among them; a derived one is made again when its source was written since.

    BindingError where a source is bound to other memory, as `DerivedWeights.refresh` raises it.
    """

    def __init__(self, derived: Sequence[DerivedWeight], weights: Mapping[str, Tensor]) -> None:
        self._weights = weights
        self._derived = DerivedWeights(derived, weights)

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._derived.tensors:
            return self._weights[name]
        self._derived.refresh(self._weights)
        return self._derived.tensors[name]

    def __iter__(self) -> Iterator[str]:
        yield from self._weights
        yield from self._derived.tensors

    def __len__(self) -> int:
        return len(self._weights) + len(self._derived.tensors)
