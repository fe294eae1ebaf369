"""The shape of a circuit document, and its faults said with place, expectation, what came and the next step."""

from collections.abc import Mapping
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, field_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from circuit.document_reader import DocumentData, Path
from circuit.errors import DocumentError, close_names

FORMAT = 1
# the key under which a bare `results: name` is held
SINGLE_RESULT = ""

_EXPECTED = {
    "string_type": "a string",
    "dict_type": "a mapping",
    "mapping_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "list_type": "a list",
    "tuple_type": "a list",
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "none_required": "null",
}
_NUMBER_TYPES = {"int_type", "float_type", "int_from_float"}


class NodeDocument(BaseModel):
    """One node call of a document."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    node: str
    attributes: dict[str, JsonValue] = Field(default_factory=dict)
    inputs: dict[str, str]
    results: dict[str, str]
    block: str = ""

    @field_validator("results", mode="before")
    @classmethod
    def _name_of_single_result(cls, results: Any) -> Any:
        if not isinstance(results, (str, dict)):
            raise PydanticCustomError("results_type", "Input should be a name, or a mapping of each result to a name")
        return {SINGLE_RESULT: results} if isinstance(results, str) else results


class CircuitDocument(BaseModel):
    """A whole document, as data."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    circuit: str
    format: int
    inputs: dict[str, str] = Field(default_factory=dict)
    weights: dict[str, str] = Field(default_factory=dict)
    states: dict[str, str] = Field(default_factory=dict)
    nodes: list[NodeDocument] = Field(default_factory=list)
    outputs: dict[str, str] = Field(default_factory=dict)
    state_outputs: dict[str, str] = Field(default_factory=dict)

    @field_validator("format", mode="before")
    @classmethod
    def _known_format(cls, number: Any) -> Any:
        # true equals 1, and is no format
        if type(number) is not int or number != FORMAT:
            raise PydanticCustomError("format_type", f"Input should be {FORMAT}, the one format there is")
        return number


def document_fault(error: ValidationError, data: DocumentData, model: type[BaseModel], *, path: Path) -> DocumentError:
    """Return the first fault of `model` at `path` as a `DocumentError` with its line."""
    # a misspelt key is the better news than the missing one that follows from it
    first = min(error.errors(include_url=False), key=lambda fault: fault["type"] != "extra_forbidden")
    at: Path = (*path, *(part for part in first["loc"] if part != "[key]"))
    match first["type"]:
        case "extra_forbidden":
            holder = _model_at(model, first["loc"][:-1])
            return data.error(at, f"unknown key; {close_names(str(at[-1]), holder.model_fields)}")
        case "missing":
            held = _model_at(model, first["loc"][:-1]).model_fields
            listed = ", ".join(name for name, declared in held.items() if declared.is_required())
            return data.error(at[:-1], f"{str(at[-1])!r} is missing; required here: {listed}")
    return data.error(at, _message(first))


def describe(value: Any) -> str:
    """Return what a piece of a document is: `the integer 3`, `the string 'abc'`, `a mapping`, `nothing (null)`."""
    match value:
        case None:
            return "nothing (null)"
        case bool():
            return str(value).lower()
        case int():
            return f"the integer {value}"
        case float():
            return f"the number {value}"
        case str():
            return f"the string {value[:60]!r}{'...' if len(value) > 60 else ''}"
        case Mapping():
            return "a mapping"
        case list() | tuple():
            return "a list"
    return f"an object of type {type(value).__name__}"


def _message(fault: ErrorDetails) -> str:
    kind, got = fault["type"], fault["input"]
    expected = _EXPECTED.get(kind) or fault["msg"].removeprefix("Input should be ")
    step = "correct the entry"
    if kind == "string_type" and isinstance(got, (int, float)):
        step = "put it in quotes"
    if kind in _NUMBER_TYPES and isinstance(got, str):
        step = "write the number without quotes"
    return f"expected {expected}, got {describe(got)}; {step}"


def _model_at(model: type[BaseModel], location: tuple[int | str, ...]) -> type[BaseModel]:
    for part in location:
        if isinstance(part, str) and part in model.model_fields:
            inner = model.model_fields[part].annotation
            model = next((held for held in (inner, *get_args(inner)) if _is_model(held)), model)
    return model


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)
