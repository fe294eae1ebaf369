"""Count the bytes that node calls really touch: every torch operation of a reference is watched as it runs.

Of each tensor that a call is given, the elements are marked that an operation reads: all of what it sees, or, where it
picks rows by index, those rows. An element counts once however often it is read. Views read nothing.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from circuit import Call, Circuit, Value

PICKS = {
    torch.ops.aten.index.Tensor: lambda marks, args: marks[tuple(slice(None) if i is None else i for i in args[1])],
    torch.ops.aten.gather.default: lambda marks, args: marks.gather(args[1], args[2]),
    torch.ops.aten.embedding.default: lambda marks, args: marks[args[1]],
    torch.ops.aten.index_select.default: lambda marks, args: marks.index_select(args[1], args[2]),
}


class ByteCounter(TorchDispatchMode):
    """Marks what is read of `given`, while it is entered."""

    def __init__(self, given: list[Tensor]) -> None:
        super().__init__()
        self._marks = {self._key(tensor): self._unread(tensor) for tensor in given}

    @property
    def bytes_read(self) -> dict[int, int]:
        """Bytes read, by the address of a tensor's memory."""
        return {key: int(marks.sum()) * size for key, (marks, size) in self._marks.items()}

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        if any(made.alias_info is not None and not made.alias_info.is_write for made in function._schema.returns):
            return result
        for position, tensor in enumerate(self._tensors([*args, *(kwargs or {}).values()])):
            if self._key(tensor) not in self._marks:
                continue
            self._mark(tensor, PICKS.get(function) if position == 0 else None, args)
        return result

    def _mark(self, tensor: Tensor, pick: Callable[..., Tensor] | None, args: tuple[Any, ...]) -> None:
        marks, _ = self._marks[self._key(tensor)]
        seen = marks.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        if pick is None:
            seen.fill_(1)
            return
        # the picked elements, found by picking among their own numbers
        numbers = torch.arange(marks.numel()).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        marks[pick(numbers, args).flatten()] = 1

    @staticmethod
    def _tensors(values: list[Any]) -> list[Tensor]:
        flat = [held for value in values for held in (value if isinstance(value, list | tuple) else [value])]
        return [held for held in flat if isinstance(held, Tensor)]

    @staticmethod
    def _key(tensor: Tensor) -> int:
        return tensor.untyped_storage().data_ptr()

    @staticmethod
    def _unread(tensor: Tensor) -> tuple[Tensor, int]:
        size = tensor.element_size()
        return torch.zeros(tensor.untyped_storage().nbytes() // size, dtype=torch.uint8), size


class TouchedBytes:
    """Bytes that one call read and wrote, beside the call."""

    def __init__(self, call: Call, read: int, written: int) -> None:
        self.call, self.read, self.written = call, read, written


def touched_bytes(circuit: Circuit, tensors: dict[Value, Tensor]) -> list[TouchedBytes]:
    """Run a circuit on its sources' tensors and return what each call touched.

    A call's inputs get memory of their own, so that one tensor in two places counts in each. A state that a call
    writes is copied whole by its reference, which a program in place does not do: that is no read, and what comes out
    changed is what is written.
    """
    counted = []
    for call in circuit.calls:
        given = [tensors[arg].contiguous().clone() for arg in call.args]
        written_states = [given[call.node.ports.index(port)] for port in call.node.writes]
        read = [tensor for tensor in given if all(tensor is not state for state in written_states)]
        with torch.no_grad(), ByteCounter(read) as counter:
            made = call.node.reference(*given)
        results = made if isinstance(made, tuple) else (made,)
        tensors.update(zip(call.results, results, strict=True))
        memory = {tensor.untyped_storage().data_ptr() for tensor in given}
        written = 0
        for number, result in enumerate(results):
            if number < len(written_states):
                before = written_states[number].view(torch.uint8)
                element = result.element_size()
                changed = (result.view(torch.uint8) != before).reshape(-1, element).any(dim=1)
                written += int(changed.sum()) * element
            elif result.untyped_storage().data_ptr() not in memory:
                written += result.nbytes
        counted.append(TouchedBytes(call, sum(counter.bytes_read.values()), written))
    return counted
