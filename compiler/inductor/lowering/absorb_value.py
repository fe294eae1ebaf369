"""AbsorbValue on a CPU."""

import torch
from torch import Tensor

from compiler.inductor.products import product_form
from compiler.inductor.realize import realize
from compiler.registry import lowers, tolerance
from nodes import AbsorbValue


@lowers(AbsorbValue, backend="inductor", numerics=tolerance(1e-5, "the sum over the latent runs in another order"))
def lower_absorb_value(node: AbsorbValue, attended: Tensor, kv_b: Tensor) -> Tensor:
    """Multiply and sum per head; the weight is read in place, its key half skipped."""
    num_rows, heads, latent = attended.shape
    if product_form(num_rows=num_rows, dtype=kv_b.dtype, weight_bytes=kv_b.nbytes, has_native=False) == "matmul":
        return node.reference(attended, kv_b)
    w_uv = kv_b.view(heads, node.qk_nope_head_dim + node.v_head_dim, latent)[:, node.qk_nope_head_dim :]
    wide = realize(attended)
    rows = [(w_uv.float() * wide[row].unsqueeze(1)).sum(-1).flatten() for row in range(num_rows)]
    return torch.stack(rows).to(attended.dtype)
