"""Tensor types: dims compared by value, one spelling, a grammar that refuses all else."""

import operator
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import sympy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from circuit import DTYPES, TensorType, TypeRuleError, as_dim, bf16, dim_text, dtype_name, f32, i64, match_sizes
from tests.support.circuit_strategies import PROPERTY

NAMES = ("n", "heads", "v_dim", "num_blocks")
OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv}
Sizes = dict[str, int]


@dataclass(frozen=True)
class Spelled:
    """A dim as text, and what it comes to; drawn as a name, a number, or two of them under an operator."""

    text: str
    value: Callable[[Sizes], int]


def combined(left: Spelled, symbol: str, right: Spelled) -> Spelled:
    return Spelled(
        f"({left.text} {symbol} {right.text})",
        lambda sizes: OPERATORS[symbol](left.value(sizes), right.value(sizes)),
    )


atoms = st.one_of(
    st.integers(0, 9).map(lambda number: Spelled(str(number), lambda sizes: number)),
    st.sampled_from(NAMES).map(lambda name: Spelled(name, lambda sizes: sizes[name])),
)
dims = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.builds(combined, inner, st.sampled_from(["+", "-", "*"]), inner),
        st.builds(combined, inner, st.just("//"), atoms),
    ),
    max_leaves=6,
)


@pytest.mark.parametrize(
    "left, right",
    [
        ("heads*v_dim", "v_dim*heads"),
        ("a*(b + 1)", "a + a*b"),
        ("2*n", "n + n"),
        ("n - n", "0"),
        ("(n + 4)//4", "n//4 + 1"),
        ("2*n//2", "n"),
        ("(a + b)*(a - b)", "a*a - b*b"),
        ("0x10", "16"),
        (" n ", "n"),
    ],
)
def test_two_spellings_of_one_dim_are_equal(left: str, right: str) -> None:
    assert f32(left) == f32(right)
    assert hash(f32(left)) == hash(f32(right))
    assert str(f32(left)) == str(f32(right))


@pytest.mark.parametrize("left, right", [("n", "m"), ("n//2*2", "n"), ("n", 1), ("a//2 + b//2", "(a + b)//2")])
def test_dims_that_differ_for_some_size_are_not_equal(left: str, right: str) -> None:
    assert f32(left) != f32(right)


def test_dtype_is_part_of_the_type() -> None:
    assert f32("n") != bf16("n")
    assert f32("n").with_dtype(torch.bfloat16) == bf16("n")


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_is_parsed_and_printed(name: str) -> None:
    parsed = TensorType.parse(f"{name}[n, 3]")
    assert str(parsed) == f"{name}[n, 3]"
    assert dtype_name(parsed.dtype) == name


@settings(PROPERTY, max_examples=50)
@given(st.lists(dims, max_size=3))
def test_printed_type_is_read_back_equal(spelled: list[Spelled]) -> None:
    try:
        declared = TensorType.of(torch.float32, *(dim.text for dim in spelled))
    except TypeRuleError:
        return
    read = TensorType.parse(str(declared))
    assert read == declared
    assert str(read) == str(declared)


@settings(PROPERTY, max_examples=50)
@given(dims, st.tuples(*[st.integers(1, 9)] * len(NAMES)))
def test_dim_has_the_value_of_its_text(spelled: Spelled, drawn: tuple[int, ...]) -> None:
    sizes = dict(zip(NAMES, drawn, strict=True))
    try:
        expected = spelled.value(sizes)
        (got,) = f32(spelled.text).bind(sizes).sizes()
    except (ZeroDivisionError, TypeRuleError):
        return
    assert got == expected


@pytest.mark.parametrize(
    "spelled, printed",
    [
        ("f32[]", "f32[]"),
        ("f32[ n,2*4 ]", "f32[n, 8]"),
        ("f32[n//kpool]", "f32[(n//kpool)]"),
        ("f32[(num_blocks+1)//2]", "f32[((num_blocks + 1)//2)]"),
        ("f32[n*n]", "f32[n*n]"),
        ("f32[b - a]", "f32[-a + b]"),
    ],
)
def test_type_has_one_spelling(spelled: str, printed: str) -> None:
    assert str(TensorType.parse(spelled)) == printed


