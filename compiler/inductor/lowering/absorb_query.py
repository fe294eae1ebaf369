"""AbsorbQuery on a CPU."""

import torch
from torch import Tensor

from compiler.inductor.products import product_form
from compiler.inductor.realize import realize
from compiler.registry import lowers, tolerance
from nodes import AbsorbQuery


@lowers(AbsorbQuery, backend="inductor", numerics=tolerance(1e-5, "the sum over nope runs in another order"))
def lower_absorb_query(node: AbsorbQuery, query: Tensor, kv_b: Tensor) -> Tensor:
    """Sum over nope, vectorised along the latent; the weight is read in place, its value half skipped."""
    num_rows, heads, nope = query.shape
    if product_form(num_rows=num_rows, dtype=kv_b.dtype, weight_bytes=kv_b.nbytes, has_native=False) == "matmul":
        return node.reference(query, kv_b)
    w_uk = kv_b.view(heads, nope + node.v_head_dim, -1)[:, :nope]
    wide = realize(query)
    rows = [(w_uk.float() * wide[row].unsqueeze(-1)).sum(1) for row in range(num_rows)]
    return torch.stack(rows).to(query.dtype)
