"""The tree's own rules: who may import whom, and what stands nowhere. Read from the sources, so nothing is run."""

import ast
import importlib
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LAYERS = ("circuit", "nodes", "compiler", "drafts")  # each may import those before it
# beside a package's public names, its errors may be named by their module, and a backend too: importing a package must
# not load a compiler, nor the language its drawings
OPEN_MODULES = {"circuit.errors", "circuit.draw", "compiler.inductor", "compiler.triton"}
# third parties that only some places may import
CONFINED = {
    "triton": ("compiler/", "tests/compiler/", "benchmarks/"),
    "transformers": ("drafts/targets/", "tests/", "examples/", "benchmarks/"),
    "tokenizers": ("drafts/targets/", "tests/", "examples/", "benchmarks/"),
}
ENVIRONMENT_READERS = ("drafts/cli.py", "drafts/commands/")
UNSAFE = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
UNSAFE_CALLS = {"torch.load", "yaml.load", "yaml.unsafe_load", "numpy.load", "np.load"}
VAGUE_STEMS = {"utils", "util", "common", "helpers", "helper", "base", "manager", "misc", "types", "inspect", "trace"}
MAX_LINES = 400


def sources(*folders: str) -> list[Path]:
    return sorted(
        path for folder in folders for path in (ROOT / folder).rglob("*.py") if "__pycache__" not in path.parts
    )


def place(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imports(path: Path) -> Iterator[tuple[str, str]]:
    """Yield (module, name) for each `from module import name`, and (module, "") for each `import module`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{place(path)}:{node.lineno}: relative import"
            yield from ((node.module or "", alias.name) for alias in node.names)


PACKAGE_SOURCES = sources(*LAYERS)
ALL_SOURCES = sources(*LAYERS, "tests", "examples", "benchmarks")
each_package_source = pytest.mark.parametrize("path", PACKAGE_SOURCES, ids=place)
each_source = pytest.mark.parametrize("path", ALL_SOURCES, ids=place)


@pytest.mark.parametrize("package", LAYERS)
def test_package_is_imported_from_this_tree(package: str) -> None:
    module = importlib.import_module(package)
    assert module.__file__ == str(ROOT / package / "__init__.py")
    assert (ROOT / package / "py.typed").is_file()


@each_package_source
def test_package_imports_only_lower_layers_by_their_public_names(path: Path) -> None:
    own = place(path).split("/")[0]
    allowed = LAYERS[: LAYERS.index(own) + 1]
    for module, name in imports(path):
        package = module.split(".")[0]
        assert package not in ("tests", "benchmarks", "examples", "conftest"), f"imports {module}"
        if package not in LAYERS or package == own:
            continue
        assert package in allowed, f"{own} imports {module}, which lies above it"
        if module not in OPEN_MODULES and (module, name) != (package, ""):
            assert module == package, f"imports {module}; take the name from {package}"
            assert name in importlib.import_module(package).__all__, f"{package} does not export {name}"


@each_source
def test_confined_third_parties_stay_in_their_places(path: Path) -> None:
    for module, _ in imports(path):
        allowed = CONFINED.get(module.split(".")[0])
        assert allowed is None or place(path).startswith(allowed), f"imports {module}, allowed in {allowed}"


@each_source
def test_nothing_that_runs_what_a_file_holds(path: Path) -> None:
    assert not [module for module, _ in imports(path) if module.split(".")[0] in UNSAFE]
    calls = [ast.unparse(node.func) for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    assert not [call for call in calls if call in UNSAFE_CALLS or call in ("eval", "exec")]


@each_package_source
def test_environment_is_read_by_the_command_line_only(path: Path) -> None:
    if place(path).startswith(ENVIRONMENT_READERS):
        return
    tree = ast.walk(ast.parse(path.read_text()))
    assert not [
        ast.unparse(node) for node in tree if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv")
    ]
    assert not [name for module, name in imports(path) if module == "os" and name in ("environ", "getenv")]


@each_source
def test_file_is_short_and_named_by_its_meaning(path: Path) -> None:
    assert path.stem not in VAGUE_STEMS
    num_lines = len(path.read_text().splitlines())
    assert num_lines <= MAX_LINES, f"{num_lines} lines; split it by meaning"


def test_every_file_of_a_package_is_installed_with_it() -> None:
    """What is no module is left out of a wheel unless it is named as package data; the C++ driver is such a file."""
    document = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    patterns: dict[str, list[str]] = document["tool"]["setuptools"]["package-data"]
    left_out, held = [], 0
    for package in LAYERS:
        for path in (ROOT / package).rglob("*"):
            if path.is_dir() or path.suffix in (".py", ".pyc"):
                continue
            held += 1
            named = [*patterns["*"], *patterns.get(".".join(path.relative_to(ROOT).parent.parts), [])]
            if not any(path.match(pattern) for pattern in named):
                left_out.append(place(path))
    assert held > len(LAYERS)
    assert left_out == []


def test_tests_hold_no_package() -> None:
    assert not list((ROOT / "tests").rglob("__init__.py"))
