"""The document of a launch plan: what every launch is started with and where it reads and writes, as JSON."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import torch

from compiler.triton.emission import LaunchPlan
from compiler.triton.launch import Argument, Launch, View


def launch_document(plan: LaunchPlan, *, code_of: Mapping[str, str]) -> dict[str, Any]:
    """Return a plan as JSON; `code_of` names the compiled code of each `code_key`."""
    launches = [
        {
            "launch": launch.name,
            "draft": step + 1,
            "call": call,
            "kernel": launch.kernel,
            "grid": list(launch.grid),
            "arguments": {name: _argument(argument) for name, argument in launch.arguments.items()},
            "constants": dict(launch.constants),
            "num_warps": launch.num_warps,
            "num_stages": launch.num_stages,
            "code": code_of[code_key(launch)],
        }
        for launch, call, step in zip(plan.launches, plan.calls, plan.steps, strict=True)
    ]
    buffers = {
        name: {"kind": buffer.kind, "dtype": _name(buffer.dtype), "bytes": buffer.num_bytes}
        | ({"offset": plan.offsets[name]} if name in plan.offsets else {})
        for name, buffer in plan.buffers.items()
    }
    return {
        "program": plan.name,
        "arena_bytes": plan.arena_bytes,
        "buffers": buffers,
        "derived_weights": [weight.model_dump(mode="json") for weight in plan.derived],
        "launches": launches,
    }


def code_key(launch: Launch) -> str:
    """Return a digest of what a launch's machine code depends on, its place in memory and its grid aside."""
    covered = {
        "kernel": launch.kernel,
        "constants": dict(launch.constants),
        "arguments": {name: _kind(argument) for name, argument in launch.arguments.items()},
        "num_warps": launch.num_warps,
        "num_stages": launch.num_stages,
    }
    return hashlib.sha256(json.dumps(covered, sort_keys=True).encode()).hexdigest()


def _kind(argument: Argument) -> object:
    """What triton specialises on: a pointer's type and alignment, an integer's divisibility."""
    if isinstance(argument, View):
        return [_name(argument.dtype), argument.offset * argument.dtype.itemsize % 16 == 0]
    if isinstance(argument, float):
        return "float"
    return ["one"] if argument == 1 else ["int", argument % 16 == 0, argument < 2**31]


def _argument(argument: Argument) -> object:
    if not isinstance(argument, View):
        return argument
    return {
        "buffer": argument.buffer,
        "dtype": _name(argument.dtype),
        "shape": list(argument.shape),
        "strides": list(argument.strides),
        "offset": argument.offset,
    }


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
