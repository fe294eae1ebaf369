"""Tensor types: a dtype and named dims, `bf16[n, heads*v_dim]`.

A dim is a sympy expression over positive integer symbols, kept expanded, so two spellings of one value are one dim:
`v_dim*heads` equals `heads*v_dim`, `a*(b + 1)` equals `a*b + a`. Text is parsed by a grammar of our own (names,
integers, `+ - * //`, parentheses), never by sympy's evaluating parser: documents are untrusted input.
"""

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import sympy
import torch
from sympy.printing.str import StrPrinter

from circuit.errors import TypeRuleError

Dim: TypeAlias = sympy.Expr
DimLike: TypeAlias = "int | str | sympy.Expr"

DTYPES: dict[str, torch.dtype] = {
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "f32": torch.float32,
    "f64": torch.float64,
    "i8": torch.int8,
    "i32": torch.int32,
    "i64": torch.int64,
    "bool": torch.bool,
}
DTYPE_NAMES: dict[torch.dtype, str] = {dtype: name for name, dtype in DTYPES.items()}

_TYPE_TEXT = re.compile(r"^\s*(\w+)\s*\[(.*)\]\s*$", re.DOTALL)
_MAX_DIM_TEXT = 200
# a product of sums expands into exponentially many terms; 24 names and numbers make at most a few hundred
_MAX_DIM_LEAVES = 24
_MAX_DIMS = 64


def dtype_name(dtype: torch.dtype) -> str:
    """Return the short name of a dtype, `bf16` for `torch.bfloat16`; `TypeRuleError` for one that circuits lack."""
    if dtype not in DTYPE_NAMES:
        raise TypeRuleError(f"dtype {dtype}: expected one of {', '.join(DTYPES)}; cast the tensor first")
    return DTYPE_NAMES[dtype]


def as_dim(dim: DimLike) -> Dim:
    """Return `dim` as an expanded expression; a string is parsed, an integer must not be negative."""
    if isinstance(dim, bool):
        raise TypeRuleError(f"dim {dim}: expected a size or a name, got a bool")
    if isinstance(dim, str):
        dim = _parse_dim(dim)
    expr = sympy.expand(sympy.Integer(dim) if isinstance(dim, int) else dim)
    if expr.is_negative or expr.has(sympy.zoo, sympy.oo, sympy.nan):
        raise TypeRuleError(f"dim {expr}: expected a size of at least 0; check the arithmetic that made it")
    return expr


def _parse_dim(text: str) -> Dim:
    if len(text) > _MAX_DIM_TEXT:
        raise TypeRuleError(f"dim {text[:40]!r}...: expected at most {_MAX_DIM_TEXT} characters, got {len(text)}")
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise TypeRuleError(f"dim {text!r}: expected names, integers, + - * // and parentheses") from error
    num_leaves = sum(isinstance(node, (ast.Name, ast.Constant)) for node in ast.walk(tree))
    if num_leaves > _MAX_DIM_LEAVES:
        raise TypeRuleError(f"dim {text!r}: expected at most {_MAX_DIM_LEAVES} names and numbers, got {num_leaves}")
    return _dim_of(tree.body, text)


def _dim_of(node: ast.expr, text: str) -> Dim:
    match node:
        case ast.Constant(value=int() as value) if not isinstance(value, bool):
            return sympy.Integer(value)
        case ast.Name(id=name):
            return sympy.Symbol(name, integer=True, positive=True)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_dim_of(operand, text)
        case ast.BinOp(left=left, op=operator, right=right):
            first, second = _dim_of(left, text), _dim_of(right, text)
            match operator:
                case ast.Add():
                    return first + second
                case ast.Sub():
                    return first - second
                case ast.Mult():
                    return first * second
                case ast.FloorDiv() if sympy.expand(second) != 0:
                    return sympy.floor(first / second)
    raise TypeRuleError(f"dim {text!r}: expected names, integers, + - * // and parentheses")


class _DimPrinter(StrPrinter):
    """Prints a dim in the grammar that `as_dim` reads: `floor(a/2)` as `(a//2)`."""

    def _print_floor(self, expr: sympy.Expr) -> str:
        numerator, denominator = expr.args[0].as_numer_denom()
        return f"({self._operand(numerator)}//{self._operand(denominator)})"

    def _operand(self, expr: sympy.Expr) -> str:
        text = str(self._print(expr))
        return text if expr.is_Symbol or expr.is_Integer or isinstance(expr, sympy.floor) else f"({text})"

    def _print_Pow(self, expr: sympy.Expr, rational: bool = False) -> str:
        base, exponent = expr.args
        if exponent.is_Integer and exponent > 0:
            return "*".join([self.parenthesize(base, 55)] * int(exponent))
        return str(super()._print_Pow(expr, rational))


