"""Mutants of the real sources, made from their ASTs: one expression of one function changed by one operator.

A mutant is planted by giving the function that everybody holds already the code of the changed one, so that no module
is loaded twice and no import has to be followed. Module constants stay: they are thresholds between forms of equal
arithmetic, and so do the comparisons with them, and functions without a tensor, which choose among forms.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from tests.mutation.operators import DIM_KEYWORDS, OPERATORS, SHAPES, called

ROOT = Path(__file__).resolve().parents[2]
# what has arithmetic, by the layer that the score is told for
SOURCES = {
    "nodes": ("nodes/*.py",),
    "inductor": ("compiler/inductor/lowering/*.py", "compiler/inductor/products.py", "compiler/inductor/ranking.py"),
    "triton": ("compiler/kernels/*.py",),
}
# of a node: its type rule has tests of its own, and a cost is no arithmetic of a draft
NO_ARITHMETIC = {"infer", "cost", "expected_distinct"}


@dataclass(frozen=True)
class Mutant:
    """One change: `before` became `after`, by an operator, in a function; the `number`-th such change of it."""

    layer: str
    file: str
    function: str
    operator: str
    before: str
    after: str
    number: int
    line: int

    @property
    def key(self) -> tuple[str, str, str, str, int]:
        """What names a mutant however lines move."""
        return (self.file, self.function, self.before, self.after, self.number)

    def __str__(self) -> str:
        again = f" (#{self.number})" if self.number > 1 else ""
        return f"{self.file}:{self.line} {self.function}, {self.operator}: {self.before}  ->  {self.after}{again}"


def layer_files(layer: str) -> list[Path]:
    """Return the files of a layer that are there, by name."""
    found = [path for pattern in SOURCES[layer] for path in sorted(ROOT.glob(pattern))]
    return [path for path in found if path.stem != "__init__"]


def mutants_of(path: Path, layer: str) -> list[Mutant]:
    """Return every mutant of a file, in the order of its source."""
    return [mutant for mutant, _ in _mutations(path, layer, ast.parse(path.read_text()))]


@contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """Let the mutant's function run changed, inside; LookupError where the source has no such mutant any more."""
    path = ROOT / mutant.file
    tree = ast.parse(path.read_text())
    for found, code in _mutations(path, mutant.layer, tree, compiles=mutant.key):
        if found.key == mutant.key and code is not None:
            function = _live_function(mutant)
            kept = function.__code__
            function.__code__ = code
            try:
                yield
            finally:
                function.__code__ = kept
            return
    raise LookupError(f"{mutant}: the source has no such mutant")


def _mutations(
    path: Path, layer: str, tree: ast.Module, *, compiles: tuple[Any, ...] | None = None
) -> Iterator[tuple[Mutant, CodeType | None]]:
    """Every mutant of a tree; where one has the key `compiles`, its code too. The tree is as it was after each."""
    file = path.relative_to(ROOT).as_posix()
    for name, function in _functions(tree, layer):
        seen = {ast.unparse(function)}
        counts: dict[tuple[str, str], int] = {}
        for parent, field, index, node in _places(function):
            for operator in OPERATORS:
                for changed in operator(node):
                    before = ast.unparse(node)
                    _put(parent, field, index, changed)
                    spelled = ast.unparse(ast.fix_missing_locations(function))
                    if spelled not in seen:
                        seen.add(spelled)
                        after = ast.unparse(changed)
                        number = counts[before, after] = counts.get((before, after), 0) + 1
                        line = getattr(node, "lineno", function.lineno)
                        mutant = Mutant(layer, file, name, operator.__name__, before, after, number, line)
                        code = _compiled(path, layer, tree, function, name) if mutant.key == compiles else None
                        yield mutant, code
                    _put(parent, field, index, node)


