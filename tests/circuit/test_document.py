"""The document form: what it looks like, that it round-trips, and how it is written to disk."""

import json
import re
import stat
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from circuit import (
    Circuit,
    CircuitError,
    DocumentError,
    StateType,
    VerifyError,
    f32,
    from_document,
    load_document,
    save_document,
    to_document,
    to_json,
    to_text,
    to_yaml,
)
from tests.support.circuit_strategies import PROPERTY, circuits
from tests.support.toy_nodes import ToyOptions, ToyScale, toy_circuit

GOLDEN = Path(__file__).parent / "text"
SUFFIXES = [".yaml", ".yml", ".json"]


def with_options(node: ToyOptions) -> Circuit:
    circuit = Circuit("options")
    circuit.output("y", node(circuit.input("x", f32("n", 1))))
    return circuit


def test_yaml_form_is_the_golden_one() -> None:
    assert to_yaml(toy_circuit()) == (GOLDEN / "toy.yaml").read_text()


def test_json_form_is_the_golden_one() -> None:
    assert to_json(toy_circuit()) == (GOLDEN / "toy.json").read_text()


@pytest.mark.parametrize("spelled", [to_yaml, to_json, to_document])
def test_document_gives_the_circuit_back(spelled: object) -> None:
    circuit = toy_circuit()
    assert callable(spelled)
    assert to_text(from_document(spelled(circuit))) == to_text(circuit)


@settings(PROPERTY, max_examples=25)
@given(circuits())
def test_random_circuit_survives_yaml_json_and_data(circuit: Circuit) -> None:
    text = to_text(circuit)
    assert to_text(from_document(to_yaml(circuit))) == text
    assert to_text(from_document(to_json(circuit))) == text
    assert to_text(from_document(to_document(circuit))) == text
    assert to_yaml(from_document(to_json(circuit))) == to_yaml(circuit)
    # what any JSON writer makes of it: escapes for all that is not ASCII, halves of pairs included
    assert to_text(from_document(json.dumps(to_document(circuit)))) == text


def test_text_written_by_hand_is_read_and_written_back() -> None:
    by_hand = """
    # comments, flow and block style, omitted defaults and sections
    format: 1
    circuit: by hand
    nodes:
    - results: y
      node: ToyOptions
      inputs:
        x: x
      attributes: {count: 3, ratio: 1e-5}
    inputs: {x: "f32[ n,2*4 ]"}
    outputs:
      "y": y
    """
    circuit = from_document(by_hand)
    (call,) = circuit.calls
    assert call.node == ToyOptions(count=3, ratio=1e-5)
    assert to_text(from_document(to_yaml(circuit))) == to_text(circuit)


def test_ports_may_be_wired_in_any_order() -> None:
    circuit = toy_circuit()
    document = to_document(circuit)
    document["nodes"][1]["inputs"] = dict(reversed(document["nodes"][1]["inputs"].items()))
    assert to_text(from_document(document)) == to_text(circuit)


@pytest.mark.parametrize("spelled", [to_yaml, to_json])
def test_empty_circuit_round_trips(spelled: object) -> None:
    assert callable(spelled)
    assert to_text(from_document(spelled(Circuit("nothing")))) == to_text(Circuit("nothing"))


def test_state_that_nothing_touches_round_trips() -> None:
    circuit = Circuit("idle")
    state = circuit.state("ring", StateType("ring", f32("num_sequences", 3, 1)))
    circuit.state_output("ring", state)
    assert to_text(from_document(to_yaml(circuit))) == to_text(circuit)


@pytest.mark.parametrize("number", [1e-5, 0.1, 1.0, -0.0, 5e-324, 1.7976931348623157e308, 1e16, 123456789.123456789])
@pytest.mark.parametrize("spelled", [to_yaml, to_json])
def test_float_attribute_is_exact(number: float, spelled: object) -> None:
    assert callable(spelled)
    (call,) = from_document(spelled(with_options(ToyOptions(count=1, ratio=number)))).calls
    assert isinstance(call.node, ToyOptions)
    assert call.node.ratio.hex() == number.hex()


