"""LocalArgmax: the best token among those whose logits this rank has."""

import torch
from torch import Tensor

from circuit import Cost, Node, NonNegative, TensorType, i64, total_bytes


class LocalArgmax(Node):
    """Return the largest logit of each row and its token id in the whole vocabulary; the lowest id wins a tie.

    Ports:    logits T[n, d], those of the d tokens from `first` on
    Result:   value T[n] - token i64[n]
    Numerics: exact; a NaN counts as the largest value, as in torch
    State:    none
    Source:   this rank's half of the argmax over a vocabulary-parallel lm_head, see ArgmaxExchange
    """

    results = ("value", "token")
    # the first token of this rank's rows of lm_head
    first: NonNegative

    def infer(self, logits: TensorType) -> tuple[TensorType, TensorType]:
        if not logits.dtype.is_floating_point or len(logits.shape) != 2:
            raise self.reject("logits", logits, "a floating point [n, d]")
        return logits.with_shape(logits.shape[0]), i64(logits.shape[0])

    def reference(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        best = torch.argmax(logits, dim=-1)
        return logits.gather(1, best.unsqueeze(1)).squeeze(1), best + self.first

    def cost(self, logits: TensorType) -> Cost:
        return Cost(logits.num_elements(), logits.num_bytes(), total_bytes(*self.infer(logits)))
