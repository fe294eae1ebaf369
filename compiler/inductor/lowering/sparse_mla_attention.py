"""SparseMlaAttention on a CPU."""

import torch
from torch import Tensor

from compiler.inductor.products import MAX_LOOP_PRODUCTS, MAX_UNROLLED_ROWS
from compiler.inductor.realize import realize
from compiler.registry import lowers, tolerance
from nodes import SparseMlaAttention


@lowers(SparseMlaAttention, backend="inductor", numerics=tolerance(1e-5, "softmax and products in another order"))
def lower_sparse_mla_attention(
    node: SparseMlaAttention, latent: Tensor, query: Tensor, selected: Tensor, block_table: Tensor
) -> Tensor:
    """Gather the selected rows once, widened, for both products; small products are loops of the program itself."""
    block_size = latent.shape[1]
    is_valid = selected >= 0
    token = selected.clamp(min=0)
    block = block_table.gather(1, token // block_size)
    # a row that is not selected may hold anything, NaN too
    rows = realize(torch.where(is_valid.unsqueeze(2), latent[block, token % block_size], 0))  # [n, w, r]
    is_small = query.shape[0] <= MAX_UNROLLED_ROWS and query[0].numel() * selected.shape[1] <= MAX_LOOP_PRODUCTS
    wide = realize(query)
    if is_small:
        scores = torch.stack([(rows[row] * wide[row].unsqueeze(1)).sum(-1) for row in range(query.shape[0])])
    else:
        scores = torch.matmul(wide, rows.transpose(1, 2))
    scores = scores * node.scale
    scores = scores.masked_fill(~is_valid.unsqueeze(1), float("-inf"))
    has_any = is_valid.any(dim=1)[:, None, None]
    probabilities = torch.where(has_any, torch.softmax(scores, dim=-1), 0).to(query.dtype)
    if not is_small:
        return torch.matmul(probabilities.float(), rows).to(query.dtype)
    held = realize(probabilities)
    attended = [(held[row].unsqueeze(2) * rows[row]).sum(1) for row in range(query.shape[0])]
    return torch.stack(attended).to(query.dtype)
