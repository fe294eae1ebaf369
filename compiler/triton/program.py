"""LaunchProgram: runs a launch plan, launch by launch; on a device, or on the CPU under Triton's interpreter."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor

from circuit import LoweringError
from compiler.triton.emission import LaunchPlan
from compiler.triton.launch import Launch, View
from compiler.triton.memory import Memory

KERNELS = "compiler.kernels"
INTERPRET = "set TRITON_INTERPRET=1 to run the kernels on the CPU, slowly"


@cache
def kernel_of(name: str) -> Any:
    """Return the kernel `module.function` of compiler.kernels; importing it imports triton."""
    module, _, function = name.rpartition(".")
    return getattr(importlib.import_module(f"{KERNELS}.{module}"), function)


def run_launch(launch: Launch, memory: Memory) -> None:
    """Start one launch on the device that is current, which must be the memory's."""
    arguments = {
        name: memory.tensor(argument) if isinstance(argument, View) else argument
        for name, argument in launch.arguments.items()
    }
    kernel_of(launch.kernel)[launch.grid](
        **arguments, **launch.constants, num_warps=launch.num_warps, num_stages=launch.num_stages
    )


def current_device(device: torch.device) -> AbstractContextManager[object]:
    """Make a CUDA device the current one: triton launches there, wherever its arguments lie. A CPU always is."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


class LaunchProgram:
    """A launch plan with memory bound; one run at a time.

    `device` is a CUDA device, or the CPU where TRITON_INTERPRET=1 was set before triton was first imported.
    """

    def __init__(self, plan: LaunchPlan, *, device: torch.device) -> None:
        if device.type == "cpu" and not is_interpreting():
            raise LoweringError(f"program {plan.name!r}: Triton kernels need a CUDA device, got the CPU; {INTERPRET}")
        if device.type != "cpu" and is_interpreting():
            raise LoweringError(f"program {plan.name!r}: triton interprets in this process; unset TRITON_INTERPRET")
        self.plan = plan
        self.memory = Memory(plan, device=device)
        self._is_interrupted = False

    def run(
        self,
        *,
        inputs: Mapping[str, Tensor],
        states: Mapping[str, Tensor],
        weights: Mapping[str, Tensor],
        num_steps: int,
        outputs: Sequence[str],
    ) -> dict[str, Tensor]:
        """Run `num_steps` drafts; return the outputs by name, [num_steps, ...], copies the caller may keep.

        `weights` holds the derived ones too. ValueError for more steps than the plan has.
        """
        with current_device(self.memory.device):
            self.bind(states=states, weights=weights)
            self.memory.feed(inputs)
            self.launch(num_steps)
            return self.read(outputs, num_steps)

    def bind(self, *, states: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
        """Take the tensors that launches read and write; BindingError names the first that does not fit."""
        self.memory.lend(weights, self.plan.weights)
        self.memory.lend(states, self.plan.states)

    def launch(self, num_steps: int, *, observe: Callable[[str, Tensor], None] | None = None) -> None:
        """Start the launches of the first `num_steps` drafts, on what is bound and fed.

        `observe` is shown each result of a region by name, as soon as its launches have run; it must copy to keep.
        """
        plan = self.plan
        if not 1 <= num_steps <= plan.num_steps:
            raise ValueError(f"program {plan.name!r}: expected 1 to {plan.num_steps} steps, got {num_steps}")
        if self._is_interrupted:
            # launches that an exception kept from running would have set these back
            self.memory.counters.zero_()
        self._is_interrupted = True
        with current_device(self.memory.device):
            for index, (launch, step) in enumerate(zip(plan.launches, plan.steps, strict=True)):
                # steps are in order
                if step >= num_steps:
                    break
                run_launch(launch, self.memory)
                if observe is not None and plan.calls[index + 1 : index + 2] != (plan.calls[index],):
                    for name, view in plan.results[plan.calls[index]].items():
                        observe(name, self.memory.tensor(view))
        self._is_interrupted = False

    def read(self, outputs: Sequence[str], num_steps: int) -> dict[str, Tensor]:
        """Return copies of outputs of the last run by name, [num_steps, ...]."""
        return {name: self._stacked(name, num_steps) for name in outputs}

    def _stacked(self, name: str, num_steps: int) -> Tensor:
        views = [self.plan.outputs[f"{name}.{step + 1}"] for step in range(num_steps)]
        return torch.stack([self.memory.tensor(view) for view in views])


def is_interpreting() -> bool:
    """Whether kernels run under Triton's interpreter in this process."""
    triton = importlib.import_module("triton")
    return bool(triton.knobs.runtime.interpret)
