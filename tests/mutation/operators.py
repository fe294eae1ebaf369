"""What a slip changes in one expression: each operator takes an AST node and yields what might stand there instead.

Swapped operands, a dropped term, a changed constant, a clamp or a comparison on its other side, a rounding left out or
put in, another order among ties. Shapes and dims are left alone: whatever changes them raises, and proves nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from copy import deepcopy

Operator = Callable[[ast.AST], Iterator[ast.AST]]

# calls whose integers are places and shapes, not arithmetic
SHAPES = {
    "unsqueeze", "squeeze", "transpose", "view", "reshape", "flatten", "expand", "unflatten", "chunk", "permute",
    "repeat_interleave", "size", "trans", "expand_dims", "static_assert", "program_id", "multiple_of", "max_contiguous",
}  # fmt: skip
DIM_KEYWORDS = {"dim", "axis", "keepdim", "dtype", "num_stages", "can_reorder"}
DROPPED_CALLS = {"clamp", "masked_fill", "to", "float", "relu", "sigmoid", "sort", "silu", "abs", "exp", "sqrt"}
ROUNDED_CALLS = {"softmax", "matmul", "silu", "sigmoid", "rsqrt", "exp", "logsumexp", "mean", "linear", "layer_norm"}
RENAMED_CALLS = {"sum": "amax", "max": "min", "min": "max", "maximum": "minimum", "minimum": "maximum", "rsqrt": "sqrt"}
COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt), ast.LtE: (ast.Lt, ast.GtE), ast.Gt: (ast.GtE, ast.Lt), ast.GtE: (ast.Gt, ast.LtE),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,),
}  # fmt: skip
ONE_SIDED = (ast.Sub, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.LShift, ast.RShift)
TERMS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.BitAnd, ast.BitOr)


def swap_operands(node: ast.AST) -> Iterator[ast.AST]:
    """a - b becomes b - a, where(c, a, b) where(c, b, a), cat([a, b]) cat([b, a]); an `a if c else b` too."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ONE_SIDED):
        yield ast.BinOp(node.right, node.op, node.left)
    if isinstance(node, ast.IfExp):
        yield ast.IfExp(node.test, node.orelse, node.body)
    if isinstance(node, ast.Call) and called(node) == "where" and len(node.args) == 3:
        yield with_args(node, [node.args[0], node.args[2], node.args[1]])
    if isinstance(node, ast.List) and len(node.elts) == 2:
        yield ast.List(node.elts[::-1], ast.Load())
    if isinstance(node, ast.Tuple) and isinstance(node.ctx, ast.Store) and len(node.elts) == 2:
        yield ast.Tuple(node.elts[::-1], ast.Store())


