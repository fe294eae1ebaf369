"""What a safetensors checkpoint holds, from its headers alone: name, shape, dtype and file of every tensor.

Only safetensors is read. A pickle is never opened, because opening one runs what it holds.
"""

from __future__ import annotations

import difflib
import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from circuit.errors import CheckpointError

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")


@dataclass(frozen=True, slots=True)
class TensorHeader:
    """One stored tensor: the file that holds it, its shape, and its dtype in safetensors' spelling (F32, BF16, ...)."""

    file: Path
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The headers of a checkpoint folder; `location` is the single file, or the index of the shards."""

    location: Path
    tensors: dict[str, TensorHeader]

    def close_names(self, name: str) -> list[str]:
        """Up to three stored names that resemble `name`, the best first."""
        return difflib.get_close_matches(name, self.tensors, n=3, cutoff=0.6)

    def names_under(self, prefix: str) -> list[str]:
        """Stored names that start with `prefix`, sorted."""
        return sorted(name for name in self.tensors if name.startswith(prefix))


def read_headers(path: Path) -> Checkpoint:
    """Read the headers of `path`: a folder with model.safetensors or with shards and their index, or one such file.

    Reads no tensor data. Raises CheckpointError when a file is missing, truncated, no safetensors, or when a shard
    lacks a tensor that the index places in it.
    """
    location = _find(path)
    if location.name.endswith(".json"):
        return Checkpoint(location=location, tensors=_read_shards(location))
    return Checkpoint(location=location, tensors=_read_file(location))


@dataclass(frozen=True, slots=True)
class Part:
    """Entries `start` to `stop` of a stored tensor along `dim`, where it has `size`."""

    dim: int
    start: int
    stop: int
    size: int


def iterate_tensors(checkpoint: Checkpoint, names: Sequence[str], *, part: Part | None = None) -> Iterator[Tensor]:
    """Yield the named tensors in order, on the CPU and in their stored dtype; one open for neighbours in one file.

    Of each only `part` is read, where there is one.
    """
    for file, group in itertools.groupby(names, key=lambda name: checkpoint.tensors[name].file):
        try:
            with safe_open(file, framework="pt", device="cpu") as stored:
                for name in group:
                    if part is None:
                        yield stored.get_tensor(name)
                        continue
                    place = (*[slice(None)] * part.dim, slice(part.start, part.stop))
                    yield stored.get_slice(name)[place]
        except (SafetensorError, OSError) as error:
            raise CheckpointError(
                f"{file}: expected readable tensors, got a fault: {error}; fetch the file again"
            ) from None


def _find(path: Path) -> Path:
    """Return the file to start from; a single file goes before an index, as transformers has it."""
    if path.is_file():
        if path.suffix in PICKLE_SUFFIXES:
            raise CheckpointError(f"{path}: expected safetensors, got a pickle; convert it, pickles are never opened")
        return path
    if not path.is_dir():
        raise CheckpointError(f"{path}: expected a checkpoint folder, got no such path; name one")
    for name in (SINGLE_FILE, INDEX_FILE):
        if (path / name).is_file():
            return path / name
    pickles = sorted(file.name for file in path.iterdir() if file.suffix in PICKLE_SUFFIXES)
    found = f"the pickle {pickles[0]}, which is never opened" if pickles else "neither"
    step = "convert it to safetensors" if pickles else "name a folder that holds one"
    raise CheckpointError(f"{path}: expected {SINGLE_FILE} or {INDEX_FILE}, got {found}; {step}")


def _read_file(file: Path) -> dict[str, TensorHeader]:
    try:
        with safe_open(file, framework="pt", device="cpu") as stored:
            headers = {}
            for name in stored.keys():  # noqa: SIM118 - safe_open is no mapping
                header = stored.get_slice(name)
                headers[name] = TensorHeader(file=file, shape=tuple(header.get_shape()), dtype=header.get_dtype())
            return headers
    except FileNotFoundError:
        raise CheckpointError(f"{file}: expected a safetensors file, got no such file; fetch it") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(
            f"{file}: expected a whole safetensors file, got a truncated or foreign one: {error}; fetch it again"
        ) from None


def _read_shards(index: Path) -> dict[str, TensorHeader]:
    placed = _read_weight_map(index)
    shards = {shard: _read_file(index.parent / shard) for shard in sorted(set(placed.values()))}
    for name, shard in placed.items():
        if name not in shards[shard]:
            raise CheckpointError(
                f"{index.parent / shard}: expected tensor {name!r} as {index.name} says, got no such tensor; "
                "fetch index and shards of one version"
            )
    return {name: shards[shard][name] for name, shard in placed.items()}


def _read_weight_map(index: Path) -> dict[str, str]:
    try:
        document: Any = json.loads(index.read_bytes().decode("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{index}: expected valid JSON, got a fault: {error}; fetch the file again") from None
    placed = document.get("weight_map") if isinstance(document, dict) else None
    if not isinstance(placed, dict) or not placed:
        raise CheckpointError(f"{index}: expected an object 'weight_map', got none; fetch the file again")
    for name, shard in placed.items():
        # a shard lies beside its index: a path would let a downloaded index read elsewhere
        if not isinstance(shard, str) or Path(shard).name != shard or not shard.endswith(".safetensors"):
            raise CheckpointError(
                f"{index}: weight_map[{name!r}]: expected the name of a .safetensors file beside the index, "
                f"got {shard!r}; use a safetensors checkpoint"
            )
    return placed


def dtype_of(header: TensorHeader) -> torch.dtype | None:
    """The torch dtype of a stored floating point tensor; None for any other, quantised ones among them."""
    return {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}.get(header.dtype)
