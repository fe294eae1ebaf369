"""KeyPool: one indexer key per full pool of tokens."""

import torch
from torch import Tensor

from circuit import Cost, Count, Node, StateType, TensorType, i64, total_bytes


class KeyPool(Node):
    """Compress the `pool` neighbouring keys that a row completes into one, as a learned average per channel.

    A row completes pool p when its position is the last of p's tokens. The pool's rows come from this run where they
    are in it (rows of one sequence are adjacent, positions consecutive), else from the tail as it was before the run.

    Ports:    tail ring T[sequences, depth, 2, d] - keys T[n, d] - gates T[n, d] - position_bias T[pool, d]
              - position i64[n] - sequence i64[n]
    Result:   T[n, d]; zeros for a row that completes no pool
    Numerics: softmax of gate + position_bias over the pool in float32, rounded to T; each product with its key rounded
              to T; their sum accumulated in float32, rounded once to T
    State:    reads tail
    Source:   transformers glm5_next, Glm5NextTextIndexer.get_pooled_states
    """

    reads = ("tail",)
    pool: Count

    def infer(
        self,
        tail: StateType,
        keys: TensorType,
        gates: TensorType,
        position_bias: TensorType,
        position: TensorType,
        sequence: TensorType,
    ) -> TensorType:
        if (
            tail.layout != "ring"
            or len(tail.tensor.shape) != 4
            or tail.tensor.shape[2] != 2
            or tail.rows_per_entry != 1
        ):
            raise self.reject("tail", tail, "a ring state [sequences, depth, 2, d] of one row per entry")
        depth, width = tail.tensor.shape[1], tail.tensor.shape[3]
        if depth.is_Integer and depth < self.pool:
            raise self.reject("tail", tail, f"a ring at least {self.pool} rows deep, one pool")
        for port, rows in (("keys", keys), ("gates", gates)):
            if len(rows.shape) != 2 or rows != tail.tensor.with_shape(keys.shape[0], width):
                raise self.reject(port, rows, f"{tail.tensor.with_shape('n', width)} to match {tail}")
        if position_bias != keys.with_shape(self.pool, width):
            raise self.reject("position_bias", position_bias, f"{keys.with_shape(self.pool, width)}")
        for port, numbers in (("position", position), ("sequence", sequence)):
            if numbers != i64(keys.shape[0]):
                raise self.reject(port, numbers, f"{i64(keys.shape[0])}, one per row")
        return keys

    def reference(
        self, tail: Tensor, keys: Tensor, gates: Tensor, position_bias: Tensor, position: Tensor, sequence: Tensor
    ) -> Tensor:
        num_rows = keys.shape[0]
        slots = torch.arange(self.pool, device=keys.device)
        wanted = (position // self.pool * self.pool).unsqueeze(1) + slots  # [n, pool] positions
        rows_back = position.unsqueeze(1) - wanted
        row = torch.arange(num_rows, device=keys.device).unsqueeze(1) - rows_back
        safe_row = row.clamp(min=0, max=max(num_rows - 1, 0))
        in_run = (rows_back >= 0) & (row >= 0) & (sequence[safe_row] == sequence.unsqueeze(1))
        held = tail[sequence.unsqueeze(1), wanted % tail.shape[1]]  # [n, pool, 2, d]
        pool_keys = torch.where(in_run.unsqueeze(-1), keys[safe_row], held[:, :, 0])
        pool_gates = torch.where(in_run.unsqueeze(-1), gates[safe_row], held[:, :, 1])
        weights = torch.softmax(pool_gates.float() + position_bias.float(), dim=1).to(keys.dtype)
        pooled = (weights * pool_keys).sum(dim=1)
        completes = (position + 1) % self.pool == 0
        return torch.where(completes.unsqueeze(1), pooled, 0)

    def cost(
        self,
        tail: StateType,
        keys: TensorType,
        gates: TensorType,
        position_bias: TensorType,
        position: TensorType,
        sequence: TensorType,
    ) -> Cost:
        # at most: the other rows of each pool are all in the tail
        held = min((self.pool - 1) * total_bytes(keys, gates), tail.tensor.num_bytes())
        read = held + total_bytes(keys, gates, position_bias, position, sequence)
        return Cost(6 * self.pool * keys.num_elements(), read, keys.num_bytes())
