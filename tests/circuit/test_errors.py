"""Errors: reports with notes, and names that come close."""

import pytest

from circuit import CircuitError, Cost, VerifyError, close_names, f32, total_bytes
from circuit import errors as declared


def test_report_is_message_then_notes() -> None:
    error = CircuitError("fault")
    assert error.report() == "fault"
    error.add_note("in circuit 'c'")
    error.add_note("at c.yaml:3")
    assert error.report() == "fault\nin circuit 'c'\nat c.yaml:3"


def test_every_error_is_a_circuit_error_with_a_docstring() -> None:
    kinds = [kind for kind in vars(declared).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert len(kinds) >= 10
    assert all(issubclass(kind, CircuitError) and kind.__doc__ for kind in kinds)


def test_verify_error_knows_its_place() -> None:
    assert VerifyError("fault", at="y").at == "y"
    assert VerifyError("fault").at is None


@pytest.mark.parametrize(
    "name, names, hint",
    [
        ("wieght", ["x", "weight"], "did you mean 'weight'?"),
        ("mask_1", ["mask_2", "mask_3", "y"], "did you mean 'mask_3' or 'mask_2'?"),
        ("zzz", ["x", "weight"], "expected one of 'x', 'weight'"),
        ("x", [], "there is none"),
    ],
)
def test_close_names(name: str, names: list[str], hint: str) -> None:
    assert close_names(name, names) == hint


def test_long_list_of_names_is_cut() -> None:
    hint = close_names("zzz", [f"a{number}" for number in range(100)])
    assert hint.endswith("'a19', ...")


def test_costs_add() -> None:
    assert Cost(1, 2, 3) + Cost(10, 20, 30) == Cost(11, 22, 33)
    assert total_bytes(f32(3), f32(2, 2)) == 28
