"""The CUDA backend: circuits to fused Triton kernels, launched one by one or captured as one graph.

Nothing here imports triton before a kernel is run or compiled: plans are made, shown and compared without it.
"""

from compiler.triton.ahead_of_time import MachineCode, compile_launch
from compiler.triton.artifact import (
    TARGETS,
    LaunchManifest,
    compile_kernels,
    is_launch_artifact,
    num_kernels,
    read_launch_manifest,
    write_launches,
)
from compiler.triton.cuda_graph import CudaGraphProgram
from compiler.triton.emission import BACKEND, LaunchPlan, RegionEmission, emit
from compiler.triton.launch import Buffer, Launch, View
from compiler.triton.part import LaunchPartRunner
from compiler.triton.program import LaunchProgram, is_interpreting

__all__ = [
    "BACKEND",
    "TARGETS",
    "Buffer",
    "CudaGraphProgram",
    "Launch",
    "LaunchManifest",
    "LaunchPartRunner",
    "LaunchPlan",
    "LaunchProgram",
    "MachineCode",
    "RegionEmission",
    "View",
    "compile_kernels",
    "compile_launch",
    "emit",
    "is_interpreting",
    "is_launch_artifact",
    "num_kernels",
    "read_launch_manifest",
    "write_launches",
]
