"""AppendTail: raw indexer rows into each sequence's ring."""

import torch
from torch import Tensor
from torch.nn import functional

from circuit import Cost, Node, StateType, TensorType, i64, total_bytes


class AppendTail(Node):
    """Write each row's key and gate at `position % depth` of its sequence's ring.

    Rows of one sequence are adjacent with ascending consecutive positions; when a run holds more of them than the ring
    is deep, the newest stay.

    Ports:    tail ring T[sequences, depth, 2, d] - keys T[n, d] - gates T[n, d] - position i64[n] - sequence i64[n]
    Result:   the next version of the tail; sequence 0, which belongs to nobody, takes the skipped rows
    Numerics: exact copy
    State:    writes tail
    Source:   the rows of a pool that is not full yet, kept until it is
    """

    results = ("tail",)
    writes = ("tail",)

    def infer(
        self, tail: StateType, keys: TensorType, gates: TensorType, position: TensorType, sequence: TensorType
    ) -> StateType:
        if (
            tail.layout != "ring"
            or len(tail.tensor.shape) != 4
            or tail.tensor.shape[2] != 2
            or tail.rows_per_entry != 1
        ):
            raise self.reject("tail", tail, "a ring state [sequences, depth, 2, d] of one row per entry")
        for port, rows in (("keys", keys), ("gates", gates)):
            if len(rows.shape) != 2 or rows != tail.tensor.with_shape(keys.shape[0], tail.tensor.shape[3]):
                raise self.reject(port, rows, f"{tail.tensor.with_shape('n', tail.tensor.shape[3])} to match {tail}")
        for port, numbers in (("position", position), ("sequence", sequence)):
            if numbers != i64(keys.shape[0]):
                raise self.reject(port, numbers, f"{i64(keys.shape[0])}, one per row")
        return tail

    def reference(self, tail: Tensor, keys: Tensor, gates: Tensor, position: Tensor, sequence: Tensor) -> Tensor:
        depth = tail.shape[1]
        num_rows = sequence.shape[0]
        # the row `depth` further on, when of the same sequence, takes the same ring entry
        successor = functional.pad(sequence[depth:], (0, min(depth, num_rows)), value=-1)
        target = torch.where(successor == sequence, 0, sequence)
        return tail.index_put((target, position % depth), torch.stack([keys, gates], dim=1))

    def cost(
        self, tail: StateType, keys: TensorType, gates: TensorType, position: TensorType, sequence: TensorType
    ) -> Cost:
        return Cost(bytes_read=total_bytes(keys, gates, position, sequence), bytes_written=total_bytes(keys, gates))
