"""Memory: a launch plan's buffers on a device, and the tensors that its views are."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from circuit import BindingError
from compiler.triton.emission import LaunchPlan
from compiler.triton.launch import Buffer, View

ALIGNMENT = 16  # bytes: the widest load of a kernel


class Memory:
    """The memory of one program: inputs, outputs, counters and the arena are its own, weights and states are lent.

    All inputs lie in one block of bytes, integers first, and all outputs of one dtype side by side: what a host hands
    over crosses in one copy, and what it reads back in another.
    """

    def __init__(self, plan: LaunchPlan, *, device: torch.device) -> None:
        self.plan = plan
        self._bases: dict[str, Tensor] = {}
        self.arena = torch.empty(plan.arena_bytes, dtype=torch.uint8, device=device)
        # with its number where the caller left that to torch
        self.device = self.arena.device
        by_kind: dict[str, list[Buffer]] = {}
        for buffer in plan.buffers.values():
            by_kind.setdefault(buffer.kind, []).append(buffer)
        integers_first = sorted(by_kind.get("input", ()), key=lambda buffer: buffer.dtype.is_floating_point)
        self.inputs, self._input_starts = self._packed(integers_first)
        self.outputs, _ = self._packed(by_kind.get("output", ()))
        self.counters, _ = self._packed(by_kind.get("counter", ()))
        self._mirror = torch.empty(0, dtype=torch.uint8)
        self._mirror_is_read = None if device.type == "cpu" else torch.cuda.Event()
        for buffer in by_kind.get("arena", ()):
            if buffer.name in plan.offsets:
                start = plan.offsets[buffer.name]
                self._bases[buffer.name] = self.arena[start : start + buffer.num_bytes].view(buffer.dtype)

    def feed(self, inputs: Mapping[str, Tensor]) -> None:
        """Copy the inputs to where launches read them; those on the host go in one copy.

        Raises BindingError for one that is missing, or of another dtype or shape.
        """
        given = {name: _checked(self.plan.name, name, inputs.get(name), view) for name, view in self._declared()}
        if self.device.type == "cpu":
            for name, tensor in given.items():
                self.tensor(self.plan.inputs[name]).copy_(tensor)
            return
        hosted = {name: tensor for name, tensor in given.items() if tensor.device.type == "cpu"}
        if hosted:
            self._feed_from_host(hosted)
        for name, tensor in given.items():
            if name not in hosted:
                self.tensor(self.plan.inputs[name]).copy_(tensor, non_blocking=True)

    def lend(self, tensors: Mapping[str, Tensor], declared: Mapping[str, View]) -> None:
        """Take tensors for the weights or states of `declared`, contiguous and aligned to 16 bytes.

        `BindingError` names the first that is missing or does not fit.
        """
        for name, view in declared.items():
            tensor = _checked(self.plan.name, name, tensors.get(name), view)
            # the interpreter reads element by element, and a tensor of a file may start anywhere
            is_aligned = self.device.type == "cpu" or tensor.data_ptr() % ALIGNMENT == 0
            if tensor.device != self.device or not tensor.is_contiguous() or not is_aligned:
                raise BindingError(
                    f"program {self.plan.name!r}: expected {name!r} contiguous on {self.device} and aligned to "
                    f"{ALIGNMENT} bytes, got strides {list(tensor.stride())} on {tensor.device} at "
                    f"{tensor.data_ptr():#x}; move or clone it"
                )
            self._bases[view.buffer] = tensor.detach().flatten()

    def addresses(self, declared: Iterable[View]) -> tuple[int, ...]:
        """Return where lent tensors lie: what a captured graph has baked in."""
        return tuple(self._bases[view.buffer].data_ptr() for view in declared)

    def base(self, buffer: Buffer) -> Tensor:
        """Return a buffer's elements."""
        return self._bases[buffer.name]

    def tensor(self, view: View) -> Tensor:
        """Return the tensor that a view is."""
        base = self._bases[view.buffer]
        return base.as_strided(view.shape, view.strides, base.storage_offset() + view.offset)

    def _declared(self) -> Iterable[tuple[str, View]]:
        return self.plan.inputs.items()

    def _packed(self, buffers: Iterable[Buffer]) -> tuple[Tensor, dict[str, int]]:
        """One block of bytes for the buffers, in order, and where each starts."""
        starts: dict[str, int] = {}
        end = 0
        for buffer in buffers:
            starts[buffer.name] = end
            end += -(-buffer.num_bytes // ALIGNMENT) * ALIGNMENT
        block = torch.zeros(end, dtype=torch.uint8, device=self.device)
        for name, start in starts.items():
            buffer = self.plan.buffers[name]
            self._bases[name] = block[start : start + buffer.num_bytes].view(buffer.dtype)
        return block, starts

    def _feed_from_host(self, hosted: Mapping[str, Tensor]) -> None:
        event = self._mirror_is_read
        assert event is not None
        if not self._mirror.numel():
            self._mirror = torch.zeros(self.inputs.shape, dtype=torch.uint8, pin_memory=True)
        # the copy of the run before may still read what is written next
        event.synchronize()
        spans = []
        for name, tensor in hosted.items():
            view = self.plan.inputs[name]
            start = self._input_starts[view.buffer]
            stop = start + self.plan.buffers[view.buffer].num_bytes
            self._mirror[start:stop].view(view.dtype).copy_(tensor.flatten())
            spans += [start, stop]
        # an input on the device that lies between is copied after it, on the same stream
        part = slice(min(spans), max(spans))
        self.inputs[part].copy_(self._mirror[part], non_blocking=True)
        event.record()


def _checked(program: str, name: str, tensor: Tensor | None, view: View) -> Tensor:
    expected = f"{view.dtype} {list(view.shape)}"
    if tensor is None:
        raise BindingError(f"program {program!r}: expected {name!r}, {expected}, got none; bind it")
    if tensor.dtype != view.dtype or tuple(tensor.shape) != view.shape:
        raise BindingError(
            f"program {program!r}: expected {name!r} as {expected}, got {tensor.dtype} {list(tensor.shape)}"
        )
    return tensor
