"""Cases of the node conformance test: for each node, small instances, symbolic port types, and the sizes to try.

The case of `nodes/rms_norm.py` is the file `tests/nodes/cases/rms_norm.py`, which defines `CASE`. Nothing lists the
cases: a node without a file fails, and so does a file without a node.
"""

import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from circuit import Node, PortType, StateType, TensorType

CASE_FOLDER = Path(__file__).resolve().parents[1] / "nodes" / "cases"

Sizes = Mapping[str, int]


def no_values(sizes: Sizes) -> dict[str, Tensor]:
    """Values of an example all of whose ports are floating point."""
    return {}


@dataclass(frozen=True, kw_only=True)
class Example:
    """One instance of a node and what to feed it.

    Attributes:
        ports: a type per port, as text; `T` stands for each dtype of the case in turn, names are dims.
        sizes: the dims of each variant; rows are called `n` where the node works row by row.
        values: tensors of the ports that random numbers do not fit, positions and such.
    """

    node: Node
    ports: Mapping[str, str]
    sizes: tuple[Sizes, ...]
    values: Callable[[Sizes], dict[str, Tensor]] = no_values

    def types(self, dtype: str) -> tuple[PortType, ...]:
        """Return the symbolic port types with `T` replaced, in the order of the node's ports."""
        assert tuple(self.ports) == self.node.ports
        return tuple(parse_port(text.replace("T[", f"{dtype}[")) for text in self.ports.values())

    def tensors(self, dtype: str, sizes: Sizes) -> tuple[Tensor, ...]:
        """Return one contiguous tensor per port, the same ones on every call.

        What belongs to nobody, block 0 or sequence 0 of a state, is NaN.
        """
        generator = torch.Generator().manual_seed(1234)
        given = self.values(sizes)
        made = []
        for port, port_type in zip(self.node.ports, self.types(dtype), strict=True):
            bound = port_type.bind(sizes)
            tensor_type = bound.tensor if isinstance(bound, StateType) else bound
            if port in given:
                tensor = given[port]
                assert tensor.shape == tensor_type.sizes(), f"{port}: {tensor.shape} for {tensor_type}"
                tensor = tensor.to(tensor_type.dtype)
            else:
                assert tensor_type.dtype.is_floating_point, f"values lacks {port}"
                tensor = torch.randn(tensor_type.sizes(), generator=generator).to(tensor_type.dtype)
            if isinstance(bound, StateType):
                tensor[:1] = float("nan")
            made.append(tensor)
        return tuple(made)


@dataclass(frozen=True, kw_only=True)
class NodeCase:
    """What the conformance test knows of one node.

    Attributes:
        accepts: perturbations, as `"port kind"`, that the node's type rule takes, each with the reason.
        blames: perturbations whose error names another port, because that one is held against the perturbed one.
        free_attributes: integer attributes that may be zero or negative.
        is_view: the result shares the argument's memory, so that the cost may be zero.
    """

    examples: tuple[Example, ...]
    dtypes: tuple[str, ...] = ("bf16", "f32")
    accepts: Mapping[str, str] = field(default_factory=dict)
    blames: Mapping[str, str] = field(default_factory=dict)
    free_attributes: frozenset[str] = frozenset()
    is_view: bool = False

    @property
    def node_type(self) -> type[Node]:
        """The class that the case is about."""
        (node_type,) = {type(example.node) for example in self.examples}
        return node_type


def parse_port(text: str) -> PortType:
    """Read a tensor type, or a state type when the text starts with a layout."""
    return StateType.parse(text) if text.startswith(("paged", "ring")) else TensorType.parse(text)


def load_cases() -> dict[str, NodeCase]:
    """Return every case by the name of its file."""
    return {
        path.stem: importlib.import_module(f"tests.nodes.cases.{path.stem}").CASE
        for path in sorted(CASE_FOLDER.glob("*.py"))
    }


def perturbations(port_type: PortType) -> Iterator[tuple[str, PortType]]:
    """Yield wrong versions of a port's type, each with the kind of the fault."""
    if isinstance(port_type, StateType):
        yield "kind", port_type.tensor
        for kind, tensor in _tensor_perturbations(port_type.tensor):
            if len(tensor.shape) >= 3:
                yield kind, StateType(port_type.layout, tensor, port_type.rows_per_entry)
        yield "layout", StateType("ring" if port_type.layout == "paged" else "paged", port_type.tensor)
        yield "rows_per_entry", StateType(port_type.layout, port_type.tensor, port_type.rows_per_entry + 1)
        return
    if len(port_type.shape) >= 3:
        yield "kind", StateType("paged", port_type)
    else:
        yield "kind", StateType("paged", port_type.with_shape(3, 3, *port_type.shape))
    yield from _tensor_perturbations(port_type)


def _tensor_perturbations(tensor: TensorType) -> Iterator[tuple[str, TensorType]]:
    if tensor.dtype.is_floating_point:
        yield "no_float", tensor.with_dtype(torch.int64)
        yield "other_float", tensor.with_dtype(torch.float32 if tensor.dtype != torch.float32 else torch.bfloat16)
    else:
        yield "other_integer", tensor.with_dtype(torch.int32 if tensor.dtype != torch.int32 else torch.int64)
        yield "float", tensor.with_dtype(torch.float32)
    yield "more_dims", tensor.with_shape(2, *tensor.shape)
    yield "fewer_dims", tensor.with_shape(*tensor.shape[1:])
    yield "first_dim", tensor.with_shape(tensor.shape[0] + 1, *tensor.shape[1:])
    yield "last_dim", tensor.with_shape(*tensor.shape[:-1], tensor.shape[-1] + 1)


def same_bits(left: Tensor, right: Tensor) -> bool:
    """Whether two tensors have one dtype, one shape and the same bytes, NaN included."""
    return (
        left.dtype == right.dtype
        and left.shape == right.shape
        and torch.equal(left.contiguous().view(torch.uint8), right.contiguous().view(torch.uint8))
    )


def strided_copy(tensor: Tensor) -> Tensor:
    """Return an equal tensor whose elements do not lie next to one another."""
    return torch.stack([tensor, tensor], dim=-1)[..., 0]


def sequence_rows(sizes: Sizes, *, rows_before: tuple[int, ...] = (5, 0)) -> tuple[Tensor, Tensor]:
    """Return position [n] and sequence [n] of n rows, shared by as many sequences as `rows_before` has.

    Sequence 1 + i continues after rows_before[i] rows; the first takes the odd row.
    """
    num_rows, count = sizes["n"], len(rows_before)
    shares = [num_rows // count + (i < num_rows % count) for i in range(count)]
    position = [start + i for start, share in zip(rows_before, shares, strict=True) for i in range(share)]
    sequence = [1 + which for which, share in enumerate(shares) for _ in range(share)]
    return torch.tensor(position, dtype=torch.int64), torch.tensor(sequence, dtype=torch.int64)


def block_tables(sizes: Sizes, sequence: Tensor, *, max_blocks: str = "max_blocks") -> Tensor:
    """Return a block table [n, max_blocks] whose sequences own disjoint blocks, in descending order."""
    width = sizes[max_blocks]
    return (sequence.unsqueeze(1) * width - torch.arange(width)).reshape(len(sequence), width)