def _functions(tree: ast.Module, layer: str) -> Iterator[tuple[str, ast.FunctionDef]]:
    for item in tree.body:
        if isinstance(item, ast.FunctionDef) and (layer != "inductor" or _takes_tensors(item)):
            yield item.name, item
        elif isinstance(item, ast.ClassDef):
            for method in item.body:
                if isinstance(method, ast.FunctionDef) and method.name not in NO_ARITHMETIC:
                    yield f"{item.name}.{method.name}", method


def _takes_tensors(function: ast.FunctionDef) -> bool:
    return any("Tensor" in ast.unparse(arg.annotation) for arg in function.args.args if arg.annotation)


def _places(function: ast.FunctionDef) -> Iterator[tuple[ast.AST, str, int | None, ast.AST]]:
    """Yield what of a function's body may change, with where it hangs."""
    pending: list[ast.AST] = [*reversed(function.body)]
    for position, statement in enumerate(function.body):
        yield function, "body", position, statement
    while pending:
        parent = pending.pop()
        for field, value in ast.iter_fields(parent):
            for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
                if not isinstance(child, ast.AST) or _is_left_alone(parent, field, child):
                    continue
                yield parent, field, index, child
                pending.append(child)


def _is_left_alone(parent: ast.AST, field: str, child: ast.AST) -> bool:
    if field == "annotation" or isinstance(child, ast.operator | ast.cmpop | ast.expr_context):
        return True
    if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
        return True  # a docstring
    if isinstance(parent, ast.Expr) and isinstance(child, ast.Constant):
        return True
    if isinstance(child, ast.keyword):
        return child.arg in DIM_KEYWORDS
    if isinstance(parent, ast.Call) and field == "args":
        return called(parent) in SHAPES
    if isinstance(parent, ast.Subscript) and field == "slice":
        # x.shape[0] is a size
        return isinstance(parent.value, ast.Attribute) and parent.value.attr == "shape"
    if isinstance(child, ast.Compare | ast.BoolOp) and not isinstance(parent, ast.Subscript):
        return _chooses_a_form(child)
    return isinstance(parent, ast.Raise) or isinstance(child, ast.Raise)


def _chooses_a_form(test: ast.AST) -> bool:
    """Whether a comparison is with a size limit of the module, or with the name of a form."""
    names = {node.id for node in ast.walk(test) if isinstance(node, ast.Name)}
    limits = {name for name in names if name.isupper() and name.startswith(("MAX_", "LARGE_", "CACHED_"))}
    return bool(limits) or "product_form" in names or "form" in names


def _put(parent: ast.AST, field: str, index: int | None, child: ast.AST) -> None:
    if index is None:
        setattr(parent, field, child)
    else:
        getattr(parent, field)[index] = child


def _compiled(path: Path, layer: str, tree: ast.Module, function: ast.FunctionDef, name: str) -> CodeType:
    if layer != "triton":
        return _code_of(compile(ast.fix_missing_locations(tree), str(path), "exec"), name)
    # the interpreter runs kernels rewritten; the source that it would read is this one
    kernel = _module(path.relative_to(ROOT).as_posix()).__dict__[name]
    bare = ast.parse(ast.unparse(function))
    assert isinstance(bare.body[0], ast.FunctionDef)
    bare.body[0].decorator_list = []
    rewritten = ast.fix_missing_locations(kernel.rewriter.ast_transformer.visit(bare))
    return _code_of(compile(rewritten, str(path), "exec"), name)


def _code_of(code: CodeType, name: str) -> CodeType:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            if constant.co_qualname == name:
                return constant
            if name.startswith(f"{constant.co_qualname}."):
                return _code_of(constant, name)
    raise LookupError(f"{code.co_filename}: no function {name}")


def _live_function(mutant: Mutant) -> FunctionType:
    held: Any = _module(mutant.file)
    for part in mutant.function.split("."):
        held = vars(held)[part]
    if mutant.layer == "triton":
        held = held.rewrite()
    return getattr(held, "__func__", held)  # type: ignore[no-any-return]


def _module(file: str) -> Any:
    return importlib.import_module(file.removesuffix(".py").replace("/", "."))
