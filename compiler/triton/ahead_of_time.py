"""Ahead of time: a launch compiled for a GPU that need not be there, and what the machine code says of it.

Triton must not be interpreting in this process: its decorators make kernels of one kind or the other.
"""

import importlib
import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from circuit import LoweringError
from compiler.triton.launch import Launch, View
from compiler.triton.program import is_interpreting, kernel_of

_POINTERS = {
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.float32: "*fp32",
    torch.int8: "*i8",
    torch.uint8: "*u8",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.uint64: "*u64",
}
# an instruction as the disassembler prints it: its address, a predicate, its name
_INSTRUCTION = re.compile(r"/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)")


@dataclass(frozen=True, slots=True)
class MachineCode:
    """What one kernel became: registers a thread, bytes spilled to local memory, shared memory, and its instructions.

    instructions: how often each stands in the code, `LDG.E.128` with its suffixes.
    """

    launch: str
    arch: int
    registers: int
    spilled_bytes: int
    shared_bytes: int
    num_warps: int
    instructions: Counter[str]
    cubin: bytes

    def count(self, pattern: str) -> int:
        """Return how many instructions match a regular expression from their start."""
        return sum(count for name, count in self.instructions.items() if re.match(pattern, name))

    @property
    def wide_loads(self) -> int:
        """Loads of 16 bytes from global memory, into registers or into shared memory."""
        return self.count(r"(LDG|LDGSTS)\S*\.128")

    @property
    def tensor_core_products(self) -> int:
        """Matrix instructions of any generation."""
        return self.count(r"(HMMA|HGMMA|UTCHMMA|IMMA|IGMMA|QGMMA|UTCQMMA)")

    def blocks_per_multiprocessor(self) -> int:
        """How many programs fit one multiprocessor of 64k registers, 227 KiB shared memory and 2048 threads."""
        threads = 32 * self.num_warps
        # registers are handed out to warps in units of 8 a thread
        by_registers = 65536 // (-(-self.registers // 8) * 8 * threads) if self.registers else 32
        by_shared = (227 * 1024) // max(self.shared_bytes, 1)
        return min(by_registers, by_shared, 2048 // threads, 32)


def compile_launch(launch: Launch, *, arch: int = 90) -> MachineCode:
    """Compile a launch for `arch`, 90 for H100 and H200 and 100 for B200; LoweringError where triton interprets."""
    if is_interpreting():
        raise LoweringError("triton interprets kernels in this process; compile in one without TRITON_INTERPRET")
    triton = importlib.import_module("triton")
    compiler = importlib.import_module("triton.compiler")
    backend = importlib.import_module("triton.backends.compiler")
    kernel = kernel_of(launch.kernel)
    signature: dict[str, str] = {}
    constants: dict[tuple[int, ...], Any] = {}
    attributes: dict[tuple[int, ...], list[list[object]]] = {}
    for index, name in enumerate(kernel.arg_names):
        if name in launch.constants:
            signature[name], constants[(index,)] = "constexpr", launch.constants[name]
            continue
        if name not in launch.arguments:
            raise LoweringError(f"launch {launch.name!r}: kernel {launch.kernel} takes {name!r}, which is not given")
        argument = launch.arguments[name]
        if isinstance(argument, View):
            signature[name] = _POINTERS[argument.dtype]
            is_divisible = argument.offset * argument.dtype.itemsize % 16 == 0
        elif isinstance(argument, float):
            signature[name], is_divisible = "fp32", False
        elif argument == 1:
            # a launch specialises on one as it does at run time
            signature[name], constants[(index,)] = "constexpr", 1
            continue
        else:
            signature[name], is_divisible = "i32" if argument < 2**31 else "i64", argument % 16 == 0
        if is_divisible:
            attributes[(index,)] = [["tt.divisibility", 16]]
    source = compiler.ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attributes)
    options = {"num_warps": launch.num_warps, "num_stages": launch.num_stages, "enable_fp_fusion": True}
    made = triton.compile(source, target=backend.GPUTarget("cuda", arch, 32), options=options)
    cubin: bytes = made.asm["cubin"]
    registers, spilled = _resources(cubin)
    return MachineCode(
        launch=launch.name,
        arch=arch,
        registers=registers,
        spilled_bytes=spilled,
        shared_bytes=int(made.metadata.shared),
        num_warps=launch.num_warps,
        instructions=_instructions(cubin),
        cubin=cubin,
    )


def _tool(name: str) -> Path:
    triton = importlib.import_module("triton")
    path = Path(str(triton.__file__)).parent / "backends/nvidia/bin" / name
    if not path.exists():
        raise LoweringError(f"{path}: expected triton's own {name}, found none; install triton with its NVIDIA backend")
    return path


def _resources(cubin: bytes) -> tuple[int, int]:
    text = _run("cuobjdump", "--dump-resource-usage", cubin=cubin)
    found = re.search(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", text)
    if found is None:
        raise LoweringError(f"cuobjdump: expected a line with REG, STACK and LOCAL, got {text[:200]!r}")
    return int(found[1]), int(found[2]) + int(found[3])


def _instructions(cubin: bytes) -> Counter[str]:
    return Counter(_INSTRUCTION.findall(_run("nvdisasm", "-c", cubin=cubin)))


def _run(tool: str, *options: str, cubin: bytes) -> str:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([_tool(tool), *options, file.name], capture_output=True, text=True, check=False)
    if done.returncode:
        raise LoweringError(f"{tool}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout
