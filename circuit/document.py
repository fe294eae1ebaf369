"""The document form of a circuit: YAML or JSON that a person writes and a tool reads back exactly.

    circuit: tiny_head
    format: 1
    inputs:
      x: f32[n, 8]
    weights:
      gain: f32[8]
    nodes:
      - node: RmsNorm
        attributes: {eps: 1.0e-05}
        inputs: {x: x, weight: gain}
        results: y
        block: attention/input_norm
    outputs: {y: y}

Nodes stand in the order in which they run; ports are wired by name; `results` names the one result, or maps each result
of the node to a name; `block` is optional and means nothing to the arithmetic. States are declared as
`latent: paged f32[num_blocks, 16, 32]`, and `state_outputs` says which version of a state a run leaves behind.

Documents are untrusted input: nothing is constructed or evaluated, sizes are bounded, unknown keys are refused, and
every error begins with `file:line:` or has it in a note.
"""

import json
import os
import re
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from circuit.document_builder import build_circuit
from circuit.document_model import FORMAT, CircuitDocument, document_fault
from circuit.document_reader import MAX_DOCUMENT_BYTES, DocumentData, read_data
from circuit.errors import DocumentError
from circuit.graph import Call, Circuit
from circuit.verify import verify

_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*\Z")
_PLAIN_TYPE = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*( ?[A-Za-z0-9_()\[\]+*/,-])*\Z")
# words that this reader or an older YAML reader takes for something else than a string
_NOT_PLAIN = {"null", "true", "false", "yes", "no", "on", "off"}
_NEVER_RAW = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff\ud800-\udfff]")


def load_document(path: str | Path) -> Circuit:
    """Read a `.yaml`, `.yml` or `.json` file and return its verified circuit; `DocumentError` has file and line."""
    source = str(path)
    try:
        with Path(path).open("rb") as file:
            raw = file.read(MAX_DOCUMENT_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise DocumentError(f"{source}: cannot be read: {reason}; check the path") from None
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if error.end < MAX_DOCUMENT_BYTES:
            line = raw.count(b"\n", 0, error.start) + 1
            message = f"expected UTF-8 text, got the byte 0x{raw[error.start]:02x}; save the file as UTF-8"
            raise DocumentError(f"{source}:{line}: {message}") from None
        text = raw.decode("utf-8-sig", errors="replace")
    return from_document(text, source=source)


def from_document(document: str | Mapping[str, Any], *, source: str = "document") -> Circuit:
    """Return the verified circuit of a document, given as YAML or JSON text or as data.

    `DocumentError` for a malformed document; `TypeRuleError` and `VerifyError` of the language carry the place as a
    note. The node types must be declared before: import `nodes`.
    """
    data = read_data(document, source=source) if isinstance(document, str) else DocumentData(source, dict(document))
    try:
        model = CircuitDocument.model_validate(data.data)
    except ValidationError as error:
        raise document_fault(error, data, CircuitDocument, path=()) from None
    return build_circuit(model, data)


def to_document(circuit: Circuit) -> dict[str, Any]:
    """Return the document of a circuit as plain data; sections that would be empty are left out."""
    sections: dict[str, Any] = {
        "inputs": {name: str(value.type) for name, value in circuit.inputs.items()},
        "weights": {name: str(value.type) for name, value in circuit.weights.items()},
        "states": {name: str(value.type) for name, value in circuit.states.items()},
        "nodes": [_node_document(call) for call in circuit.calls],
        "outputs": {name: value.name for name, value in circuit.outputs.items()},
        "state_outputs": {name: value.name for name, value in circuit.state_outputs.items()},
    }
    return {"circuit": circuit.name, "format": FORMAT, **{key: held for key, held in sections.items() if held}}


def to_yaml(circuit: Circuit) -> str:
    """Return the document as YAML text, the same text for the same circuit."""
    lines: list[str] = []
    for section, held in to_document(circuit).items():
        match held:
            case dict():
                lines += [f"{section}:", *(f"  {_name(name)}: {_scalar(value)}" for name, value in held.items())]
            case list():
                lines.append(f"{section}:")
                for node in held:
                    entries = [f"{key}: {_flow(value)}" for key, value in node.items()]
                    lines += [f"  - {entries[0]}", *(f"    {entry}" for entry in entries[1:])]
            case _:
                lines.append(f"{section}: {_scalar(held)}")
    return "\n".join(lines) + "\n"


def to_json(circuit: Circuit) -> str:
    """Return the document as JSON text, the same text for the same circuit."""
    return _escaped(json.dumps(to_document(circuit), indent=2, ensure_ascii=False, allow_nan=False)) + "\n"


def save_document(circuit: Circuit, path: str | Path) -> None:
    """Verify the circuit and write it as YAML or JSON, by the suffix; the file is replaced whole or not at all."""
    writers = {".yaml": to_yaml, ".yml": to_yaml, ".json": to_json}
    # a link keeps pointing to the file that is replaced
    target = Path(path).resolve()
    if target.suffix not in writers:
        raise DocumentError(f"{path}: expected a name that ends in {', '.join(writers)}, got {target.suffix!r}")
    verify(circuit)
    text = writers[target.suffix](circuit)
    part = target.with_name(f".{secrets.token_hex(8)}.part")
    try:
        with part.open("x", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            shutil.copymode(target, part)
        part.replace(target)
    except OSError as error:
        raise DocumentError(f"{path}: cannot be written: {error.strerror}; check the folder and its rights") from None
    finally:
        part.unlink(missing_ok=True)


def _node_document(call: Call) -> dict[str, Any]:
    node = call.node
    names = [value.name for value in call.results]
    entries = {
        "node": type(node).__name__,
        "attributes": node.attributes(),
        "inputs": dict(zip(node.ports, (arg.name for arg in call.args), strict=True)),
        "results": names[0] if len(names) == 1 else dict(zip(node.results, names, strict=True)),
        "block": call.block,
    }
    return {key: held for key, held in entries.items() if held or key == "inputs"}


def _flow(value: Any) -> str:
    match value:
        case dict():
            return "{" + ", ".join(f"{_name(key)}: {_flow(held)}" for key, held in value.items()) + "}"
        case list():
            return "[" + ", ".join(_flow(held) for held in value) + "]"
        case str():
            return _name(value)
    return _scalar(value)


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        return value if _PLAIN_TYPE.match(value) and value.lower() not in _NOT_PLAIN else _quoted(value)
    spelled = json.dumps(value, allow_nan=False)
    # 1e-05 is a number in YAML 1.2, and a string in 1.1, which other readers still follow
    mantissa, exponent, power = spelled.partition("e")
    return f"{mantissa}.0e{power}" if isinstance(value, float) and exponent and "." not in mantissa else spelled


def _name(name: str) -> str:
    return name if _PLAIN_NAME.match(name) and name.lower() not in _NOT_PLAIN else _quoted(name)


def _quoted(text: str) -> str:
    return _escaped(json.dumps(text, ensure_ascii=False))


def _escaped(text: str) -> str:
    return _NEVER_RAW.sub(lambda match: f"\\u{ord(match.group()):04x}", text)
