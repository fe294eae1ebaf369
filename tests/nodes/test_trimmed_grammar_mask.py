"""TrimmedGrammarMask: each row meets the bit of its own token, as GrammarMask would of the whole vocabulary."""

import pytest
import torch

from nodes import GrammarMask, TrimmedGrammarMask
from tests.support.node_cases import same_bits
from tests.support.rounding import randn

VOCAB = 131


@pytest.mark.parametrize("num_words", [0, 1, 3, 5])
@pytest.mark.parametrize("token_ids", [[0], [31, 32, 33], [7, 64, 65, 95, 96, 130], list(range(VOCAB))], ids=len)
def test_trimmed_mask_is_the_whole_mask_at_the_rows_that_are_kept(num_words: int, token_ids: list[int]) -> None:
    generator = torch.Generator().manual_seed(num_words)
    logits = randn(3, VOCAB, seed=1)
    bitmask = torch.randint(-(2**31), 2**31, (3, num_words), generator=generator).to(torch.int32)
    kept = torch.tensor(token_ids)
    whole = GrammarMask().reference(logits, bitmask)[:, kept]
    got = TrimmedGrammarMask().reference(logits[:, kept].contiguous(), bitmask, kept)
    assert same_bits(got, whole.contiguous())


def test_trimmed_mask_of_one_token_keeps_its_row_alone() -> None:
    kept = torch.arange(VOCAB)
    for token in range(VOCAB):
        bitmask = torch.zeros(1, 5, dtype=torch.int32)
        bitmask[0, token // 32] = -(1 << 31) if token % 32 == 31 else 1 << (token % 32)
        got = TrimmedGrammarMask().reference(torch.zeros(1, VOCAB), bitmask, kept)
        assert (got == 0).nonzero().tolist() == [[0, token]]
