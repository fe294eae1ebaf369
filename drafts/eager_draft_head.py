"""The eager head's last part: logits of the rows that may be drafted, and the token of the best."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from drafts.draft_head import DraftHead


class EagerDraftHead(nn.Module):
    """lm_head as the levers draft_head and draft_vocab have it read; it holds the weight, and sees writes into it."""

    weight: Tensor  # [vocab, hidden]
    token_ids: Tensor | None  # [rows]

    def __init__(self, weight: Tensor, draft_head: DraftHead) -> None:
        super().__init__()
        draft_head.num_rows(weight.shape[0])
        self.register_buffer("weight", weight)
        ids = draft_head.draft_vocab
        self.register_buffer("token_ids", None if ids is None else torch.tensor(ids, device=weight.device))
        self._is_int8 = draft_head.draft_head == "int8"
        self._quantised: tuple[Tensor, Tensor] | None = None
        self._version = -1

    def logits(self, normed: Tensor) -> Tensor:
        """Return the logits [n, rows] of normed hiddens [n, hidden]."""
        if self._is_int8:
            steps, scale = self._int8()
            return (functional.linear(normed.float(), steps.float()) * scale).to(normed.dtype)
        return functional.linear(normed, self._rows())

    def _rows(self) -> Tensor:
        return self.weight if self.token_ids is None else self.weight[self.token_ids]

    def _int8(self) -> tuple[Tensor, Tensor]:
        """The rows in steps of a 127th of their largest magnitude, made again when the weight was written since."""
        if self._quantised is None or self._version != self.weight._version:
            rows = self._rows().float()
            scale = rows.abs().amax(dim=1) / 127
            scale = scale.masked_fill(~scale.isfinite(), torch.nan)
            steps = (rows / scale[:, None]).nan_to_num(0.0).round().clamp(-127, 127).to(torch.int8)
            self._quantised, self._version = (steps, scale), self.weight._version
        return self._quantised

    def best_row(self, logits: Tensor, grammar_bitmask: Tensor | None) -> Tensor:
        """Return the row [n] of the largest logit, the lowest of equals, among those that a grammar allows."""
        if grammar_bitmask is None:
            return torch.argmax(logits, dim=-1)
        return torch.argmax(allowed_logits(logits, grammar_bitmask, self.token_ids), dim=-1)

    def token(self, row: Tensor) -> Tensor:
        """Return the token [n] that each row stands for."""
        return row if self.token_ids is None else self.token_ids[row]


def allowed_logits(logits: Tensor, bitmask: Tensor, token_ids: Tensor | None = None) -> Tensor:
    """Return logits [n, rows] with -inf where a token is not allowed: its bit, t % 32 of word t // 32, is not set.

    Row r is token token_ids[r], or r itself without token_ids. Tokens beyond the words are not allowed.
    """
    tokens = torch.arange(logits.shape[1], device=logits.device) if token_ids is None else token_ids
    bits = ((bitmask.unsqueeze(2) >> torch.arange(32, device=logits.device)) & 1).flatten(1)
    is_covered = tokens < bits.shape[1]
    is_allowed = torch.zeros_like(logits, dtype=torch.bool)
    is_allowed[:, is_covered] = bits[:, tokens[is_covered]].bool()
    return logits.masked_fill(~is_allowed, float("-inf"))
