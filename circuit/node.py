"""The contract of a node: one operation with attributes, typed ports, a type rule, a torch reference and a cost.

A node is one file in `nodes/`: a subclass of `Node` whose fields are its attributes and whose `reference` is its
meaning. The ports are the parameters of `reference`, so they cannot drift from it. State goes in and out as values:
a port named in `writes` takes a state and the node returns its next version first; a port named in `reads` only reads.
"""

import inspect
import re
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeAlias

import torch
from pydantic import BaseModel, ConfigDict, Field

from circuit.communicator import Exchange
from circuit.cost import Cost
from circuit.errors import TypeRuleError
from circuit.state_type import StateType
from circuit.tensor_type import TensorType

if TYPE_CHECKING:
    from circuit.graph import Circuit, Value

PortType: TypeAlias = TensorType | StateType
# an attribute that counts something: heads, rows, experts
Count: TypeAlias = Annotated[int, Field(ge=1)]
# an attribute that may be zero: an offset, rows that a weight need not have
NonNegative: TypeAlias = Annotated[int, Field(ge=0)]

_CATALOGUE: dict[str, type["Node"]] = {}
_BOUNDARY = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


class Node(BaseModel):
    """Base of every node. Subclasses define fields (attributes), `infer`, `reference` and `cost`.

    Class variables:
        ports: names of the inputs, read off `reference`'s signature.
        results: names of the results, the next versions of `writes` first.
        reads, writes: the ports that take state.
        has_own_interface: each instance sets the four above, since they follow from its attributes; its `reference`
            takes any number of tensors. True of regions only, which stand for a circuit.
        exchange: the one exchange with other ranks that a run makes, empty for a node that makes none. It is an effect:
            every rank runs the same exchanges in the same order. Such a node has the attributes `axis` and
            `num_ranks`, and says in `payload` what it exchanges.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)

    ports: ClassVar[tuple[str, ...]] = ()
    results: ClassVar[tuple[str, ...]] = ("out",)
    reads: ClassVar[tuple[str, ...]] = ()
    writes: ClassVar[tuple[str, ...]] = ()
    has_own_interface: ClassVar[bool] = False
    exchange: ClassVar[Exchange | None] = None

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        cls.ports = () if cls.has_own_interface else _ports_of(cls)
        if stray := [name for name in (*cls.reads, *cls.writes) if name not in cls.ports]:
            raise TypeError(f"{cls.__name__}: reads or writes {stray}, which are no parameters of reference")
        if cls.results[: len(cls.writes)] != cls.writes:
            raise TypeError(f"{cls.__name__}: results must start with the written states {cls.writes}")
        known = _CATALOGUE.get(cls.__name__)
        if known is not None and (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise TypeError(f"{cls.__name__} is declared in {known.__module__} already; give the new node its own name")
        _CATALOGUE[cls.__name__] = cls

    # subclasses name their own parameters, so the base takes any number of them
    def infer(self, *types: Any) -> PortType | tuple[PortType, ...]:
        """Return the types of the results, or raise what `self.reject` makes."""
        raise NotImplementedError(f"{type(self).__name__} defines no infer")

    def reference(self, *tensors: Any) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """Compute the results: this is what the node means. Never changes an argument."""
        raise NotImplementedError(f"{type(self).__name__} defines no reference")

    def cost(self, *types: Any) -> Cost:
        """Return bytes and flops of one run; every dim is bound."""
        raise NotImplementedError(f"{type(self).__name__} defines no cost")

    def payload(self, *types: Any) -> TensorType:
        """Return what one rank hands to the exchange; of collectives only."""
        raise NotImplementedError(f"{type(self).__name__} exchanges nothing")

    def reject(self, port: str, got: object, expected: str) -> TypeRuleError:
        """Return the error of a port that got the wrong type, for `infer` to raise."""
        return TypeRuleError(f"{type(self).__name__}.{port}: expected {expected}, got {got}")

    def result_types(self, *types: PortType) -> tuple[PortType, ...]:
        """Check the kind of every port, apply `infer`, and return one type per result."""
        if len(types) != len(self.ports):
            raise TypeRuleError(
                f"{type(self).__name__}: expected {len(self.ports)} inputs ({', '.join(self.ports)}), got {len(types)}"
            )
        state_ports = {*self.reads, *self.writes}
        for port, port_type in zip(self.ports, types, strict=True):
            if isinstance(port_type, StateType) != (port in state_ports):
                raise self.reject(port, port_type, "a state" if port in state_ports else "a tensor, not a state")
        inferred = self.infer(*types)
        result_types = inferred if isinstance(inferred, tuple) else (inferred,)
        assert len(result_types) == len(self.results), f"{type(self).__name__}.infer disagrees with results"
        return result_types

    def inner_circuit(self) -> "Circuit | None":
        """Return the circuit that the node stands for, whose document is its attribute `body`; None for most nodes."""
        return None

    def attributes(self) -> dict[str, Any]:
        """Return the attributes by name, as plain JSON values."""
        return self.model_dump(mode="json")

    def __call__(self, *args: "Value") -> Any:
        """Append this node to the circuit that `args` belong to; return its result, or a tuple of its results."""
        if not args:
            raise TypeRuleError(f"{type(self).__name__}: expected {', '.join(self.ports)}, got no inputs")
        return args[0].circuit.call(self, *args)

    def __str__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self.attributes().items())
        return f"{type(self).__name__}({fields})"


def _ports_of(cls: type[Node]) -> tuple[str, ...]:
    parameters = list(inspect.signature(cls.reference).parameters.values())[1:]
    for parameter in parameters:
        if parameter.kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD or parameter.default is not parameter.empty:
            raise TypeError(f"{cls.__name__}.reference: {parameter} must be a plain parameter without a default")
    return tuple(parameter.name for parameter in parameters)


def node_types() -> dict[str, type[Node]]:
    """Return every declared node type by name, sorted; import `nodes` first to have the built-in ones."""
    return dict(sorted(_CATALOGUE.items()))


def snake_case(name: str) -> str:
    """Return `RmsNorm` as `rms_norm`."""
    return _BOUNDARY.sub("_", name).lower()
