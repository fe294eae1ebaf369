"""State types: layout, rows per entry, and the text form."""

import pytest

from circuit import StateType, TypeRuleError, bf16, f32


@pytest.mark.parametrize("text", ["paged bf16[num_blocks, 16, 32]", "paged/4 f32[a, 4, 8]", "ring f32[s, d, 2, 8]"])
def test_text_is_read_and_printed(text: str) -> None:
    assert str(StateType.parse(text)) == text


def test_spaces_and_one_row_per_entry_have_one_spelling() -> None:
    assert str(StateType.parse("  paged/1   f32[ a,4,8 ]")) == "paged f32[a, 4, 8]"


def test_states_are_equal_by_value() -> None:
    assert StateType("paged", f32("a*b", 4, 8)) == StateType.parse("paged f32[b*a, 4, 8]")
    assert StateType("paged", f32("a", 4, 8)) != StateType("ring", f32("a", 4, 8))
    assert StateType("paged", f32("a", 4, 8), 2) != StateType("paged", f32("a", 4, 8))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "paged",
        "f32[a, 4, 8]",
        "pages f32[a, 4, 8]",
        "paged/0 f32[a, 4, 8]",
        "paged/-1 f32[a, 4, 8]",
        "paged/x f32[a, 4, 8]",
        f"paged/{'9' * 5000} f32[a, 4, 8]",
        "paged f32[a, 4]",
        "paged f31[a, 4, 8]",
        "paged f32[a, 4, 8",
        "pagedf32[a, 4, 8]",
    ],
)
def test_malformed_text_is_refused(text: str) -> None:
    with pytest.raises(TypeRuleError, match="expected") as caught:
        StateType.parse(text)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("layout, rows", [("heap", 1), ("paged", 0), ("ring", -2)])
def test_unknown_layout_and_rows_below_one_are_refused(layout: str, rows: int) -> None:
    with pytest.raises(TypeRuleError, match="expected"):
        StateType(layout, f32("a", 4, 8), rows)  # type: ignore[arg-type]


def test_bind_reaches_the_tensor_and_keeps_the_rest() -> None:
    bound = StateType("paged", bf16("num_blocks", 4, "width"), 4).bind({"num_blocks": 3})
    assert bound == StateType("paged", bf16(3, 4, "width"), 4)
