"""Run a package: native code of one circuit at fixed sizes, run step after step in one call, without a compiler."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import is_
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from circuit import BindingError, Circuit, StateType, TensorType, Value
from compiler.inductor.driver import DRIVER, Driver
from compiler.passes import FED, IS_FIRST, Feedback


def argument_order(circuit: Circuit) -> tuple[Value, ...]:
    """Return the circuit's sources in the order in which a lowered circuit takes them."""
    return (*circuit.inputs.values(), *circuit.states.values(), *circuit.weights.values())


@dataclass(frozen=True, slots=True)
class _Port:
    """One argument of a package, ready to be checked: None in `sizes` is a dim the package leaves open.

    kind: given with each run, made by the driver between two steps, or bound to memory that outlives a run.
    """

    value: Value
    kind: Literal["given", "made", "state", "weight"]
    dtype: torch.dtype
    sizes: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class _Place:
    """An axis of the argument at `port`."""

    port: int
    axis: int


class PackagedProgram:
    """A loaded package of a circuit; runs on tensors by name and changes the states in place.

    With `feedback`, from outputs to inputs, one run is `num_steps` steps, each fed by the one before; an input
    `is_first` then is made here, and so is one that only later steps are fed. Every dtype, shape and stride is checked
    before native code sees a pointer: it checks none of them itself. States and weights are bound once, and again when
    a name is bound to another tensor.
    """

    def __init__(
        self, circuit: Circuit, dims: Mapping[str, int], path: Path, *, feedback: Sequence[Feedback] = ()
    ) -> None:
        self.circuit = circuit
        self.dims = dict(dims)
        self._results = {name: _sizes(value, dims) for name, value in circuit.outputs.items()}
        fed_by = {edge.target: list(circuit.outputs).index(edge.source) for edge in feedback}
        self._ports = tuple(_port(value, dims) for value in argument_order(circuit))
        self._given = self._indices("given")
        self._states = self._indices("state")
        self._weights = self._indices("weight")
        self._state_names = tuple(self._ports[index].value.name for index in self._states)
        self._weight_names = tuple(self._ports[index].value.name for index in self._weights)
        self._open_dims = _open_dims(self._ports)
        self._held: list[Tensor] = []  # what is bound, states before weights, kept alive
        self._addresses: list[int] = []
        self._driver = Driver(
            path.with_name(DRIVER), path, num_ports=len(self._ports), num_results=len(circuit.outputs)
        )
        for index, port in enumerate(self._ports):
            if port.kind in ("given", "made"):
                name = port.value.name
                self._driver.bind(
                    index,
                    port.dtype,
                    [size or 0 for size in port.sizes],
                    fed_by=fed_by.get(name, -1),
                    is_first_flag=name == IS_FIRST,
                )

    def run(
        self,
        *,
        inputs: Mapping[str, Tensor],
        states: Mapping[str, Tensor],
        weights: Mapping[str, Tensor],
        num_steps: int = 1,
        outputs: Sequence[str] | None = None,
    ) -> dict[str, Tensor]:
        """Return the `outputs` (None: all) by name, each [num_steps, *its sizes].

        `BindingError` for a tensor that is missing or does not fit.
        """
        given = [self._checked(index, inputs) for index in self._given]
        self._bind(states, weights)
        wanted = tuple(self._results) if outputs is None else outputs
        made = {name: torch.empty(num_steps, *self._results[name][1], dtype=self._results[name][0]) for name in wanted}
        targets = []
        for index, name in enumerate(self._results):
            tensor = made.get(name)
            targets.append((index, 0 if tensor is None else tensor.data_ptr()))
            if tensor is not None:
                self._driver.expect(index, tensor[:1].nbytes)
        sources = [(index, tensor.data_ptr()) for index, tensor in zip(self._given, given, strict=True)]
        self._driver.run(num_steps, sources, targets)
        return made

    def _bind(self, states: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
        """Hand the driver what of states and weights is another tensor than in the run before, all of it checked."""
        tensors = (*map(states.get, self._state_names), *map(weights.get, self._weight_names))
        # a tensor object keeps its dtype and shape, but `tensor.data = other` gives it other memory
        if (
            len(self._held) == len(tensors)
            and all(map(is_, tensors, self._held))
            and [*map(Tensor.data_ptr, self._held)] == self._addresses
        ):
            return
        held = [
            self._checked(index, table)
            for table, indices in ((states, self._states), (weights, self._weights))
            for index in indices
        ]
        bound = dict(zip((*self._states, *self._weights), held, strict=True))
        for name, (first, *others) in self._open_dims.items():
            size = bound[first.port].shape[first.axis]
            if any(bound[other.port].shape[other.axis] != size for other in others):
                got = ", ".join(
                    f"{self._ports[place.port].value!r} {bound[place.port].shape[place.axis]}"
                    for place in (first, *others)
                )
                raise BindingError(f"package of {self.circuit.name!r}: expected one size of {name}, got {got}")
        # until all of it is bound nothing counts as bound
        self._held, self._addresses = [], []
        for index, tensor in bound.items():
            self._driver.bind(index, tensor.dtype, tensor.shape, address=tensor.data_ptr())
        self._held, self._addresses = held, [tensor.data_ptr() for tensor in held]

    def _checked(self, index: int, table: Mapping[str, Tensor]) -> Tensor:
        port = self._ports[index]
        tensor = table.get(port.value.name)
        if tensor is None:
            raise BindingError(f"{self._place(port)}: missing; pass a tensor of its type")
        if tensor.shape == port.sizes and tensor.dtype is port.dtype and tensor.is_contiguous() and tensor.is_cpu:
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
        return tensor

    def _indices(self, kind: str) -> tuple[int, ...]:
        return tuple(index for index, port in enumerate(self._ports) if port.kind == kind)

    def _place(self, port: _Port) -> str:
        return f"package of {self.circuit.name!r}, {port.value.kind} {port.value!r}"


def _port(value: Value, dims: Mapping[str, int]) -> _Port:
    declared = value.type.tensor if isinstance(value.type, StateType) else value.type
    bound = declared.bind(dims)
    sizes = tuple(int(dim) if dim.is_Integer else None for dim in bound.shape)
    kind: Literal["given", "made", "state", "weight"]
    if value.kind == "input":
        kind = "made" if value.name == IS_FIRST or value.name.endswith(FED) else "given"
    else:
        kind = "state" if value.kind == "state" else "weight"
    return _Port(value, kind, declared.dtype, sizes)


def _sizes(value: Value, dims: Mapping[str, int]) -> tuple[torch.dtype, tuple[int, ...]]:
    assert isinstance(value.type, TensorType)
    return value.type.dtype, value.type.bind(dims).sizes()


def _open_dims(ports: Sequence[_Port]) -> dict[str, tuple[_Place, ...]]:
    """Where each dim stands that the package leaves open, if in several places: all of them index one extent."""
    places: dict[str, list[_Place]] = {}
    for index, port in enumerate(ports):
        declared = port.value.type.tensor if isinstance(port.value.type, StateType) else port.value.type
        for axis, size in enumerate(port.sizes):
            if size is None:
                places.setdefault(str(declared.shape[axis]), []).append(_Place(index, axis))
    return {name: tuple(held) for name, held in places.items() if len(held) > 1}
