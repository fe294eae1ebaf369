"""AbsorbValue: attended latents, moved to each head's value space."""

import torch
from torch import Tensor

from circuit import Cost, Count, Node, NonNegative, TensorType


class AbsorbValue(Node):
    """Multiply each head's attended latent by its W_UV, the value half of kv_b_proj, and join the heads.

    Ports:    attended T[n, heads, latent] - kv_b T[heads*(nope + v), latent], per head [nope | v] rows
    Result:   T[n, heads*v]
    Numerics: products accumulated in float32 or wider, rounded once to T
    State:    none
    Source:   absorbed form of multi-head latent attention (DeepSeek-V2, section 2.1)
    """

    v_head_dim: Count
    # 0 where the weight holds the value rows only
    qk_nope_head_dim: NonNegative

    def infer(self, attended: TensorType, kv_b: TensorType) -> TensorType:
        if not attended.dtype.is_floating_point or len(attended.shape) != 3:
            raise self.reject("attended", attended, "a floating point [n, heads, latent]")
        rows = attended.shape[1] * (self.qk_nope_head_dim + self.v_head_dim)
        if kv_b != attended.with_shape(rows, attended.shape[2]):
            raise self.reject("kv_b", kv_b, f"{attended.with_shape(rows, attended.shape[2])}")
        return attended.with_shape(attended.shape[0], attended.shape[1] * self.v_head_dim)

    def reference(self, attended: Tensor, kv_b: Tensor) -> Tensor:
        num_rows, heads, latent = attended.shape
        w_uv = kv_b.view(heads, self.qk_nope_head_dim + self.v_head_dim, latent)[:, self.qk_nope_head_dim :]
        values = torch.matmul(attended.transpose(0, 1), w_uv.transpose(1, 2))  # [heads, n, v]
        return values.transpose(0, 1).reshape(num_rows, heads * self.v_head_dim)

    def cost(self, attended: TensorType, kv_b: TensorType) -> Cost:
        out = self.infer(attended, kv_b)
        heads, latent = attended.sizes()[1:]
        w_uv = kv_b.with_shape(heads * self.v_head_dim, latent)
        return Cost(2 * out.num_elements() * latent, attended.num_bytes() + w_uv.num_bytes(), out.num_bytes())
