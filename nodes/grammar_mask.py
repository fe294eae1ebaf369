"""GrammarMask: only the tokens that a grammar allows."""

import torch
from torch import Tensor

from circuit import Cost, Node, TensorType, total_bytes


class GrammarMask(Node):
    """Set the logits of tokens whose bit is not set to -inf; token t is bit t % 32 of word t // 32.

    Tokens beyond the mask's words are not allowed; bits beyond the vocabulary mean nothing.

    Ports:    logits T[n, vocab] - bitmask i32[n, words]
    Result:   T[n, vocab]
    Numerics: exact
    State:    none
    Source:   the token bitmask of xgrammar; a row of -1 words allows everything
    """

    def infer(self, logits: TensorType, bitmask: TensorType) -> TensorType:
        if not logits.dtype.is_floating_point or len(logits.shape) != 2:
            raise self.reject("logits", logits, "a floating point [n, vocab]")
        if bitmask.dtype != torch.int32 or bitmask.shape[:-1] != logits.shape[:1]:
            expected = TensorType.of(torch.int32, logits.shape[0], "words")
            raise self.reject("bitmask", bitmask, f"{expected}, one row per row of logits")
        return logits

    def reference(self, logits: Tensor, bitmask: Tensor) -> Tensor:
        num_covered = min(logits.shape[1], bitmask.shape[1] * 32)
        token = torch.arange(num_covered, device=logits.device)
        allowed = (bitmask[:, token // 32] >> (token % 32)) & 1 == 1
        masked = torch.full_like(logits, float("-inf"))
        masked[:, :num_covered] = logits[:, :num_covered].masked_fill(~allowed, float("-inf"))
        return masked

    def cost(self, logits: TensorType, bitmask: TensorType) -> Cost:
        return Cost(bytes_read=total_bytes(logits, bitmask), bytes_written=logits.num_bytes())
