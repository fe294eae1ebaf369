"""Memory: a launch plan's buffers on a device, and the tensors that its views are."""

from collections.abc import Mapping

import torch
from torch import Tensor

from circuit import BindingError
from compiler.triton.emission import LaunchPlan
from compiler.triton.launch import Buffer, View


class Memory:
    """The memory of one program: inputs, outputs, counters and the arena are its own, weights and states are lent.

    A lent tensor must be contiguous, of the declared dtype and size, and aligned to 16 bytes.
    """

    def __init__(self, plan: LaunchPlan, *, device: torch.device) -> None:
        self.plan = plan
        self.device = device
        self._bases: dict[str, Tensor] = {}
        arena = torch.empty(plan.arena_bytes, dtype=torch.uint8, device=device)
        for buffer in plan.buffers.values():
            if buffer.kind in ("input", "output"):
                self._bases[buffer.name] = torch.empty(buffer.num_elements, dtype=buffer.dtype, device=device)
            elif buffer.kind == "counter":
                self._bases[buffer.name] = torch.zeros(buffer.num_elements, dtype=buffer.dtype, device=device)
            elif buffer.name in plan.offsets:
                start = plan.offsets[buffer.name]
                self._bases[buffer.name] = arena[start : start + buffer.num_bytes].view(buffer.dtype)

    def lend(self, tensors: Mapping[str, Tensor], declared: Mapping[str, View]) -> None:
        """Take tensors for the weights or states of `declared`; `BindingError` names the first that does not fit."""
        for name, view in declared.items():
            tensor = tensors.get(name)
            expected = f"{view.dtype} {list(view.shape)}, contiguous, on {self.device}"
            if tensor is None:
                raise BindingError(f"program {self.plan.name!r}: expected {name!r}, {expected}, got none; bind it")
            is_like = tensor.dtype == view.dtype and tuple(tensor.shape) == view.shape and tensor.is_contiguous()
            if not is_like or tensor.device.type != self.device.type:
                raise BindingError(
                    f"program {self.plan.name!r}: expected {name!r} as {expected}, got {tensor.dtype} "
                    f"{list(tensor.shape)} of strides {list(tensor.stride())} on {tensor.device}"
                )
            if tensor.data_ptr() % 16:
                raise BindingError(
                    f"program {self.plan.name!r}: expected {name!r} aligned to 16 bytes, which kernels read at once, "
                    f"got the address {tensor.data_ptr():#x}; clone it"
                )
            self._bases[view.buffer] = tensor.detach().flatten()

    def base(self, buffer: Buffer) -> Tensor:
        """Return a buffer's elements."""
        return self._bases[buffer.name]

    def tensor(self, view: View) -> Tensor:
        """Return the tensor that a view is."""
        base = self._bases[view.buffer]
        return base.as_strided(view.shape, view.strides, base.storage_offset() + view.offset)
