"""SplitHeads: one row of all heads becomes one row per head."""

from torch import Tensor

from circuit import Cost, Count, Node, TensorType, as_dim


class SplitHeads(Node):
    """View the last dim as heads of equal width.

    Ports:    x T[n, num_heads*d]
    Result:   T[n, num_heads, d]
    Numerics: exact, a view
    State:    none
    Source:   transformers glm5_next, the view after q_b_proj and wq_b
    """

    num_heads: Count

    def infer(self, x: TensorType) -> TensorType:
        if len(x.shape) != 2:
            raise self.reject("x", x, "[n, num_heads*d]")
        head_dim = as_dim(x.shape[1] / self.num_heads)
        if head_dim.is_integer is not True or head_dim == 0:
            raise self.reject("x", x, f"a last dim that divides into {self.num_heads} heads")
        return x.with_shape(x.shape[0], self.num_heads, head_dim)

    def reference(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], self.num_heads, x.shape[1] // self.num_heads)

    def cost(self, x: TensorType) -> Cost:
        return Cost()
