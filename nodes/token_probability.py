"""TokenProbability: how sure the drafter is of its draft."""

import torch
from torch import Tensor

from circuit import Cost, Node, TensorType, f32, i64, total_bytes


class TokenProbability(Node):
    """Return the softmax probability, over every logit, of one of them per row.

    Ports:    logits T[n, vocab] - token i64[n]
    Result:   f32[n]
    Numerics: exp(logit - logsumexp(logits)) in float32
    State:    none
    Source:   confidence of a draft: the drafter's own probability of it, at temperature 1, before any grammar mask
    """

    def infer(self, logits: TensorType, token: TensorType) -> TensorType:
        if not logits.dtype.is_floating_point or len(logits.shape) != 2:
            raise self.reject("logits", logits, "a floating point [n, vocab]")
        if token != i64(logits.shape[0]):
            raise self.reject("token", token, f"{i64(logits.shape[0])}")
        return f32(logits.shape[0])

    def reference(self, logits: Tensor, token: Tensor) -> Tensor:
        wide = logits.float()
        chosen = wide.gather(1, token.unsqueeze(1)).squeeze(1)
        return torch.exp(chosen - torch.logsumexp(wide, dim=1))

    def cost(self, logits: TensorType, token: TensorType) -> Cost:
        out = self.infer(logits, token)
        return Cost(3 * logits.num_elements(), total_bytes(logits, token), out.num_bytes())
