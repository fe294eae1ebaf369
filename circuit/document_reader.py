"""Text of a circuit document -> plain data, and the line of every entry.

Documents are untrusted. The text is read event by event with ruamel.yaml's pure parser, and the data is built here:
no tags, no anchors, no aliases, no object construction, every mapping key a string, duplicate keys refused, size and
depth bounded. Scalars follow YAML 1.2's core schema, so `no` and `on` are strings and `1e-5` is a number. JSON is read
by the same reader, which knows the two places where JSON is no YAML: pairs of `\\u` surrogates, and tabs.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    CollectionStartEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
)
from ruamel.yaml.reader import ReaderError

from circuit.errors import DocumentError

Path: TypeAlias = tuple[str | int, ...]
_Content: TypeAlias = ScalarEvent | CollectionStartEvent

MAX_DOCUMENT_BYTES = 1 << 20
_MAX_DEPTH = 32
_MAX_NUMBER_CHARACTERS = 100

_NULL = {"", "~", "null", "Null", "NULL"}
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT = re.compile(r"[-+]?[0-9]+\Z")
_OCTAL_OR_HEX = re.compile(r"0o[0-7]+\Z|0x[0-9a-fA-F]+\Z")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)\Z|\.(nan|NaN|NAN)\Z")
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*\Z")


@dataclass(frozen=True, slots=True)
class DocumentData:
    """Plain data of a document with the line (from 1) of each entry by path; data given as objects has no lines."""

    source: str
    data: Any
    lines: Mapping[Path, int] = field(default_factory=dict)

    def place(self, path: Path) -> str:
        """Return `file:line: nodes[3].inputs.x`, the line being that of the nearest entry that has one."""
        known = next((path[:end] for end in range(len(path), -1, -1) if path[:end] in self.lines), None)
        where = self.source if known is None else f"{self.source}:{self.lines[known]}"
        return f"{where}: {spelled}" if (spelled := spell_path(path)) else where

    def error(self, path: Path, message: str) -> DocumentError:
        """Return the error of the entry at `path`, for the caller to raise."""
        return DocumentError(f"{self.place(path)}: {message}")


def spell_path(path: Path) -> str:
    """Return `('nodes', 3, 'inputs', 'x')` as `nodes[3].inputs.x`, names that are no identifiers in quotes."""
    spelled = ""
    for part in path:
        if isinstance(part, int):
            spelled += f"[{part}]"
        elif _IDENTIFIER.match(part):
            spelled += f".{part}" if spelled else part
        else:
            spelled += f"[{json.dumps(part, ensure_ascii=False)}]"
    return spelled


def read_data(text: str, *, source: str) -> DocumentData:
    """Read YAML or JSON text; `DocumentError` has the line, what was expected and what came."""
    if len(text.encode("utf-8", "surrogatepass")) > MAX_DOCUMENT_BYTES:
        raise DocumentError(
            f"{source}:1: expected at most {MAX_DOCUMENT_BYTES} bytes, got more; declare a smaller circuit"
        )
    composer = _Composer(source)
    for event in _events(text, source):
        composer.take(event)
    if not composer.num_documents:
        raise DocumentError(f"{source}:1: the document is empty; start with `circuit: NAME` and `format: 1`")
    return DocumentData(source, composer.root, composer.lines)


def _events(text: str, source: str) -> Iterator[Event]:
    reader = YAML(typ="safe", pure=True)
    try:
        yield from reader.parse(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark is not None else 1
        what = error.problem or error.context or "it cannot be read"
        # a type such as f32[n, 8] needs no quotes, except between braces
        step = "put a type in quotes there" if "but got '['" in what else "correct the text there"
        raise DocumentError(f"{source}:{line}: not valid YAML or JSON: {what}; {step}") from None
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise DocumentError(
            f"{source}:{line}: the character {text[error.position : error.position + 1]!r} may not stand in a "
            f"document; remove it, or write it as an escape in a double-quoted string"
        ) from None
    except (YAMLError, ValueError, TypeError, AttributeError, LookupError, ArithmeticError, AssertionError) as error:
        # some malformed directives and escapes end in a bare exception inside ruamel
        raise DocumentError(f"{source}:1: not valid YAML or JSON: {error}; correct the text") from None


@dataclass(slots=True)
class _Open:
    """A mapping or list whose entries are being read; `key` is the mapping key that waits for its value."""

    data: dict[str, Any] | list[Any]
    path: Path
    key: str | None = None


class _Composer:
    """Builds data and lines out of events; iterative, so that depth is a bound and never a stack overflow."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.root: Any = None
        self.lines: dict[Path, int] = {}
        self.num_documents = 0
        self._open: list[_Open] = []

    def take(self, event: Event) -> None:
        """Take the next event."""
        line = event.start_mark.line + 1
        match event:
            case DocumentStartEvent():
                self.num_documents += 1
                if self.num_documents > 1:
                    raise self._error(line, "a second document starts; keep one circuit in a file")
            case AliasEvent():
                raise self._error(line, f"the alias *{event.anchor} is not supported; write the entry out")
            case MappingEndEvent() | SequenceEndEvent():
                self._open.pop()
            case ScalarEvent() | CollectionStartEvent():
                self._refuse_anchor_and_tag(event, line)
                self._take_node(event, line)

    def _take_node(self, event: _Content, line: int) -> None:
        holder = self._open[-1] if self._open else None
        if holder is not None and isinstance(holder.data, dict) and holder.key is None:
            self._take_key(event, holder, line)
            return
        path = self._place_of_next(holder, line)
        value: Any
        match event:
            case ScalarEvent():
                value = self._scalar(event, line)
            case MappingStartEvent():
                value = {}
            case CollectionStartEvent():
                value = []
        if holder is None:
            self.root = value
        elif isinstance(holder.data, list):
            holder.data.append(value)
        else:
            assert holder.key is not None
            holder.data[holder.key] = value
            holder.key = None
        if isinstance(value, (dict, list)):
            self._open.append(_Open(value, path))
            if len(self._open) > _MAX_DEPTH:
                raise self._error(line, f"nested deeper than {_MAX_DEPTH}; a circuit document needs 4 levels")

    def _take_key(self, event: _Content, holder: _Open, line: int) -> None:
        if not isinstance(event, ScalarEvent):
            raise self._error(line, "expected a name as the key of a mapping, got a mapping or list")
        # a key is a name whatever it looks like: `on`, `1` and `null` are names here
        key = self._text(event.value, line)
        if key in holder.data:
            first = self.lines[(*holder.path, key)]
            raise self._error(line, f"the key {key!r} stands twice, first at line {first}; keep one")
        holder.key = key
        self.lines[(*holder.path, key)] = line

    def _place_of_next(self, holder: _Open | None, line: int) -> Path:
        if holder is None:
            self.lines[()] = line
            return ()
        if isinstance(holder.data, list):
            path: Path = (*holder.path, len(holder.data))
            self.lines[path] = line
            return path
        assert holder.key is not None
        return (*holder.path, holder.key)

    def _scalar(self, event: ScalarEvent, line: int) -> Any:
        text = self._text(event.value, line)
        if event.style is not None:
            return text
        if text in _NULL:
            return None
        if text in _BOOL:
            return _BOOL[text]
        is_float = _FLOAT.match(text)
        if (is_float or _OCTAL_OR_HEX.match(text)) and len(text) > _MAX_NUMBER_CHARACTERS:
            raise self._error(line, f"expected a number of at most {_MAX_NUMBER_CHARACTERS} characters")
        if _INT.match(text):
            return int(text)
        if _OCTAL_OR_HEX.match(text):
            return int(text, 0)
        if is_float:
            return float(text)
        if _NOT_FINITE.match(text):
            return float(text.replace(".", ""))
        return text

    def _text(self, text: str, line: int) -> str:
        try:
            # JSON writes characters past U+FFFF as two escapes, which YAML leaves apart
            return text.encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError:
            raise self._error(line, "half of a \\u surrogate pair stands alone; write both halves") from None

    def _refuse_anchor_and_tag(self, event: _Content, line: int) -> None:
        if event.anchor is not None:
            raise self._error(
                line, f"the anchor &{event.anchor} is not supported; write the entry out where it is used"
            )
        if getattr(event, "tag", None) is not None:
            raise self._error(line, f"the tag {event.tag} is not supported; write plain mappings, lists and scalars")

    def _error(self, line: int, message: str) -> DocumentError:
        return DocumentError(f"{self.source}:{line}: {message}")