def dim_text(dim: Dim) -> str:
    """Return the one spelling of a dim; `as_dim` reads it back to an equal dim."""
    return str(_DimPrinter({"order": "lex"}).doprint(dim))


@dataclass(frozen=True, slots=True)
class TensorType:
    """A tensor's dtype and dims. Build one with `bf16("n", 64)` or `TensorType.parse("bf16[n, 64]")`."""

    dtype: torch.dtype
    shape: tuple[Dim, ...]

    @staticmethod
    def of(dtype: torch.dtype, *dims: DimLike) -> "TensorType":
        """Return the type of `dtype` with `dims`, each an integer, a name or an expression."""
        dtype_name(dtype)
        return TensorType(dtype, tuple(as_dim(dim) for dim in dims))

    @staticmethod
    def parse(text: str) -> "TensorType":
        """Read `bf16[n, 4096]`; `TypeRuleError` says what is wrong with the text."""
        match = _TYPE_TEXT.match(text)
        if match is None or match.group(1) not in DTYPES:
            raise TypeRuleError(f"type {text[:80]!r}: expected DTYPE[dim, ...] with a dtype of {', '.join(DTYPES)}")
        spelled = match.group(2).strip()
        dims = spelled.split(",") if spelled else []
        if len(dims) > _MAX_DIMS:
            raise TypeRuleError(f"type {text[:40]!r}...: expected at most {_MAX_DIMS} dims, got {len(dims)}")
        return TensorType.of(DTYPES[match.group(1)], *dims)

    def with_shape(self, *dims: DimLike) -> "TensorType":
        """Return this dtype with other dims."""
        return TensorType.of(self.dtype, *dims)

    def with_dtype(self, dtype: torch.dtype) -> "TensorType":
        """Return these dims with another dtype."""
        return TensorType.of(dtype, *self.shape)

    def bind(self, dims: Mapping[str, int]) -> "TensorType":
        """Return this type with the named dims replaced by numbers; names not in `dims` stay."""
        values = {sympy.Symbol(name, integer=True, positive=True): size for name, size in dims.items()}
        return TensorType(self.dtype, tuple(as_dim(dim.xreplace(values)) for dim in self.shape))

    def free_dims(self) -> frozenset[str]:
        """Return the names that are not bound to numbers yet."""
        return frozenset(str(symbol) for dim in self.shape for symbol in dim.free_symbols)

    def sizes(self) -> tuple[int, ...]:
        """Return the dims as integers; `TypeRuleError` names the dims that are still free."""
        if free := self.free_dims():
            raise TypeRuleError(f"type {self}: expected numbers, {', '.join(sorted(free))} not bound; bind dims first")
        return tuple(int(dim) for dim in self.shape)

    def num_elements(self) -> int:
        """Return the number of elements of a bound type."""
        count = 1
        for size in self.sizes():
            count *= size
        return count

    def num_bytes(self) -> int:
        """Return the bytes a bound type occupies."""
        return self.num_elements() * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{dtype_name(self.dtype)}[{', '.join(dim_text(dim) for dim in self.shape)}]"


def match_sizes(declared: TensorType, sizes: Sequence[int], bound: dict[str, int]) -> str | None:
    """Match `sizes` with `declared`, adding newly met names to `bound`; return what is wrong, or None.

    A bare name takes the size it meets; an expression must evaluate to it once its names are bound.
    """
    if len(sizes) != len(declared.shape):
        return f"expected {len(declared.shape)} dims, got {len(sizes)}"
    for axis, (dim, size) in enumerate(zip(declared.shape, sizes, strict=True)):
        if dim.is_Integer:
            value: int | None = int(dim)
        elif dim.is_Symbol:
            value = bound.setdefault(str(dim), int(size))
        else:
            unknown = [str(symbol) for symbol in dim.free_symbols if str(symbol) not in bound]
            if unknown:
                return f"dim {axis}: {dim_text(dim)} needs {', '.join(sorted(unknown))}, which nothing before it binds"
            number = dim.xreplace({symbol: sympy.Integer(bound[str(symbol)]) for symbol in dim.free_symbols})
            value = int(number) if number.is_Integer else None
        if value != size:
            expected = dim_text(dim) if dim.is_Integer else f"{dim_text(dim)} = {'no size' if value is None else value}"
            return f"dim {axis}: expected {expected}, got {size}"
    return None


def bf16(*dims: DimLike) -> TensorType:
    """Return a bfloat16 type with these dims."""
    return TensorType.of(torch.bfloat16, *dims)


def f32(*dims: DimLike) -> TensorType:
    """Return a float32 type with these dims."""
    return TensorType.of(torch.float32, *dims)


def i64(*dims: DimLike) -> TensorType:
    """Return an int64 type with these dims."""
    return TensorType.of(torch.int64, *dims)
