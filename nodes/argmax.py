"""Argmax: the drafted token."""

import torch
from torch import Tensor

from circuit import Cost, Node, TensorType, i64


class Argmax(Node):
    """Return the index of the largest entry of the last dim; the lowest index wins a tie.

    Ports:    logits T[n, vocab]
    Result:   i64[n]
    Numerics: exact; a NaN counts as the largest value, as in torch
    State:    none
    Source:   greedy drafting; torch.argmax returns the first of equal values, topk(1) does not promise it
    """

    def infer(self, logits: TensorType) -> TensorType:
        if not logits.dtype.is_floating_point or len(logits.shape) != 2:
            raise self.reject("logits", logits, "a floating point [n, vocab]")
        return i64(logits.shape[0])

    def reference(self, logits: Tensor) -> Tensor:
        return torch.argmax(logits, dim=-1)

    def cost(self, logits: TensorType) -> Cost:
        return Cost(logits.num_elements(), logits.num_bytes(), self.infer(logits).num_bytes())
