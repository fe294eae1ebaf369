"""Rows that pair known tokens with the target's hiddens: prefill, catch-up, and what a verify leaves."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from drafts import row_writer
from drafts.levers import ModelLevers
from tests.drafts.drafter_twin import (
    assert_holds,
    both_paths,
    contents,
    make_proposer,
    make_text,
    poison_dead,
    snapshot,
)


@both_paths
@pytest.mark.parametrize("kpool", [1, 3, 4, 16])
def test_prefill_in_chunks_of_every_size_is_the_whole_prefill(path: str, kpool: int) -> None:
    proposer = make_proposer(path, index_kpool=kpool, index_topk=2 * kpool, num_sequences=1, max_num_drafts=3)
    text = make_text(proposer, 40)
    for size in (1, 2, 3, 4, 5, 15, 16, 17, 38, 39):
        state = proposer.alloc_state()
        while (start := proposer.drafter_rows(state)) < 39:
            end = min(start + size, 39)
            # each chunk begins with the last token and hidden of the one before
            part = slice(start, end + 1)
            assert proposer.prefill_drafter(text.tokens[part], text.hiddens[part], state) == end - start
            poison_dead(proposer, state)
        assert_holds(proposer, state, text)
        proposer.free_state(state)


@both_paths
@pytest.mark.parametrize("run_rows", [1, 7, 16])
def test_prefill_in_several_runs_is_the_prefill_in_one(
    path: str, run_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_writer, "MAX_CONTEXT_ROWS", run_rows)
    proposer = make_proposer(path)
    text, state = make_text(proposer, 40), proposer.alloc_state()
    text.prefill(proposer, state, 39)
    assert sum(proposer.path_counters.values()) == -(-39 // run_rows)
    monkeypatch.undo()
    assert_holds(proposer, state, text)


@pytest.mark.parametrize("path, other", [("eager", "circuit")])
def test_prefill_of_both_paths_leaves_the_same_bytes(path: str, other: str) -> None:
    held = []
    for name in (path, other):
        proposer = make_proposer(name)
        state = proposer.alloc_state()
        make_text(proposer, 30).prefill(proposer, state, 29)
        held.append(contents(proposer, state))
    # the same products in the same order
    assert torch.equal(held[0].latent, held[1].latent)
    assert torch.equal(held[0].pool_keys, held[1].pool_keys)
    assert torch.equal(held[0].raw, held[1].raw)


@both_paths
@pytest.mark.parametrize("form", ["list", "int32", "strided"])
def test_tokens_may_be_a_list_or_any_integers(path: str, form: str) -> None:
    proposer = make_proposer(path)
    text, state = make_text(proposer, 12), proposer.alloc_state()
    tokens: object = {
        "list": text.tokens.tolist(),
        "int32": text.tokens.int(),
        "strided": text.tokens.repeat_interleave(2)[::2],
    }[form]
    assert proposer.prefill_drafter(tokens, text.hiddens, state) == 11  # type: ignore[arg-type]
    assert_holds(proposer, state, text)


@both_paths
@pytest.mark.parametrize("num_tokens", [0, 1])
def test_prompt_without_a_pair_writes_nothing(path: str, num_tokens: int) -> None:
    proposer = make_proposer(path)
    text, state = make_text(proposer, 4), proposer.alloc_state()
    assert proposer.prefill_drafter(text.tokens[:num_tokens].tolist(), text.hiddens[:num_tokens], state) == 0
    assert proposer.last_pair_key(state) is None
    assert proposer.path_counters == {}


@both_paths
def test_prefill_of_the_whole_limit_fits_and_one_more_does_not(path: str) -> None:
    proposer = make_proposer(path, max_seq_len=33)
    text, state = make_text(proposer, 35), proposer.alloc_state()
    text.prefill(proposer, state, 33)
    assert proposer.last_pair_key(state) == 32
    assert_holds(proposer, state, text)


@both_paths
@pytest.mark.parametrize("base", [0, 8, 10, 30])
def test_catch_up_elsewhere_than_at_the_end_writes_nothing(path: str, base: int) -> None:
    proposer = make_proposer(path)
    text, state = make_text(proposer, 40), proposer.alloc_state()
    text.prefill(proposer, state, 9)
    text.propose(proposer, state, 9, 3)
    proposer.rewind(9, state)
    before = snapshot(proposer, state)
    assert proposer.catchup_drafter([1, 2], text.hiddens[:2], base, base, state) == 0
    assert snapshot(proposer, state) == before


@both_paths
def test_catch_up_at_the_end_appends(path: str) -> None:
    proposer = make_proposer(path)
    text, state = make_text(proposer, 40), proposer.alloc_state()
    for end in (0, 1, 4, 5, 16, 17, 39):
        text.append(proposer, state, end)
        poison_dead(proposer, state)
        assert proposer.last_pair_key(state) == (end - 1 if end else None)
    assert_holds(proposer, state, text)


@both_paths
@pytest.mark.parametrize("kpool", [1, 3, 4])
@pytest.mark.parametrize("num_accepted", [0, 1, 2, 4])
@pytest.mark.parametrize("judges_first", [True, False])
def test_exact_catch_up_after_a_verify_is_a_fresh_prefill(
    path: str, kpool: int, num_accepted: int, judges_first: bool
) -> None:
    proposer = make_proposer(path, index_kpool=kpool, index_topk=2 * kpool)
    texts = [make_text(proposer, 40, seed=seed) for seed in (1, 2)]
    states = [proposer.alloc_state(), proposer.alloc_state()]
    positions = [10, 17]
    for text, state, position in zip(texts, states, positions, strict=True):
        text.prefill(proposer, state, position)
        text.propose(proposer, state, position, 4)
        if judges_first:
            assert proposer.after_verify(num_accepted, state) == position + min(4, num_accepted + 1)
    ends = [position + 1 + num_accepted for position in positions]
    written = proposer.catchup_batch(
        [text.tokens[position + 2 : end + 1] for text, position, end in zip(texts, positions, ends, strict=True)],
        [text.hiddens[position + 1 : end] for text, position, end in zip(texts, positions, ends, strict=True)],
        [position + 1 for position in positions],
        states,
    )
    assert written == [num_accepted, num_accepted]
    poison_dead(proposer, *states)
    for text, state, end in zip(texts, states, ends, strict=True):
        assert proposer.drafter_rows(state) == end
        assert proposer.after_verify(0, state) == end
        assert_holds(proposer, state, text)


@both_paths
@pytest.mark.parametrize("num_accepted", [0, 2, 4])
def test_catch_up_without_the_lever_writes_only_what_is_missing(path: str, num_accepted: int) -> None:
    proposer = make_proposer(path, levers=ModelLevers(mtp_kv_exact=False))
    text, state = make_text(proposer, 40), proposer.alloc_state()
    text.prefill(proposer, state, 10)
    text.propose(proposer, state, 10, 4)
    rows = proposer.after_verify(num_accepted, state)
    drafted = contents(proposer, state).latent.clone()
    end = 11 + num_accepted
    written = proposer.catchup_batch([text.tokens[12 : end + 1]], [text.hiddens[11:end]], [11], [state])
    assert written == [end - rows]  # a chain of four writes four rows, so only an all-accepted round lacks one
    assert proposer.drafter_rows(state) == end
    assert torch.equal(contents(proposer, state).latent[:rows], drafted)


@both_paths
@pytest.mark.parametrize("is_exact", [True, False])
def test_catch_up_of_a_sequence_that_lacks_rows_changes_nothing(path: str, is_exact: bool) -> None:
    proposer = make_proposer(path, levers=ModelLevers(mtp_kv_exact=is_exact))
    texts = [make_text(proposer, 40, seed=seed) for seed in (1, 2)]
    behind, ready = proposer.alloc_state(), proposer.alloc_state()
    texts[0].prefill(proposer, behind, 5)
    texts[1].prefill(proposer, ready, 9)
    texts[0].propose(proposer, behind, 5, 3)
    before = snapshot(proposer, behind)
    written = proposer.catchup_batch(
        [texts[0].tokens[10:12], texts[1].tokens[10:12]],
        [texts[0].hiddens[9:11], texts[1].hiddens[9:11]],
        [9, 9],
        [behind, ready],
    )
    assert written == [0, 2]
    assert snapshot(proposer, behind) == before
    assert_holds(proposer, ready, texts[1])
    # its drafts still wait for their verify
    assert proposer.after_verify(0, behind) == 6


@both_paths
def test_verify_after_a_catch_up_that_had_nothing_to_write_still_drops_rejected_rows(path: str) -> None:
    proposer = make_proposer(path, levers=ModelLevers(mtp_kv_exact=False))
    text, state = make_text(proposer, 40), proposer.alloc_state()
    text.prefill(proposer, state, 10)
    text.propose(proposer, state, 10, 4)
    assert proposer.catchup_batch([text.tokens[12:13]], [text.hiddens[11:12]], [11], [state]) == [0]
    assert proposer.after_verify(1, state) == 12


@both_paths
def test_catch_up_of_no_sequences_gives_nothing(path: str) -> None:
    assert make_proposer(path).catchup_batch([], [], [], []) == []


@both_paths
@pytest.mark.parametrize("num_accepted", [0, 1, 2, 3, 7])
def test_verify_keeps_the_first_row_and_those_of_accepted_drafts(path: str, num_accepted: int) -> None:
    proposer = make_proposer(path)
    text, state = make_text(proposer, 40), proposer.alloc_state()
    text.prefill(proposer, state, 10)
    text.propose(proposer, state, 10, 3)
    assert proposer.drafter_rows(state) == 13
    kept = 10 + min(3, num_accepted + 1)
    assert proposer.after_verify(num_accepted, state) == kept
    assert proposer.after_verify(0, state) == kept
    if num_accepted == 0:
        assert_holds(proposer, state, text)


@both_paths
def test_verify_without_a_propose_changes_nothing(path: str) -> None:
    proposer = make_proposer(path)
    text, state = make_text(proposer, 40), proposer.alloc_state()
    assert proposer.after_verify(0, state) == 0
    text.prefill(proposer, state, 10)
    assert proposer.after_verify(3, state) == 10


@both_paths
@pytest.mark.parametrize("kept, num_accepted, rows", [(13, 1, 12), (12, 3, 12), (11, 2, 11), (9, 2, 8), (4, 2, 4)])
def test_verify_after_a_rewind_brings_no_row_back(path: str, kept: int, num_accepted: int, rows: int) -> None:
    # a ring just deep enough for the chain: a rewind to row 9 falls to its pool's start
    proposer = make_proposer(path, max_num_drafts=4)
    text, state = make_text(proposer, 40), proposer.alloc_state()
    text.prefill(proposer, state, 10)
    text.propose(proposer, state, 10, 4)
    proposer.rewind(kept, state)
    assert proposer.after_verify(num_accepted, state) in {rows, kept}
    assert proposer.drafter_rows(state) <= kept


@both_paths
def test_rows_appended_after_drafts_are_judged_by_who_appended_them(path: str) -> None:
    proposer = make_proposer(path)
    text, state = make_text(proposer, 40), proposer.alloc_state()
    text.prefill(proposer, state, 10)
    text.propose(proposer, state, 10, 2)
    text.append(proposer, state, 14)
    assert proposer.after_verify(0, state) == 14


def hidden_forms(hidden: Tensor) -> dict[str, Tensor]:
    """The same rows [m, H] in every memory layout."""
    num_rows, width = hidden.shape
    wide = torch.full((num_rows, 2 * width), float("nan"))
    wide[:, ::2] = hidden
    offset = torch.full((num_rows + 2, width + 3), float("nan"))
    offset[1 : num_rows + 1, 2 : width + 2] = hidden
    negated = torch.complex(torch.zeros_like(hidden), -hidden).conj().imag
    return {
        "transposed": hidden.t().contiguous().t(),
        "every other column": wide[:, ::2],
        "offset": offset[1 : num_rows + 1, 2 : width + 2],
        "negative view": negated,
        "requires grad": hidden.clone().requires_grad_(True),
    }


@both_paths
@pytest.mark.parametrize("form", hidden_forms(torch.zeros(1, 2)))
def test_hiddens_of_any_layout_give_the_contiguous_rows(path: str, form: str) -> None:
    proposer = make_proposer(path)
    text = make_text(proposer, 24)
    plain, other = proposer.alloc_state(), proposer.alloc_state()
    text.prefill(proposer, plain, 23)
    shaped = hidden_forms(text.hiddens)[form]
    assert torch.equal(shaped, text.hiddens)
    assert proposer.prefill_drafter(text.tokens, shaped, other) == 23
    for one, two in zip(vars_of(contents(proposer, plain)), vars_of(contents(proposer, other)), strict=True):
        assert torch.equal(one, two)


@both_paths
def test_expanded_hiddens_give_the_contiguous_rows(path: str) -> None:
    proposer = make_proposer(path)
    text = make_text(proposer, 9)
    plain, other = proposer.alloc_state(), proposer.alloc_state()
    expanded = text.hiddens[:1].expand(9, -1)
    proposer.prefill_drafter(text.tokens, expanded.contiguous(), plain)
    proposer.prefill_drafter(text.tokens, expanded, other)
    for one, two in zip(vars_of(contents(proposer, plain)), vars_of(contents(proposer, other)), strict=True):
        assert torch.equal(one, two)


def vars_of(held: object) -> list[Tensor]:
    return list(vars(held).values())
