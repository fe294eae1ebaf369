"""What one rank of a split drafter does differently in the eager head: its ranges, and what it exchanges."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class EagerShard:
    """This rank's ranges of heads, experts and tokens, and the exchanges that make whole what they give.

    add_up_heads, add_up_experts: the sum over ranks of what each has of it. gather: [ranks, ...] of logits, or of what
    stands for them. has_whole_logits: lm_head is not split, and nothing is exchanged for a draft.
    """

    num_heads: int
    first_expert: int
    first_token: int
    has_whole_logits: bool
    add_up_heads: Callable[[Tensor], Tensor]
    add_up_experts: Callable[[Tensor], Tensor]
    gather: Callable[[Tensor], Tensor]

    def whole_logits(self, logits: Tensor) -> Tensor:
        """Return the logits [n, vocab] of all ranks."""
        return logits if self.has_whole_logits else torch.cat(tuple(self.gather(logits)), dim=-1)

    def draft(self, logits: Tensor) -> Tensor:
        """Return the best token [n] of all ranks' logits; the lowest id wins a tie."""
        best = torch.argmax(logits, dim=-1)
        if self.has_whole_logits:
            return best
        value = logits.gather(1, best[:, None])[:, 0]
        pairs = self.gather(torch.stack((value.double(), (best + self.first_token).double()), dim=1))  # [ranks, n, 2]
        # ranks hold ascending ranges of tokens, so the first of equal values has the lowest id
        winner = pairs[..., 0].argmax(dim=0, keepdim=True)
        return pairs[..., 1].gather(0, winner)[0].long()
