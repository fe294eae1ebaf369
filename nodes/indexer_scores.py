"""IndexerScores: the lightning indexer's score of every complete pool."""

import torch
from torch import Tensor

from circuit import Cost, Count, Node, StateType, TensorType, f32, i64, total_bytes


class IndexerScores(Node):
    """Score pool p for a row: sum over heads of w_h * H**-0.5 * relu(q_h . key_p * D**-0.5), H heads of width D.

    A pool counts only when all its tokens are visible, (p + 1) * pool <= position + 1; the others score -inf. Scores
    may be negative, so 0 marks nothing.

    Ports:    pool_keys paged T[blocks, entries, D] - query T[n, H, D] - head_weights T[n, H] - position i64[n]
              - block_table i64[n, max_blocks]
    Result:   f32[n, max_blocks*entries]
    Numerics: all in float32: query and keys widened, scale inside the relu, head weights scaled before the sum
    State:    reads pool_keys
    Source:   transformers glm5_next, Glm5NextTextIndexer.forward
    """

    reads = ("pool_keys",)
    pool: Count

    def infer(
        self,
        pool_keys: StateType,
        query: TensorType,
        head_weights: TensorType,
        position: TensorType,
        block_table: TensorType,
    ) -> TensorType:
        if pool_keys.layout != "paged" or len(pool_keys.tensor.shape) != 3 or pool_keys.rows_per_entry != self.pool:
            raise self.reject(
                "pool_keys", pool_keys, f"a paged state [blocks, entries, d] of {self.pool} rows per entry"
            )
        width = pool_keys.tensor.shape[2]
        if query.dtype != pool_keys.tensor.dtype or len(query.shape) != 3 or query.shape[2] != width:
            raise self.reject("query", query, f"{pool_keys.tensor.with_shape('n', 'heads', width)}")
        if head_weights != query.with_shape(*query.shape[:2]):
            raise self.reject("head_weights", head_weights, f"{query.with_shape(*query.shape[:2])}")
        if position != i64(query.shape[0]):
            raise self.reject("position", position, f"{i64(query.shape[0])}")
        if block_table.dtype != position.dtype or len(block_table.shape) != 2 or block_table.shape[0] != query.shape[0]:
            raise self.reject("block_table", block_table, f"{i64(query.shape[0], 'max_blocks')}")
        return f32(query.shape[0], block_table.shape[1] * pool_keys.tensor.shape[1])

    def reference(
        self, pool_keys: Tensor, query: Tensor, head_weights: Tensor, position: Tensor, block_table: Tensor
    ) -> Tensor:
        keys = pool_keys[block_table].flatten(1, 2)  # [n, P, D]
        heads, width = query.shape[1:]
        similarity = torch.relu(torch.matmul(query.float(), keys.float().transpose(1, 2)) * width**-0.5)
        weights = head_weights.float() * heads**-0.5
        scores = torch.matmul(weights.unsqueeze(1), similarity).squeeze(1)
        last_token = (torch.arange(keys.shape[1], device=query.device) + 1) * self.pool - 1
        return scores.masked_fill(last_token > position.unsqueeze(1), float("-inf"))

    def cost(
        self,
        pool_keys: StateType,
        query: TensorType,
        head_weights: TensorType,
        position: TensorType,
        block_table: TensorType,
    ) -> Cost:
        scores = self.infer(pool_keys, query, head_weights, position, block_table)
        keys = pool_keys.tensor.with_shape(*scores.shape, pool_keys.tensor.shape[2])
        flops = 2 * keys.num_elements() * int(query.sizes()[1])
        # a key that several rows share is read once
        key_bytes = min(keys.num_bytes(), pool_keys.tensor.num_bytes())
        read = key_bytes + total_bytes(query, head_weights, position, block_table)
        return Cost(flops, read, scores.num_bytes())