@pytest.mark.parametrize("spelled", ["1e-5", "1E-5", "1.0e-5", "0.00001", "+1e-5", "10e-6"])
def test_every_spelling_of_a_float_is_a_number(spelled: str) -> None:
    text = to_yaml(with_options(ToyOptions(count=1))).replace("ratio: 0.5", f"ratio: {spelled}")
    (call,) = from_document(text).calls
    assert call.node == ToyOptions(count=1, ratio=1e-5)


@pytest.mark.parametrize("number", [0, -1, 2**63, -(2**80)])
def test_integer_attribute_stays_an_integer(number: int) -> None:
    (call,) = from_document(to_yaml(with_options(ToyOptions(count=number)))).calls
    assert isinstance(call.node, ToyOptions)
    assert type(call.node.count) is int
    assert call.node.count == number


@pytest.mark.parametrize(
    "label", ["", "true", "3", "1e-5", "null", "a: b", "\x7f\x85\u2028", "tab\there", "two\nlines", "é😀"]
)
@pytest.mark.parametrize("spelled", [to_yaml, to_json])
def test_string_attribute_stays_a_string(label: str, spelled: object) -> None:
    assert callable(spelled)
    (call,) = from_document(spelled(with_options(ToyOptions(count=1, label=label)))).calls
    assert call.node == ToyOptions(count=1, label=label)


def test_boolean_attribute_is_no_integer() -> None:
    text = to_yaml(with_options(ToyOptions(count=1))).replace("is_on: false", "is_on: 0")
    with pytest.raises(DocumentError, match="expected true or false, got the integer 0"):
        from_document(text)


def test_tabs_between_tokens_of_json_are_read() -> None:
    circuit = toy_circuit()
    assert to_text(from_document(json.dumps(to_document(circuit), indent="\t"))) == to_text(circuit)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_saved_circuit_loads(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"toy{suffix}"
    save_document(toy_circuit(), path)
    assert to_text(load_document(path)) == to_text(toy_circuit())
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("prefix", [b"\xef\xbb\xbf", b"\r\n\r\n"])
def test_byte_order_mark_and_foreign_line_ends_are_read(prefix: bytes, tmp_path: Path) -> None:
    path = tmp_path / "toy.yaml"
    path.write_bytes(prefix + to_yaml(toy_circuit()).replace("\n", "\r\n").encode())
    assert to_text(load_document(path)) == to_text(toy_circuit())


def test_saving_keeps_mode_and_link_of_the_file_it_replaces(tmp_path: Path) -> None:
    path, link = tmp_path / "toy.yaml", tmp_path / "link.yaml"
    path.write_text("old")
    path.chmod(0o640)
    link.symlink_to(path)
    save_document(toy_circuit(), link)
    assert link.is_symlink()
    assert path.read_text() == to_yaml(toy_circuit())
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "toy.yaml"
    path.write_text("old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(DocumentError, match=r"toy\.yaml: cannot be written: No space left on device"):
        save_document(toy_circuit(), path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_save_refuses_an_unknown_suffix(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match=r"\.yaml, \.yml, \.json, got '\.txt'"):
        save_document(toy_circuit(), tmp_path / "toy.txt")


def test_save_refuses_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match="cannot be written: No such file or directory"):
        save_document(toy_circuit(), tmp_path / "missing" / "toy.yaml")


def test_save_refuses_a_circuit_that_could_not_be_loaded(tmp_path: Path) -> None:
    circuit = toy_circuit()
    ToyScale(factor=1.0)(circuit.inputs["x"])
    with pytest.raises(VerifyError, match="reaches no output"):
        save_document(circuit, tmp_path / "toy.yaml")
    assert not list(tmp_path.iterdir())


@settings(PROPERTY, max_examples=60)
@given(st.text(max_size=40), st.integers(0, 10_000))
def test_damaged_document_is_an_error_or_a_circuit(inserted: str, offset: int) -> None:
    """Nothing but a circuit or an error of the language comes out, whatever is put in."""
    text = to_yaml(toy_circuit())
    offset %= len(text)
    damaged = text[:offset] + inserted + text[offset + 2 * len(inserted) :]
    try:
        report = f"damaged.yaml:0: {from_document(damaged, source='damaged.yaml')}"
    except CircuitError as error:
        report = error.report()
    assert re.search(r"(^|\nat )damaged\.yaml:\d+: ", report)
