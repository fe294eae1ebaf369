"""Token bitmasks of a grammar, as serving loops hand them in: int32, bit t % 32 of word t // 32 allows token t.

A mask addresses the whole vocabulary. With the lever draft_vocab it meets the rows that are left by their token ids:
tokens that may not be drafted are taken out of it, and drafting stops before the first mask that then allows nothing.
"""

import torch
from torch import Tensor


def checked_bitmask(bitmask: Tensor, *, vocab_size: int, device: torch.device, where: str) -> Tensor:
    """Return the mask as int32 [drafts, words] on `device`, a copy where it has to move; the argument is not modified.

    [words] masks draft 1, [drafts, words] a draft each. A mask shorter than the vocabulary allows nothing beyond its
    end, words beyond the vocabulary mean nothing. Raises ValueError for another dtype or shape.
    """
    if not isinstance(bitmask, Tensor) or bitmask.dtype != torch.int32 or bitmask.dim() not in (1, 2):
        got = f"{bitmask.dtype} {list(bitmask.shape)}" if isinstance(bitmask, Tensor) else type(bitmask).__name__
        raise ValueError(f"{where}.grammar_bitmask: expected int32 [words] or [drafts, words], got {got}")
    if bitmask.device.type == "meta":
        raise ValueError(f"{where}.grammar_bitmask: expected words to read, got a tensor on the meta device")
    rows = bitmask.unsqueeze(0) if bitmask.dim() == 1 else bitmask
    return rows[:, : -(-vocab_size // 32)].to(device)


def num_drafts_allowed(bitmask: Tensor, *, vocab_size: int, num_drafts: int) -> int:
    """Return how many of `num_drafts` drafts can be made: those before the first whose mask allows no token at all.

    bitmask: what `checked_bitmask` returned. Drafts beyond the mask's rows are free. Waits for the device.
    """
    words = bitmask.clone()
    spare_bits = words.shape[1] * 32 - vocab_size
    if spare_bits > 0 and words.numel():
        # bits past the vocabulary allow nothing
        words[:, -1] &= (1 << (32 - spare_bits)) - 1
    is_empty = (words == 0).all(dim=1)
    empty_rows = is_empty.nonzero().flatten().tolist()
    return min([num_drafts, *empty_rows])
