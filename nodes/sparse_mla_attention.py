"""SparseMlaAttention: attention over the selected rows of the latent cache."""

import torch
from torch import Tensor

from circuit import Cost, Node, StateType, TensorType, i64, total_bytes


class SparseMlaAttention(Node):
    """Attend, per head, the latent rows that a row selected; keys and values are the same latents.

    Ports:    latent paged T[blocks, block_size, r] - query T[n, heads, r] - selected i64[n, w], -1 for none
              - block_table i64[n, max_blocks]
    Result:   T[n, heads, r]; zeros for a row that selected nothing
    Numerics: scores in float32 times `scale`, softmax in float32, probabilities rounded to T, their product with the
              latents accumulated in float32 and rounded once to T
    State:    reads latent
    Source:   transformers glm5_next attention in absorbed form; `scale` is the nope width ** -0.5, not the latent's
    """

    reads = ("latent",)
    scale: float

    def infer(self, latent: StateType, query: TensorType, selected: TensorType, block_table: TensorType) -> TensorType:
        if latent.layout != "paged" or len(latent.tensor.shape) != 3 or latent.rows_per_entry != 1:
            raise self.reject("latent", latent, "a paged state [blocks, block_size, r] of one row per entry")
        if query.dtype != latent.tensor.dtype or len(query.shape) != 3 or query.shape[2] != latent.tensor.shape[2]:
            raise self.reject("query", query, f"{latent.tensor.with_shape('n', 'heads', latent.tensor.shape[2])}")
        for port, table in (("selected", selected), ("block_table", block_table)):
            if table.dtype != i64().dtype or len(table.shape) != 2 or table.shape[0] != query.shape[0]:
                raise self.reject(port, table, f"{i64(query.shape[0], 'w')}")
        return query

    def reference(self, latent: Tensor, query: Tensor, selected: Tensor, block_table: Tensor) -> Tensor:
        block_size = latent.shape[1]
        is_valid = selected >= 0
        token = selected.clamp(min=0)
        block = block_table.gather(1, token // block_size)
        # an unselected row may hold anything, NaN too, and 0 * NaN is NaN
        rows = torch.where(is_valid.unsqueeze(2), latent[block, token % block_size], 0)  # [n, w, r]
        scores = torch.matmul(query.float(), rows.float().transpose(1, 2)) * self.scale
        scores = scores.masked_fill(~is_valid.unsqueeze(1), float("-inf"))
        has_any = is_valid.any(dim=1)[:, None, None]
        probabilities = torch.where(has_any, torch.softmax(scores, dim=-1), 0).to(query.dtype)
        return torch.matmul(probabilities.float(), rows.float()).to(query.dtype)

    def cost(self, latent: StateType, query: TensorType, selected: TensorType, block_table: TensorType) -> Cost:
        rows = latent.tensor.with_shape(*selected.shape, latent.tensor.shape[2])
        flops = 4 * rows.num_elements() * int(query.sizes()[1])
        # a latent that several rows share is read once
        row_bytes = min(rows.num_bytes(), latent.tensor.num_bytes())
        return Cost(flops, row_bytes + total_bytes(query, selected, block_table), query.num_bytes())
