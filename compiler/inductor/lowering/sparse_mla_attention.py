"""SparseMlaAttention on a CPU."""

import torch
from torch import Tensor

from compiler.inductor.realize import realize
from compiler.registry import lowers, tolerance
from nodes import SparseMlaAttention


@lowers(SparseMlaAttention, backend="inductor", numerics=tolerance(1e-5, "softmax and products in another order"))
def lower_sparse_mla_attention(
    node: SparseMlaAttention, latent: Tensor, query: Tensor, selected: Tensor, block_table: Tensor
) -> Tensor:
    """Gather the selected rows once, widened, for both products."""
    block_size = latent.shape[1]
    is_valid = selected >= 0
    token = selected.clamp(min=0)
    block = block_table.gather(1, token // block_size)
    # a row that is not selected may hold anything, NaN too
    rows = realize(torch.where(is_valid.unsqueeze(2), latent[block, token % block_size], 0))  # [n, w, r]
    scores = torch.matmul(query.float(), rows.transpose(1, 2)) * node.scale
    scores = scores.masked_fill(~is_valid.unsqueeze(1), float("-inf"))
    has_any = is_valid.any(dim=1)[:, None, None]
    probabilities = torch.where(has_any, torch.softmax(scores, dim=-1), 0).to(query.dtype)
    return torch.matmul(probabilities.float(), rows).to(query.dtype)
