"""Run a package: native code of one circuit at fixed sizes, loaded without a compiler."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from circuit import BindingError, Circuit, StateType, Value

_WEIGHTS = 2


def argument_order(circuit: Circuit) -> tuple[Value, ...]:
    """Return the circuit's sources in the order in which a lowered circuit takes them."""
    return (*circuit.inputs.values(), *circuit.states.values(), *circuit.weights.values())


@dataclass(frozen=True, slots=True)
class _Port:
    """One argument of a package, ready to be checked: None in `sizes` is a dim the package leaves open."""

    value: Value
    table: int  # 0 inputs, 1 states, 2 weights
    dtype: torch.dtype
    sizes: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class _Place:
    """An axis of the argument at `port`."""

    port: int
    axis: int


class PackagedProgram:
    """A loaded package of a circuit; runs on tensors by name and changes the states in place.

    Every dtype, shape and stride is checked before native code sees a pointer: it checks none of them itself. Weights
    are checked again only when a name is bound to another tensor.
    """

    def __init__(self, circuit: Circuit, dims: Mapping[str, int], path: Path) -> None:
        self.circuit = circuit
        self.dims = dict(dims)
        self._ports = tuple(_port(value, dims) for value in argument_order(circuit))
        self._open_dims = _open_dims(self._ports)
        self._checked_weights: dict[str, Tensor] = {}
        self._output_names = tuple(circuit.outputs)
        # torch's own way to load one imports its whole compiler first, a second and more
        self._loader = torch._C._aoti.AOTIModelPackageLoader(str(path), "model", False, 1, -1)

    def run(
        self, *, inputs: Mapping[str, Tensor], states: Mapping[str, Tensor], weights: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Return the outputs by name. `BindingError` for a tensor that is missing or does not fit."""
        tables = (inputs, states, weights)
        tensors = [self._checked(port, tables[port.table]) for port in self._ports]
        for name, (first, *others) in self._open_dims.items():
            size = tensors[first.port].shape[first.axis]
            if any(tensors[other.port].shape[other.axis] != size for other in others):
                got = ", ".join(
                    f"{self._ports[place.port].value!r} {tensors[place.port].shape[place.axis]}"
                    for place in (first, *others)
                )
                raise BindingError(f"package of {self.circuit.name!r}: expected one size of {name}, got {got}")
        results = self._loader.boxed_run(tensors)
        return dict(zip(self._output_names, results, strict=True))

    def _checked(self, port: _Port, table: Mapping[str, Tensor]) -> Tensor:
        name = port.value.name
        tensor = table.get(name)
        if tensor is None:
            raise BindingError(f"{self._place(port)}: missing; pass a tensor of its type")
        # a tensor object keeps its dtype, shape and strides for as long as it is this object
        if port.table == _WEIGHTS and self._checked_weights.get(name) is tensor:
            return tensor
        shape = tensor.shape
        fits = len(shape) == len(port.sizes) and all(
            expected is None or expected == size for expected, size in zip(port.sizes, shape, strict=True)
        )
        if not fits or tensor.dtype != port.dtype:
            raise BindingError(
                f"{self._place(port)}: got {tensor.dtype} {list(shape)}; the package was built for {self.dims}"
            )
        if not tensor.is_contiguous() or tensor.device.type != "cpu":
            raise BindingError(f"{self._place(port)}: expected a contiguous CPU tensor, got strides {tensor.stride()}")
        if port.table == _WEIGHTS:
            self._checked_weights[name] = tensor
        return tensor

    def _place(self, port: _Port) -> str:
        return f"package of {self.circuit.name!r}, {port.value.kind} {port.value!r}"


def _port(value: Value, dims: Mapping[str, int]) -> _Port:
    declared = value.type.tensor if isinstance(value.type, StateType) else value.type
    bound = declared.bind(dims)
    sizes = tuple(int(dim) if dim.is_Integer else None for dim in bound.shape)
    return _Port(value, {"input": 0, "state": 1, "weight": _WEIGHTS}[value.kind], declared.dtype, sizes)


def _open_dims(ports: Sequence[_Port]) -> dict[str, tuple[_Place, ...]]:
    """Where each dim stands that the package leaves open, if in several places: all of them index one extent."""
    places: dict[str, list[_Place]] = {}
    for index, port in enumerate(ports):
        declared = port.value.type.tensor if isinstance(port.value.type, StateType) else port.value.type
        for axis, size in enumerate(port.sizes):
            if size is None:
                places.setdefault(str(declared.shape[axis]), []).append(_Place(index, axis))
    return {name: tuple(held) for name, held in places.items() if len(held) > 1}
