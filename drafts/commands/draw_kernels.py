"""The kernels that run a plan's calls, and their source: Triton's as written, Inductor's generated for the drawing."""

import ast
import json
import re
import tempfile
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx.traceback import annotate, preserve_node_meta

from circuit import Circuit, LoweringError, StateType, Value
from compiler.inductor import INDUCTOR_OPTIONS, LoweredCircuit, require_cxx_compiler
from compiler.triton import emit

_KERNELS = "compiler.kernels"


@dataclass(frozen=True, slots=True)
class Kernels:
    """Kernel names by the first result of each call that they run, and each kernel's source by name."""

    by_call: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)


def triton_kernels(circuit: Circuit) -> Kernels:
    """Return the kernels of a fused circuit with bound dims, none of them where a call has no kernel yet."""
    try:
        launches = emit(circuit, name=circuit.name)
    except LoweringError:
        return Kernels()
    held: dict[str, list[str]] = {}
    for launch, index in zip(launches.launches, launches.calls, strict=True):
        held.setdefault(circuit.calls[index].results[0].name, []).append(launch.kernel)
    names = sorted({launch.kernel for launch in launches.launches})
    return Kernels({call: tuple(found) for call, found in held.items()}, {name: kernel_source(name) for name in names})


def kernel_source(kernel: str) -> str:
    """Return the source of `module.function` under compiler.kernels, then all of ours that it calls; imports none."""
    module, function = kernel.split(".")
    return "\n\n\n".join(dict.fromkeys(_with_callees(f"{_KERNELS}.{module}", function)))


def _with_callees(module: str, name: str) -> Iterator[str]:
    spec = find_spec(module)
    assert spec, module
    text = Path(str(spec.origin)).read_text(encoding="utf-8")
    tree = ast.parse(text)
    made: dict[str, ast.stmt] = {}
    origins: dict[str, str] = {}
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef):
            made[statement.name] = statement
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            made |= {target.id: statement for target in targets if isinstance(target, ast.Name)}
        elif isinstance(statement, ast.ImportFrom) and (statement.module or "").startswith(_KERNELS):
            origins |= {alias.asname or alias.name: str(statement.module) for alias in statement.names}
    wanted, seen = [name], {name}
    for one in wanted:
        if one in origins:
            yield from _with_callees(origins[one], one)
        elif one in made:
            statement = made[one]
            decorators = statement.decorator_list if isinstance(statement, ast.FunctionDef) else []
            first = min([statement.lineno, *(decorator.lineno for decorator in decorators)])
            yield "\n".join(text.splitlines()[first - 1 : statement.end_lineno])
            named = [node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and node.id not in seen]
            wanted += dict.fromkeys(named)
            seen |= set(named)


def inductor_kernels(circuit: Circuit, dims: Mapping[str, int]) -> Kernels:
    """Return the C++ that Inductor generates for a circuit at these sizes, each kernel with the calls it is of.

    Nothing of it is compiled to a program; `LoweringError` where there is no C++ compiler, which Inductor asks for the
    processor's vector instructions.
    """
    require_cxx_compiler()
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        # torch's own calls of its own functions
        warnings.simplefilter("ignore")
        exported = _export(circuit, dims)
        archive = Path(folder) / "sources.pt2"
        options = {"aot_inductor.package_cpp_only": True, "trace.provenance_tracking_level": 1}
        torch._inductor.aoti_compile_and_package(
            exported, package_path=str(archive), inductor_configs={**INDUCTOR_OPTIONS, **options}
        )
        with zipfile.ZipFile(archive) as packed:
            names = packed.namelist()
            code = "\n".join(packed.read(name).decode() for name in names if name.endswith(".cpp"))
            told = next(name for name in names if name.endswith("kernel_information.json"))
            return generated_kernels(code, json.loads(packed.read(told)), _call_of_node(exported))


def generated_kernels(code: str, told: Mapping[str, Mapping[str, list[str]]], call_of: Mapping[str, str]) -> Kernels:
    """Return the kernels of generated C++; `told` has the traced nodes of `kernel:number`, `call_of` their calls.

    A library's kernel has no generated source; the lines that call it stand in its place.
    """
    by_call: dict[str, list[str]] = {}
    sources: dict[str, str] = {}
    for handle, nodes in told.items():
        kernel, _, number = handle.rpartition(":")
        source = _function(code, kernel)
        name = kernel if source else f"{kernel}, call {number}"
        sources[name] = source or _calling_lines(code, handle)
        for call in dict.fromkeys(call_of[node] for node in nodes["pre_grad_nodes"] if node in call_of):
            by_call.setdefault(call, []).append(name)
    return Kernels({call: tuple(dict.fromkeys(names)) for call, names in by_call.items()}, sources)


class _MarkedCircuit(LoweredCircuit):
    """A lowered circuit whose traced operators are marked with the call that they are of."""

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Run the calls in order, each under its name."""
        values: dict[Value, Tensor] = dict(zip(self.arguments, tensors, strict=True))
        for call, lowering in zip(self.circuit.calls, self._lowerings, strict=True):
            arguments = [values[arg] for arg in call.args]
            with annotate({"call": call.results[0].name}):
                made = call.node.reference(*arguments) if lowering is None else lowering.function(call.node, *arguments)
            values.update(zip(call.results, made if isinstance(made, tuple) else (made,), strict=True))
        return tuple(values[value] for value in self.circuit.outputs.values())


def _export(circuit: Circuit, dims: Mapping[str, int]) -> ExportedProgram:
    module = _MarkedCircuit(circuit)
    types = [value.type.tensor if isinstance(value.type, StateType) else value.type for value in module.arguments]
    examples = tuple(torch.zeros(held.bind(dims).sizes(), dtype=held.dtype) for held in types)
    with torch.no_grad(), preserve_node_meta():
        return torch.export.export(module, examples, strict=False)


def _call_of_node(exported: ExportedProgram) -> dict[str, str]:
    marks = {node.name: node.meta.get("custom", {}).get("call") for node in exported.graph.nodes}
    return {name: call for name, call in marks.items() if call is not None}


def _function(code: str, name: str) -> str:
    """Return the definition of a function of generated C++, empty where there is none."""
    found = re.search(rf'^extern "C"[^\n]*\b{re.escape(name)}\([^;{{]*\)\s*\{{.*?^\}}', code, re.DOTALL | re.MULTILINE)
    return found.group() if found else ""


def _calling_lines(code: str, handle: str) -> str:
    """Return the lines after the mark that names a kernel's call, up to the next mark."""
    _, mark, rest = code.partition(f"[Provenance debug handles] {handle}\n")
    lines = rest.split("[Provenance debug handles]")[0].splitlines()[:12] if mark else []
    kept = [line.strip() for line in lines if line.strip() and not line.strip().startswith("//")]
    return "\n".join(["// not generated, but of a library or written by hand; called so:", *kept])