def drop_term(node: ast.AST) -> Iterator[ast.AST]:
    """One side of a sum, product or mask is left out."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, TERMS) and not is_shape(node):
        yield node.left
        if not isinstance(node.op, ONE_SIDED):
            yield node.right


def drop_call(node: ast.AST) -> Iterator[ast.AST]:
    """A clamp, a mask, a widening, a rounding or an activation is left out."""
    if not isinstance(node, ast.Call) or called(node) not in DROPPED_CALLS:
        return
    if isinstance(node.func, ast.Attribute) and not is_module(node.func.value):
        yield node.func.value
    elif node.args:
        yield node.args[0]


def other_operator(node: ast.AST) -> Iterator[ast.AST]:
    """+ becomes -, * becomes +, & becomes |, and back."""
    others = {
        ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
        ast.FloorDiv: ast.Mod, ast.Mod: ast.FloorDiv,
    }  # fmt: skip
    if isinstance(node, ast.BinOp) and type(node.op) in others and not is_shape(node):
        yield ast.BinOp(node.left, others[type(node.op)](), node.right)


def change_constant(node: ast.AST) -> Iterator[ast.AST]:
    """Off by one, another size, or the other sign of infinity."""
    if not isinstance(node, ast.Constant):
        return
    value = node.value
    if isinstance(value, bool):
        yield ast.Constant(not value)
    elif isinstance(value, int):
        yield ast.Constant(value + 1)
        if value:
            yield ast.Constant(value - 1)
    elif isinstance(value, float):
        yield ast.Constant(value * 1.01 if value > 1e-3 else value * 1024 + (value == 0))
    elif value in ("-inf", "inf"):
        yield ast.Constant("inf" if value == "-inf" else "-inf")
        yield ast.Constant("0")


def change_attribute(node: ast.AST) -> Iterator[ast.AST]:
    """An attribute of the node is not taken as it is: an eps ten times, a scale a percent, a count by one."""
    if not (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("self", "node")):
        return
    if node.attr.startswith("_") or node.attr in ("reference", "dtype"):
        return
    if node.attr == "eps":
        yield ast.BinOp(node, ast.Mult(), ast.Constant(10))
        yield ast.Constant(0.0)
    elif node.attr in ("scale", "limit"):
        yield ast.BinOp(node, ast.Mult(), ast.Constant(1.01))
    elif node.attr.startswith(("norm_", "is_", "has_")):
        yield ast.UnaryOp(ast.Not(), node)
    else:
        yield ast.BinOp(node, ast.Add(), ast.Constant(1))
        yield ast.BinOp(node, ast.Sub(), ast.Constant(1))


def change_clamp(node: ast.AST) -> Iterator[ast.AST]:
    """A clamp loses a side, or takes the other one."""
    if not isinstance(node, ast.Call) or called(node) != "clamp" or not node.keywords:
        return
    for keyword in node.keywords:
        kept = [other for other in node.keywords if other is not keyword]
        if kept:
            yield ast.Call(node.func, node.args, kept)
    if len(node.keywords) == 1:
        (keyword,) = node.keywords
        other = ast.keyword("min" if keyword.arg == "max" else "max", keyword.value)
        yield ast.Call(node.func, node.args, [other])


def round_result(node: ast.AST) -> Iterator[ast.AST]:
    """A result is rounded to bf16 where nothing is."""
    if isinstance(node, ast.Call) and called(node) in ROUNDED_CALLS and in_torch(node):
        rounded = ast.Call(ast.Attribute(node, "bfloat16", ast.Load()), [], [])
        dtype = ast.Attribute(deepcopy(node), "dtype", ast.Load())
        yield ast.Call(ast.Attribute(rounded, "to", ast.Load()), [dtype], [])


def other_call(node: ast.AST) -> Iterator[ast.AST]:
    """A sum becomes a maximum, a maximum a minimum."""
    if (
        isinstance(node, ast.Call)
        and (other := RENAMED_CALLS.get(called(node)))
        and isinstance(node.func, ast.Attribute)
    ):
        if node.func.attr == "sum" and not in_torch(node):
            other = "max"
        yield ast.Call(ast.Attribute(node.func.value, other, ast.Load()), node.args, node.keywords)


def other_comparison(node: ast.AST) -> Iterator[ast.AST]:
    """A comparison takes or leaves equality, or looks the other way."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        for other in COMPARISONS.get(type(node.ops[0]), ()):
            yield ast.Compare(node.left, [other()], node.comparators)


def drop_sign(node: ast.AST) -> Iterator[ast.AST]:
    """A minus or a negation is left out; a condition is turned round."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Invert | ast.Not):
        yield node.operand
    if isinstance(node, ast.BoolOp):
        yield ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)


def drop_statement(node: ast.AST) -> Iterator[ast.AST]:
    """A store, an assertion-free call or a pointer's step is left out."""
    is_call = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and called(node.value) not in SHAPES
    if is_call or isinstance(node, ast.AugAssign):
        yield ast.Pass()


OPERATORS: tuple[Operator, ...] = (
    swap_operands, drop_term, drop_call, other_operator, change_constant, change_attribute, change_clamp, round_result,
    other_call, other_comparison, drop_sign, drop_statement,
)  # fmt: skip


def called(node: ast.Call) -> str:
    """Return the last name of what is called."""
    func = node.func
    return func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""


def is_module(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id in ("torch", "functional", "tl")


def in_torch(node: ast.Call) -> bool:
    return not (
        isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name) and node.func.value.id == "tl"
    )


def is_shape(node: ast.BinOp) -> bool:
    """Whether an operand is a list or a string, joined rather than added."""
    return any(isinstance(side, ast.List | ast.JoinedStr) for side in (node.left, node.right))


def with_args(node: ast.Call, args: list[ast.expr]) -> ast.Call:
    return ast.Call(node.func, args, node.keywords)