@pytest.mark.parametrize(
    "text",
    [
        "",
        "f32",
        "f31[n]",
        "f32(n)",
        "f32[n",
        "n]",
        "[n]",
        "f32[n,]",
        "f32[,n]",
        "f32[n m]",
        "f32[-1]",
        "f32[-n]",
        "f32[2 - 3]",
        "f32[1.5]",
        "f32[n/2]",
        "f32[n**2]",
        "f32[n % 2]",
        "f32[n//0]",
        "f32[n//(n - n)]",
        "f32[n//((a + b)*(a - b) - a*a + b*b)]",
        "f32[True]",
        "f32['n']",
        "f32[n()]",
        "f32[n.real]",
        "f32[n if n else n]",
        "f32[lambda: 0]",
        "f32[(n := 3)]",
        "f32[[n]]",
        "f32[~n]",
        "f32[n\0]",
        "f32[__import__('os').system('true')]",
        f"f32[{'(' * 90}n{')' * 90 + ')' * 20}]",
        f"f32[{'n+' * 99}n]",
        f"f32[{'9' * 199}*{'9' * 199}]",
        f"f32[{','.join('1' * 65)}]",
    ],
)
def test_text_outside_the_grammar_is_refused(text: str) -> None:
    with pytest.raises(TypeRuleError, match="expected"):
        TensorType.parse(text)


@pytest.mark.parametrize("dim", [-1, True, "-n", "", sympy.Integer(-3)])
def test_dim_that_is_no_size_is_refused(dim: object) -> None:
    with pytest.raises(TypeRuleError, match="expected"):
        f32(dim)  # type: ignore[arg-type]


def test_unknown_dtype_is_refused() -> None:
    with pytest.raises(TypeRuleError, match=r"dtype torch\.complex64: expected one of bf16, f16"):
        TensorType.of(torch.complex64, "n")


def test_bind_replaces_names_and_keeps_the_others() -> None:
    declared = f32("n", "heads*v_dim", "n//2")
    assert declared.bind({"heads": 2, "v_dim": 3}) == f32("n", 6, "n//2")
    assert declared.bind({"n": 5, "unused": 1}) == f32(5, "heads*v_dim", 2)
    assert declared.free_dims() == {"n", "heads", "v_dim"}


def test_bind_refuses_a_size_below_zero() -> None:
    with pytest.raises(TypeRuleError, match="dim -2: expected a size of at least 0"):
        f32("n - 4").bind({"n": 2})


def test_sizes_and_bytes_need_every_name_bound() -> None:
    assert f32(3, 5).sizes() == (3, 5)
    assert bf16(3, 5).num_bytes() == 30
    assert i64().num_bytes() == 8
    assert f32(0, 5).num_elements() == 0
    with pytest.raises(TypeRuleError, match="a, n not bound; bind dims first"):
        f32("n", "a").num_bytes()


def test_with_shape_keeps_the_dtype() -> None:
    assert bf16("n", 8).with_shape("n", 2, 4) == bf16("n", 2, 4)


@pytest.mark.parametrize(
    "declared, sizes, bound, fault",
    [
        (f32("n", 8), (3, 8), {"n": 3}, None),
        (f32("n", 8), (0, 8), {"n": 0}, None),
        (f32("n", "n"), (3, 3), {"n": 3}, None),
        (f32(), (), {}, None),
        (f32("n", "2*n"), (3, 6), {"n": 3}, None),
        (f32("n", "n//2"), (5, 2), {"n": 5}, None),
        (f32("n", 8), (3, 9), None, "dim 1: expected 8, got 9"),
        (f32("n", "n"), (3, 4), None, "dim 1: expected n = 3, got 4"),
        (f32("n"), (3, 4), None, "expected 1 dims, got 2"),
        (f32("n", "2*n"), (3, 7), None, "dim 1: expected 2*n = 6, got 7"),
        (f32("2*n", "n"), (6, 3), None, "dim 0: 2*n needs n, which nothing before it binds"),
        (f32("n", "m", "n//m"), (3, 0, 0), None, "dim 2: expected (n//m) = no size, got 0"),
    ],
)
def test_sizes_are_matched_and_names_bound(
    declared: TensorType, sizes: tuple[int, ...], bound: dict[str, int] | None, fault: str | None
) -> None:
    met: dict[str, int] = {}
    assert match_sizes(declared, sizes, met) == fault
    if bound is not None:
        assert met == bound


def test_dim_text_of_a_plain_dim() -> None:
    assert dim_text(as_dim("v_dim*heads")) == "heads*v_dim"
