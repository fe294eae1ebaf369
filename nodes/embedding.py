"""Embedding: one table row per token."""

from torch import Tensor
from torch.nn import functional

from circuit import Cost, Node, TensorType, i64


class Embedding(Node):
    """Look up the row of `weight` that each token names.

    Ports:    token i64[n] - weight T[vocab, hidden]
    Result:   T[n, hidden]
    Numerics: exact copy
    State:    none
    Source:   model.language_model.embed_tokens of the checkpoint; ids outside the table are refused by the caller
    """

    def infer(self, token: TensorType, weight: TensorType) -> TensorType:
        if token.dtype != i64().dtype or len(token.shape) != 1:
            raise self.reject("token", token, "i64[n]")
        if not weight.dtype.is_floating_point or len(weight.shape) != 2:
            raise self.reject("weight", weight, "a floating point [vocab, hidden]")
        return weight.with_shape(*token.shape, weight.shape[1])

    def reference(self, token: Tensor, weight: Tensor) -> Tensor:
        return functional.embedding(token, weight)

    def cost(self, token: TensorType, weight: TensorType) -> Cost:
        row_bytes = self.infer(token, weight).num_bytes()
        # a row that several tokens name is read once
        return Cost(bytes_read=token.num_bytes() + min(row_bytes, weight.num_bytes()), bytes_written=row_bytes)
