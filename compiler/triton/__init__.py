"""The CUDA backend: circuits to fused Triton kernels, launched one by one or captured as one graph.

Nothing here imports triton before a kernel is run or compiled: plans are made, shown and compared without it.
"""

from compiler.triton.ahead_of_time import MachineCode, compile_launch
from compiler.triton.cuda_graph import CudaGraphProgram
from compiler.triton.emission import BACKEND, LaunchPlan, RegionEmission, emit
from compiler.triton.launch import Buffer, Launch, View
from compiler.triton.program import LaunchProgram, is_interpreting

__all__ = [
    "BACKEND",
    "Buffer",
    "CudaGraphProgram",
    "Launch",
    "LaunchPlan",
    "LaunchProgram",
    "MachineCode",
    "RegionEmission",
    "View",
    "compile_launch",
    "emit",
    "is_interpreting",
]
