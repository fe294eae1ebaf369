"""TrimmedGrammarMask: only the tokens that a grammar allows, where logits are those of some tokens."""

import torch
from torch import Tensor

from circuit import Cost, Node, TensorType, i64, total_bytes


class TrimmedGrammarMask(Node):
    """Set the logits of rows to -inf whose token's bit is not set; token t is bit t % 32 of word t // 32.

    The mask addresses the whole vocabulary, as a grammar makes it: row r meets the bit of token_ids[r], no other. Rows
    of tokens beyond the mask's words are not allowed. A mask that allows no row leaves -inf everywhere; whoever drafts
    stops before it, see drafts/grammar.py.

    Ports:    logits T[n, rows] - bitmask i32[n, words] - token_ids i64[rows]
    Result:   T[n, rows]
    Numerics: exact
    State:    none
    Source:   GrammarMask, at the rows that the lever draft_vocab keeps
    """

    def infer(self, logits: TensorType, bitmask: TensorType, token_ids: TensorType) -> TensorType:
        if not logits.dtype.is_floating_point or len(logits.shape) != 2:
            raise self.reject("logits", logits, "a floating point [n, rows]")
        if bitmask.dtype != torch.int32 or bitmask.shape[:-1] != logits.shape[:1]:
            expected = TensorType.of(torch.int32, logits.shape[0], "words")
            raise self.reject("bitmask", bitmask, f"{expected}, one row per row of logits")
        if token_ids != i64(logits.shape[1]):
            raise self.reject("token_ids", token_ids, f"{i64(logits.shape[1])}, one per column of logits")
        return logits

    def reference(self, logits: Tensor, bitmask: Tensor, token_ids: Tensor) -> Tensor:
        word = token_ids // 32
        is_covered = word < bitmask.shape[1]
        # a mask without words allows nothing
        words = torch.nn.functional.pad(bitmask, (0, 1))[:, word.clamp(max=bitmask.shape[1])]
        allowed = ((words >> (token_ids % 32)) & 1 == 1) & is_covered
        return logits.masked_fill(~allowed, float("-inf"))

    def cost(self, logits: TensorType, bitmask: TensorType, token_ids: TensorType) -> Cost:
        # no more words than rows are looked at
        words = min(bitmask.num_bytes(), 4 * logits.num_elements())
        return Cost(bytes_read=total_bytes(logits, token_ids) + words, bytes_written=logits.num_bytes())
