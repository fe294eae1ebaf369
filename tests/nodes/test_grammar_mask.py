import torch

from nodes import GrammarMask
from tests.support.node_cases import same_bits
from tests.support.rounding import randn

INF = float("inf")


def words(allowed: set[int], *, num_words: int) -> torch.Tensor:
    values = [sum(1 << (token % 32) for token in allowed if token // 32 == word) for word in range(num_words)]
    return torch.tensor([[value - (1 << 32) if value >> 31 else value for value in values]], dtype=torch.int32)


def test_grammar_mask_keeps_the_tokens_whose_bit_is_set() -> None:
    logits, allowed = randn(1, 70, seed=0, dtype=torch.bfloat16), {0, 5, 31, 32, 63, 64, 69}
    got = GrammarMask().reference(logits, words(allowed, num_words=3))
    expected = torch.tensor([[logits[0, token].item() if token in allowed else -INF for token in range(70)]])
    assert same_bits(got, expected.to(torch.bfloat16))


def test_grammar_mask_tokens_beyond_its_words_are_not_allowed() -> None:
    logits = randn(1, 70, seed=0)
    got = GrammarMask().reference(logits, words(set(range(64)), num_words=2))
    assert same_bits(got[:, :64], logits[:, :64].contiguous())
    assert (got[:, 64:] == -INF).all()
    assert (GrammarMask().reference(logits, torch.zeros(1, 0, dtype=torch.int32)) == -INF).all()


def test_grammar_mask_bits_beyond_the_vocabulary_mean_nothing() -> None:
    logits = randn(1, 33, seed=0)
    assert same_bits(GrammarMask().reference(logits, torch.full((1, 4), -1, dtype=torch.int32)), logits)


def test_grammar_mask_rows_are_independent() -> None:
    logits = randn(2, 40, seed=0)
    mask = torch.cat([words({3}, num_words=2), words({39}, num_words=2)])
    assert (GrammarMask().reference(logits, mask) > -INF).nonzero().tolist() == [[0, 3], [1, 39]]


def test_grammar_mask_of_one_token_keeps_that_one_alone() -> None:
    logits = randn(1, 97, seed=0)
    for token in range(97):
        got = GrammarMask().reference(logits, words({token}, num_words=4))
        assert (got > -INF).nonzero().tolist() == [[0, token]]
