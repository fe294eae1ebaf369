"""Malformed and hostile documents: each is refused with the file, the line, what was expected and what came."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from circuit import Circuit, CircuitError, DocumentError, TypeRuleError, VerifyError, from_document, load_document
from circuit.document_reader import MAX_DOCUMENT_BYTES, read_data

DOCUMENT = """\
circuit: tiny
format: 1
inputs:
  x: f32[n, 8]
weights:
  gain: f32[8]
states:
  cache: paged f32[num_blocks, 4, 8]
nodes:
  - node: ToyOptions
    attributes: {count: 3, ratio: 1e-5}
    inputs: {x: x}
    results: y
  - node: ToyGain
    inputs: {x: y, gain: gain}
    results: z
    block: head
  - node: ToyWrite
    inputs: {cache: cache, rows: z}
    results: {cache: next_cache, magnitude: size}
outputs:
  size: size
  z: z
state_outputs:
  cache: next_cache
"""

FAULTS = YAML(typ="safe", pure=True).load(Path(__file__).parent / "text" / "faults.yaml")
DOCUMENT_FAULTS = [pytest.param(fault, id=name) for name, fault in FAULTS.items() if "type" not in fault]
LANGUAGE_FAULTS = [pytest.param(fault, id=name) for name, fault in FAULTS.items() if "type" in fault]


def with_fault(replace: str, by: str) -> str:
    assert replace in DOCUMENT
    return DOCUMENT.replace(replace, by, 1)


def test_the_document_before_the_faults_is_legal() -> None:
    assert isinstance(from_document(DOCUMENT), Circuit)


@pytest.mark.parametrize("fault", DOCUMENT_FAULTS)
def test_malformed_document_is_refused_with_its_line(fault: dict[str, Any]) -> None:
    with pytest.raises(DocumentError) as caught:
        from_document(with_fault(fault["replace"], fault["by"]), source="tiny.yaml")
    assert str(caught.value).startswith(f"tiny.yaml:{fault['line']}: ")
    assert fault["says"] in str(caught.value)
    assert type(caught.value) is DocumentError
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("fault", LANGUAGE_FAULTS)
def test_fault_of_the_language_is_noted_with_its_line(fault: dict[str, Any]) -> None:
    with pytest.raises(CircuitError) as caught:
        from_document(with_fault(fault["replace"], fault["by"]), source="tiny.yaml")
    assert type(caught.value).__name__ == fault["type"]
    assert caught.value.report().splitlines()[-1] == f"at tiny.yaml:{fault['line']}: {fault['says']}"


@pytest.mark.parametrize(
    "dims", ["*".join(["(a+b+c+d+e+f)"] * 14), ",".join("1" * 5000), "a" * 10_000], ids=["product", "many", "long"]
)
def test_dims_that_would_explode_are_refused_at_once(dims: str) -> None:
    start = time.monotonic()
    with pytest.raises(TypeRuleError) as caught:
        from_document(with_fault("f32[8]", f"f32[{dims}]"), source="tiny.yaml")
    assert caught.value.report().splitlines()[-1] == "at tiny.yaml:6: weights.gain"
    assert time.monotonic() - start < 5


def test_number_of_thousands_of_digits_is_refused() -> None:
    with pytest.raises(DocumentError, match=r"^tiny\.yaml:11: expected a number of at most 100 characters"):
        from_document(with_fault("count: 3", f"count: {'9' * 5000}"), source="tiny.yaml")


def test_name_of_hundreds_of_characters_is_refused() -> None:
    with pytest.raises(VerifyError, match="expected 1 to 256 printable characters"):
        from_document(with_fault("  z: z", f"  {'z' * 257}: z"))


def test_section_of_the_wrong_kind_is_refused() -> None:
    with pytest.raises(DocumentError, match=r"^tiny\.yaml:3: nodes: expected a list, got a mapping"):
        from_document("circuit: tiny\nformat: 1\nnodes: {}\n", source="tiny.yaml")


def test_use_before_definition_says_where_the_definition_is() -> None:
    first, _, rest = DOCUMENT.partition("  - node: ToyOptions")
    options, gain, write = ("  - node: ToyOptions" + rest).split("  - node: Toy")[1:]
    text = first + "".join(f"  - node: Toy{part}" for part in (gain, options, write))
    with pytest.raises(DocumentError) as caught:
        from_document(text, source="tiny.yaml")
    assert str(caught.value) == (
        "tiny.yaml:11: nodes[0].inputs.x: 'y' is defined later, at tiny.yaml:17: nodes[1].results; "
        "move that node above this one"
    )


@pytest.mark.parametrize("text", ["", "  \n", "# nothing\n", "---\n...\n"])
def test_empty_document_is_refused(text: str) -> None:
    with pytest.raises(DocumentError, match=r"^tiny\.yaml:[12]: (the document is empty|expected a mapping)"):
        from_document(text, source="tiny.yaml")


@pytest.mark.parametrize("text, got", [("3", "the integer 3"), ("- a", "a list"), ("circuit", "the string 'circuit'")])
def test_top_level_of_another_kind_is_refused(text: str, got: str) -> None:
    with pytest.raises(DocumentError, match=f"^tiny.yaml:1: expected a mapping, got {got}"):
        from_document(text, source="tiny.yaml")


@pytest.mark.parametrize("text", ["[" * 100_000, "{a: " * 10_000, "- " * 100_000, "a:\n" + " a:\n" * 1, "? " * 10_000])
def test_deep_nesting_is_refused_at_once(text: str) -> None:
    start = time.monotonic()
    with pytest.raises(DocumentError):
        from_document(text)
    # the time of the parser's look-ahead; the whole text would take it minutes
    assert time.monotonic() - start < 10


def test_document_of_more_than_the_largest_size_is_refused() -> None:
    with pytest.raises(DocumentError, match=rf"^tiny\.yaml:1: expected at most {MAX_DOCUMENT_BYTES} bytes"):
        from_document("#" * (MAX_DOCUMENT_BYTES + 1), source="tiny.yaml")


def test_alias_bomb_is_refused_at_its_first_anchor() -> None:
    bomb = "a: &a [x, x]\n" + "".join(
        f"{chr(98 + i)}: &{chr(98 + i)} [*{chr(97 + i)}, *{chr(97 + i)}]\n" for i in range(20)
    )
    with pytest.raises(DocumentError, match=r"^bomb:1: the anchor &a is not supported"):
        from_document(bomb, source="bomb")


def test_faults_of_json_have_their_line() -> None:
    text = json.dumps({"circuit": "tiny", "format": 1, "outputs": {"y": "x"}}, indent=2)
    with pytest.raises(DocumentError, match=r"^tiny\.json:5: outputs\.y: no value 'x'; there is none"):
        from_document(text, source="tiny.json")


def test_data_without_lines_names_its_source_and_place() -> None:
    with pytest.raises(DocumentError, match=r"^given: nodes\[0\]: expected a mapping, got an object of type set"):
        from_document({"circuit": "tiny", "format": 1, "nodes": [set()]}, source="given")


def test_data_with_a_key_that_is_no_string_is_refused() -> None:
    with pytest.raises(DocumentError, match=r"^given: inputs\[3\]: expected a string, got the integer 3"):
        from_document({"circuit": "tiny", "format": 1, "inputs": {3: "f32[n]"}}, source="given")


@pytest.mark.parametrize("raw, line", [(b"\xff", 1), (b"circuit: tiny\nx: \xc3\x28", 2), ("é".encode("latin-1"), 1)])
def test_file_that_is_not_utf8_is_refused(raw: bytes, line: int, tmp_path: Path) -> None:
    path = tmp_path / "tiny.yaml"
    path.write_bytes(raw)
    with pytest.raises(DocumentError, match=rf"tiny\.yaml:{line}: expected UTF-8 text, got the byte 0x"):
        load_document(path)


def test_large_file_is_not_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "tiny.yaml"
    # a character of three bytes is cut by the bound
    path.write_bytes("日".encode() * (MAX_DOCUMENT_BYTES // 3 + 1))
    with pytest.raises(DocumentError, match=r"tiny\.yaml:1: expected at most"):
        load_document(path)


def test_missing_file_and_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match=r"missing\.yaml: cannot be read: No such file or directory"):
        load_document(tmp_path / "missing.yaml")
    with pytest.raises(DocumentError, match="cannot be read: Is a directory"):
        load_document(tmp_path)
    with pytest.raises(DocumentError, match="cannot be read: embedded null byte"):
        load_document("a\0.yaml")


def test_keys_are_names_whatever_they_look_like() -> None:
    data = read_data("{on: 1, null: 2, 3: 4, 1e5: 5, '': 6}", source="keys")
    assert data.data == {"on": 1, "null": 2, "3": 4, "1e5": 5, "": 6}


def test_scalars_follow_the_core_schema() -> None:
    spelled = (
        "[1, -2, 0x1f, 0o17, 012, 1e-5, .5, 1., yes, off, ~, null, '', TRUE, 1:30, 2001-01-01, '1', \"\\ud83d\\ude00\"]"
    )
    read = read_data(spelled, source="scalars").data
    assert read == [
        1,
        -2,
        31,
        15,
        12,
        1e-5,
        0.5,
        1.0,
        "yes",
        "off",
        None,
        None,
        "",
        True,
        "1:30",
        "2001-01-01",
        "1",
        "😀",
    ]
    assert [type(value) for value in read[:8]] == [int] * 5 + [float] * 3


def test_lines_are_those_of_keys_and_list_items() -> None:
    lines = read_data("a:\n  b: [1,\n    2]\nc:\n  - d:\n      x\n", source="lines").lines
    assert lines[("a", "b")] == 2
    assert lines[("a", "b", 1)] == 3
    assert lines[("c", 0, "d")] == 5
