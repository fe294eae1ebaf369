"""What the operators make of one expression, and what they leave alone."""

from __future__ import annotations

import ast

import pytest

from tests.mutation.operators import OPERATORS


def changes(source: str) -> set[str]:
    """Everything that the operators make of an expression as a whole, or of a statement."""
    (statement,) = ast.parse(source).body
    node = statement.value if isinstance(statement, ast.Expr) and not source.startswith("tl.store") else statement
    return {ast.unparse(ast.fix_missing_locations(made)) for operator in OPERATORS for made in operator(node)}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a - b", {"b - a", "a", "a + b"}),
        ("a * b", {"a", "b", "a + b"}),
        ("a & b", {"a", "b", "a | b"}),
        ("torch.where(c, a, b)", {"torch.where(c, b, a)"}),
        ("[a, b]", {"[b, a]"}),
        ("node.eps", {"node.eps * 10", "0.0"}),
        ("self.scale", {"self.scale * 1.01"}),
        ("self.pool", {"self.pool + 1", "self.pool - 1"}),
        ("node.norm_topk_prob", {"not node.norm_topk_prob"}),
        ("x.clamp(min=a, max=b)", {"x", "x.clamp(max=b)", "x.clamp(min=a)"}),
        ("x.clamp(max=b)", {"x", "x.clamp(min=b)"}),
        ("x.to(y.dtype)", {"x"}),
        ("x.sum(-1)", {"x.amax(-1)"}),
        ("a < b", {"a <= b", "a > b"}),
        ("~a", {"a"}),
        ("1e-20", {"1.024e-17"}),
        ("True", {"False"}),
        ("'-inf'", {"'inf'", "'0'"}),
        ("3", {"4", "2"}),
        ("tl.store(p, x)", {"pass"}),
        ("p += 1", {"pass"}),
        ("a.shape", set()),
    ],
)
def test_expression_is_changed_in_these_ways(source: str, expected: set[str]) -> None:
    assert changes(source) == expected


def test_rounding_is_put_where_there_is_none() -> None:
    assert "torch.softmax(x).bfloat16().to(torch.softmax(x).dtype)" in changes("torch.softmax(x)")
