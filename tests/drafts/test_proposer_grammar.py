"""grammar_bitmask: draft 1 exactly, later drafts where a mask each is given; padding, short, empty masks."""

from __future__ import annotations

from collections.abc import Collection

import pytest
import torch
from torch import Tensor

from drafts.proposer import DraftProposer
from drafts.proposer_state import ProposerState
from tests.drafts.drafter_twin import Text, both_paths, make_proposer, make_text, snapshot

VOCAB = 61
WORDS = 2
PADDING = -(2**29)  # bits 29 to 31 of the last word, which no token of the vocabulary has


def bitmask(allowed: Collection[int], *, words: int = WORDS) -> Tensor:
    """Hand-made words in xgrammar's layout: bit t % 32 of word t // 32 allows token t."""
    packed = [0] * words
    for token in allowed:
        packed[token // 32] |= 1 << (token % 32)
    return torch.tensor(packed, dtype=torch.int64).to(torch.int32)


def setup(path: str, **options: int) -> tuple[DraftProposer, Text, ProposerState]:
    proposer = make_proposer(path, **options)
    text, state = make_text(proposer, 60), proposer.alloc_state()
    text.prefill(proposer, state, 14)
    return proposer, text, state


def propose(
    proposer: DraftProposer, text: Text, state: ProposerState, mask: Tensor | None, num_drafts: int = 3
) -> list[int]:
    token, hidden = int(text.tokens[15]), text.hiddens[14]
    return proposer.propose(token, hidden, 14, num_drafts, state, grammar_bitmask=mask)


@both_paths
def test_draft_one_is_the_best_allowed_token_in_every_order_of_exclusion(path: str) -> None:
    proposer, text, state = setup(path)
    left, ranking = set(range(VOCAB)), []
    while left:
        [draft] = propose(proposer, text, state, bitmask(left), 1)
        assert draft in left
        ranking.append(draft)
        left.remove(draft)
    # excluding the best again and again gives the whole vocabulary in descending order of its logits
    confidences = []
    for token in ranking:
        row: list[list[float]] = []
        hidden = text.hiddens[14:15]
        masks = [bitmask([token])]
        first = int(text.tokens[15])
        made = proposer.propose_batch([first], hidden, [14], 1, [state], grammar_bitmasks=masks, confidences=row)
        assert made == [[token]]
        confidences.append(row[0][0])
    assert confidences == sorted(confidences, reverse=True)
    assert sum(confidences) == pytest.approx(1, abs=1e-5)


@both_paths
def test_mask_of_one_row_leaves_later_drafts_free(path: str) -> None:
    proposer, text, state = setup(path)
    free = propose(proposer, text, state, None)
    mask = bitmask(set(range(VOCAB)) - {free[0]})
    masked = propose(proposer, text, state, mask)
    assert masked[0] != free[0]
    # the rest is what is drafted after the first, were it allowed alone
    assert propose(proposer, text, state, bitmask([masked[0]])) == masked
    assert propose(proposer, text, state, mask[None]) == masked
    assert propose(proposer, text, state, bitmask(free[:1])) == free


@both_paths
def test_mask_of_all_ones_changes_nothing(path: str) -> None:
    proposer, text, state = setup(path)
    free, before = propose(proposer, text, state, None), snapshot(proposer, state)
    for mask in (
        torch.full((WORDS,), -1),
        torch.full((3, WORDS), -1),
        torch.full((7, WORDS + 5), -1),
        torch.ones(0, 2),
    ):
        assert propose(proposer, text, state, mask.int()) == free
        assert snapshot(proposer, state) == before


@both_paths
def test_mask_per_draft_binds_each_draft(path: str) -> None:
    proposer, text, state = setup(path)
    allowed: list[set[int]] = [{3, 33, 60}, {0, 31, 32}, {59}]
    masks = torch.stack([bitmask(tokens) for tokens in allowed])
    drafts = propose(proposer, text, state, masks)
    for draft, tokens in zip(drafts, allowed, strict=True):
        assert draft in tokens
    # two masks for three drafts: the third is free, and is what follows those two
    free_third = propose(proposer, text, state, masks[:2])
    assert free_third[:2] == drafts[:2]
    pinned = torch.stack([bitmask([draft]) for draft in drafts[:2]])
    assert propose(proposer, text, state, pinned) == free_third
    # more masks than drafts
    assert propose(proposer, text, state, masks, 2) == drafts[:2]


@both_paths
@pytest.mark.parametrize("token", [0, 28, 29, 30, 31, 32, 59, 60])
def test_single_allowed_token_is_drafted_whatever_its_logit(path: str, token: int) -> None:
    proposer, text, state = setup(path)
    assert propose(proposer, text, state, bitmask([token]), 1) == [token]


@both_paths
def test_padding_bits_and_words_allow_nothing(path: str) -> None:
    proposer, text, state = setup(path)
    expected = propose(proposer, text, state, bitmask([5, 40]), 1)
    padded = torch.cat([bitmask([5, 40]), torch.full((3,), -1, dtype=torch.int32)])
    padded[1] |= PADDING
    assert propose(proposer, text, state, padded, 1) == expected


@both_paths
def test_mask_shorter_than_the_vocabulary_allows_nothing_beyond_it(path: str) -> None:
    proposer, text, state = setup(path)
    drafts = propose(proposer, text, state, torch.full((1,), -1, dtype=torch.int32), 1)
    assert drafts == propose(proposer, text, state, bitmask(range(32)), 1)
    assert drafts[0] < 32


EMPTY = {
    "all zero": torch.zeros(WORDS, dtype=torch.int32),
    "all zero rows": torch.zeros(3, WORDS, dtype=torch.int32),
    "padding bits only": torch.tensor([0, PADDING], dtype=torch.int32),
    "padding words only": torch.tensor([0, 0, -1, -1], dtype=torch.int32),
    "no words": torch.zeros(0, dtype=torch.int32),
    "short and zero": torch.zeros(1, dtype=torch.int32),
}


@both_paths
@pytest.mark.parametrize("name", EMPTY)
@pytest.mark.parametrize("back", [0, 2])
def test_mask_that_allows_nothing_gives_an_empty_list_and_changes_nothing(path: str, name: str, back: int) -> None:
    proposer, text, state = setup(path)
    before = snapshot(proposer, state)
    token, hidden = int(text.tokens[15]), text.hiddens[14]
    assert proposer.propose(token, hidden, 14 - back, 3, state, grammar_bitmask=EMPTY[name]) == []
    assert snapshot(proposer, state) == before
    assert proposer.path_counters == {f"context.{proposer.path.name}": 1}


@both_paths
@pytest.mark.parametrize("empty_row, num_drafts", [(1, 1), (2, 2)])
def test_drafting_stops_before_the_first_mask_that_allows_nothing(path: str, empty_row: int, num_drafts: int) -> None:
    proposer, text, state = setup(path)
    masks = torch.stack([bitmask([3, 9]), bitmask([4, 40]), bitmask([5, 60])])
    full = propose(proposer, text, state, masks)
    masks[empty_row] = torch.tensor([0, PADDING], dtype=torch.int32)
    assert propose(proposer, text, state, masks) == full[:num_drafts]
    assert proposer.drafter_rows(state) == 14 + num_drafts


@both_paths
@pytest.mark.parametrize("vocab_size", [61, 64, 96])
def test_vocabulary_that_fills_its_last_word_or_not(path: str, vocab_size: int) -> None:
    proposer, text, state = setup(path, vocab_size=vocab_size)
    words = -(-vocab_size // 32)
    last = vocab_size - 1
    assert propose(proposer, text, state, bitmask([last], words=words), 1) == [last]
    everything = torch.full((words,), -1, dtype=torch.int32)
    assert propose(proposer, text, state, everything) == propose(proposer, text, state, None)


@both_paths
@pytest.mark.parametrize("layout", ["plain", "strided", "expanded"])
def test_mask_of_any_layout_works_and_is_not_modified(path: str, layout: str) -> None:
    proposer, text, state = setup(path)
    plain = torch.stack([bitmask([3, 33, 60])] * 3)
    plain[:, 1] |= PADDING
    wide = torch.full((3, 2 * WORDS), -1, dtype=torch.int32)
    wide[:, ::2] = plain
    mask = {"plain": plain.clone(), "strided": wide[:, ::2], "expanded": plain[:1].expand(3, -1)}[layout]
    assert propose(proposer, text, state, mask) == propose(proposer, text, state, plain)
    assert torch.equal(mask, plain)


@both_paths
def test_batch_takes_a_mask_per_sequence(path: str) -> None:
    proposer, text, state = setup(path)
    other = proposer.alloc_state()
    text.prefill(proposer, other, 14)
    tokens, hiddens = [int(text.tokens[15])] * 2, text.hiddens[14:15].expand(2, -1)
    masks = [bitmask([7, 50]), None]
    made = proposer.propose_batch(tokens, hiddens, [14, 14], 3, [state, other], grammar_bitmasks=masks)
    free = propose(proposer, text, other, None)
    assert made == [propose(proposer, text, state, masks[0]), free]
    nothing = [EMPTY["all zero"], torch.stack([bitmask([1]), EMPTY["all zero"]])]
    confidences: list[list[float]] = []
    made = proposer.propose_batch(
        tokens, hiddens, [14, 14], 3, [state, other], grammar_bitmasks=nothing, confidences=confidences
    )
    assert made == [[], [1]]
    assert [len(row) for row in confidences] == [0, 1]


@both_paths
def test_masked_drafts_leave_the_cache_of_those_tokens(path: str) -> None:
    proposer, text, state = setup(path)
    masks = torch.stack([bitmask([9]), bitmask([8])])
    assert propose(proposer, text, state, masks, 2) == [9, 8]
    masked = snapshot(proposer, state)
    other = make_proposer(path)
    twin = other.alloc_state()
    text.prefill(other, twin, 14)
    # the second row holds token 9 in both, by a mask or by two masks
    assert propose(other, text, twin, masks[:1], 2)[0] == 9
    assert snapshot(other, twin)[2:] == masked[2:]


def test_xgrammar_masks_bind_the_drafts_that_its_matcher_accepts() -> None:
    xgrammar = pytest.importorskip(
        "xgrammar", reason="the real grammar engine is a dev dependency: pip install xgrammar"
    )
    # a token a character, and some of several; ids 55 to 60 belong to no text
    vocabulary = [chr(ord("a") + index) for index in range(26)] + [str(digit) for digit in range(10)]
    vocabulary += [
        "[",
        "]",
        ",",
        " ",
        "ab",
        "bc",
        "12",
        "],",
        "true",
        "false",
        "{",
        "}",
        ":",
        '"',
        "-",
        ".",
        "00",
        "9]",
        "</s>",
    ]
    vocabulary += [f"<unused{index}>" for index in range(VOCAB - len(vocabulary))]
    info = xgrammar.TokenizerInfo(
        vocabulary, vocab_size=VOCAB, stop_token_ids=[vocabulary.index("</s>")], add_prefix_space=False
    )
    compiled = xgrammar.GrammarCompiler(info).compile_grammar(
        'root ::= "[" item ("," item)* "]"\nitem ::= [0-9]+ | "true"'
    )
    for path in ("eager", "circuit"):
        proposer, text, state = setup(path)
        matcher = xgrammar.GrammarMatcher(compiled)
        written, position = "", 14
        while not matcher.is_terminated() and position < 40:
            mask = xgrammar.allocate_token_bitmask(1, VOCAB)
            assert mask.dtype == torch.int32
            assert mask.shape == (1, WORDS)
            matcher.fill_next_token_bitmask(mask)
            kept = mask.clone()
            token, hidden = int(text.tokens[position + 1]), text.hiddens[position]
            [draft] = proposer.propose(token, hidden, position, 1, state, grammar_bitmask=mask)
            assert torch.equal(mask, kept)
            assert matcher.accept_token(draft), f"{written!r} + {vocabulary[draft]!r}"
            # among the allowed, the best: excluding it leaves a less probable one
            written, position = written + vocabulary[draft], position + 1
        assert written.startswith("[")
        assert set(written) <= set("[]0123456789,true</s>")


def test_xgrammar_masks_for_a_whole_chain_bind_every_draft() -> None:
    xgrammar = pytest.importorskip(
        "xgrammar", reason="the real grammar engine is a dev dependency: pip install xgrammar"
    )
    vocabulary = [f"<{index}>" for index in range(VOCAB)]
    info = xgrammar.TokenizerInfo(vocabulary, vocab_size=VOCAB, stop_token_ids=[VOCAB - 1])
    grammar = xgrammar.GrammarCompiler(info).compile_grammar('root ::= ("<3>" | "<40>") ("<5>" | "<59>") "<7>"')
    matcher = xgrammar.GrammarMatcher(grammar)
    masks = xgrammar.allocate_token_bitmask(4, VOCAB)
    # either branch allows the same next tokens, so the chain's masks are known before it is drafted
    for row, token in enumerate((3, 5, 7)):
        matcher.fill_next_token_bitmask(masks, row)
        assert matcher.accept_token(token)
    matcher.fill_next_token_bitmask(masks, 3)
    for path in ("eager", "circuit"):
        proposer, text, state = setup(path)
        drafts = propose(proposer, text, state, masks, 4)
        assert drafts[0] in (3, 40)
        assert drafts[1] in (5, 59)
        assert drafts[2:] == [7, VOCAB - 1]
