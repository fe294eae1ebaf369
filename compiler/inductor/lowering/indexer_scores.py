"""IndexerScores on a CPU."""

import torch
from torch import Tensor

from compiler.inductor.products import MAX_LOOP_PRODUCTS, MAX_UNROLLED_ROWS
from compiler.inductor.realize import realize
from compiler.registry import lowers, tolerance
from nodes import IndexerScores


@lowers(IndexerScores, backend="inductor", numerics=tolerance(1e-5, "sums over width and heads in another order"))
def lower_indexer_scores(
    node: IndexerScores, pool_keys: Tensor, query: Tensor, head_weights: Tensor, position: Tensor, block_table: Tensor
) -> Tensor:
    """Gather the keys once; small products are loops of the program itself, not calls of a library."""
    keys = pool_keys[block_table].flatten(1, 2)  # [n, P, D]
    num_rows, heads, width = query.shape
    if num_rows > MAX_UNROLLED_ROWS or heads * width * keys.shape[1] > MAX_LOOP_PRODUCTS:
        return node.reference(pool_keys, query, head_weights, position, block_table)
    wide_keys, wide_query = realize(keys), realize(query)
    weights = realize(head_weights.float() * heads**-0.5)
    rows = []
    for row in range(num_rows):
        similarity = (wide_keys[row].unsqueeze(0) * wide_query[row].unsqueeze(1)).sum(-1)  # [H, P]
        rows.append((torch.relu(similarity * width**-0.5) * weights[row].unsqueeze(1)).sum(0))
    last_token = (torch.arange(keys.shape[1], device=query.device) + 1) * node.pool - 1
    return torch.stack(rows).masked_fill(last_token > position.unsqueeze(1), float("-inf"))
