"""ArgmaxExchange: the drafted token, of a vocabulary that several ranks share."""

from typing import Literal

import torch
from torch import Tensor

from circuit import Cost, Count, Node, TensorType, communicator_over, i64, total_bytes


class ArgmaxExchange(Node):
    """Return the token of the largest value of all ranks along an axis; the lowest token id wins a tie.

    Ports:    value T[n], the largest of this rank's logits - token i64[n], where it stands in the whole vocabulary
    Result:   i64[n], the same on every rank, whatever the order of ranks
    Numerics: exact; a NaN counts as the largest value, as in Argmax
    State:    none
    Source:   greedy drafting over a vocabulary-parallel lm_head: 16 bytes a row in place of the logits
    """

    exchange = "all_gather"
    axis: Literal["tp", "ep"]
    num_ranks: Count

    def infer(self, value: TensorType, token: TensorType) -> TensorType:
        if not value.dtype.is_floating_point or len(value.shape) != 1:
            raise self.reject("value", value, "a floating point [n]")
        if token != i64(value.shape[0]):
            raise self.reject("token", token, f"{i64(value.shape[0])}")
        return token

    def reference(self, value: Tensor, token: Tensor) -> Tensor:
        if self.num_ranks == 1:
            return token
        # one exchange for both: a token id is exact in float64, and so is every logit
        pair = torch.stack((value.double(), token.double()), dim=1)
        pairs = communicator_over(self.axis, self.num_ranks, where=str(self)).all_gather(pair)  # [ranks, n, 2]
        values, tokens = pairs[..., 0], pairs[..., 1].long()
        best = values.amax(dim=0)  # NaN where there is one
        is_best = torch.where(best.isnan(), values.isnan(), values == best)
        return tokens.masked_fill(~is_best, torch.iinfo(torch.int64).max).amin(dim=0)

    def payload(self, value: TensorType, token: TensorType) -> TensorType:
        return TensorType.of(torch.float64, value.shape[0], 2)

    def cost(self, value: TensorType, token: TensorType) -> Cost:
        sent = (self.num_ranks - 1) * 2 * torch.float64.itemsize * value.num_elements()
        return Cost(self.num_ranks * value.num_elements(), total_bytes(value, token), token.num_bytes(), sent)
