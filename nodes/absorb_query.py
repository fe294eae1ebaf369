"""AbsorbQuery: the query of each head, moved into the latent space."""

import torch
from torch import Tensor

from circuit import Cost, Node, NonNegative, TensorType


class AbsorbQuery(Node):
    """Multiply each head's query by its W_UK, the key half of kv_b_proj, so that it can meet latents directly.

    Ports:    query T[n, heads, nope] - kv_b T[heads*(nope + v), latent], per head [nope | v] rows
    Result:   T[n, heads, latent]
    Numerics: products accumulated in float32 or wider, rounded once to T
    State:    none
    Source:   absorbed form of multi-head latent attention (DeepSeek-V2, section 2.1)
    """

    # 0 where the weight holds the key rows only
    v_head_dim: NonNegative

    def infer(self, query: TensorType, kv_b: TensorType) -> TensorType:
        if not query.dtype.is_floating_point or len(query.shape) != 3:
            raise self.reject("query", query, "a floating point [n, heads, nope]")
        rows = query.shape[1] * (query.shape[2] + self.v_head_dim)
        if kv_b.dtype != query.dtype or len(kv_b.shape) != 2 or kv_b.shape[0] != query.with_shape(rows).shape[0]:
            raise self.reject("kv_b", kv_b, f"{query.with_shape(rows, 'latent')}")
        return query.with_shape(*query.shape[:2], kv_b.shape[1])

    def reference(self, query: Tensor, kv_b: Tensor) -> Tensor:
        heads, nope = query.shape[1:]
        w_uk = kv_b.view(heads, nope + self.v_head_dim, -1)[:, :nope]  # [heads, nope, latent]
        return torch.matmul(query.transpose(0, 1), w_uk).transpose(0, 1)

    def cost(self, query: TensorType, kv_b: TensorType) -> Cost:
        out = self.infer(query, kv_b)
        heads, nope = query.sizes()[1:]
        w_uk = kv_b.with_shape(heads * nope, kv_b.shape[1])
        return Cost(2 * out.num_elements() * nope, query.num_bytes() + w_uk.num_bytes(), out.num_bytes())
