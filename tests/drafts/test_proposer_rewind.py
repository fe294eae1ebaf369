"""rewind: at most the rows asked for, exact or shorter, and what is written after it is never stale."""

from __future__ import annotations

import pytest

from tests.drafts.drafter_twin import (
    assert_holds,
    assert_same_contents,
    both_paths,
    contents,
    fresh_twin,
    make_proposer,
    make_text,
    poison_dead,
)


@both_paths
@pytest.mark.parametrize("kpool", [1, 3, 4])
def test_rewind_to_every_row_and_rewriting_other_rows_is_a_fresh_prefill(path: str, kpool: int) -> None:
    proposer = make_proposer(path, index_kpool=kpool, index_topk=2 * kpool, max_num_drafts=3, num_sequences=1)
    old, new = make_text(proposer, 40, seed=1), make_text(proposer, 40, seed=2)
    for asked in range(23):
        state = proposer.alloc_state()
        old.prefill(proposer, state, 22)
        kept = proposer.rewind(asked, state)
        assert kept <= asked
        assert asked - kept < kpool
        assert proposer.drafter_rows(state) == kept
        poison_dead(proposer, state)
        assert_holds(proposer, state, old)
        tokens, hiddens = old.tokens[1:].clone(), old.hiddens.clone()
        tokens[kept:], hiddens[kept:] = new.tokens[kept:-1], new.hiddens[kept:]
        for end in (min(asked + 1, 29), 30):
            start = proposer.drafter_rows(state)
            proposer.catchup_drafter(tokens[start:end], hiddens[start:end], start, start, state)
        twin, twin_state = fresh_twin(proposer, tokens[:30], hiddens[:30])
        assert_same_contents(contents(proposer, state), contents(twin, twin_state))
        drafts = proposer.propose(int(tokens[30]), hiddens[30], 30, 3, state)
        assert drafts == twin.propose(int(tokens[30]), hiddens[30], 30, 3, twin_state)
        proposer.free_state(state)


@both_paths
@pytest.mark.parametrize("kpool", [3, 4, 16])
def test_rewind_within_the_ring_is_exact(path: str, kpool: int) -> None:
    proposer = make_proposer(path, index_kpool=kpool, index_topk=2 * kpool, max_num_drafts=4)
    text, state = make_text(proposer, 80), proposer.alloc_state()
    text.prefill(proposer, state, 60)
    text.propose(proposer, state, 60, 4)
    # one round's drafts, and the row before them
    for rows in (63, 62, 61, 60):
        assert proposer.rewind(rows, state) == rows
    poison_dead(proposer, state)
    text.append(proposer, state, 75)
    assert_holds(proposer, state, text)


@both_paths
def test_rejected_drafts_never_stand_for_overwritten_raw_rows(path: str) -> None:
    # the ring holds 5 rows; the chain of 1 after a deep rewind overwrites raw rows of the pool behind it
    proposer = make_proposer(path, max_num_drafts=1)
    text, state = make_text(proposer, 60), proposer.alloc_state()
    text.prefill(proposer, state, 22)
    assert proposer.rewind(21, state) == 21
    assert proposer.rewind(18, state) == 16
    assert proposer.rewind(14, state) == 12
    poison_dead(proposer, state)
    for end in range(13, 40):
        text.propose(proposer, state, proposer.drafter_rows(state), 1)
        proposer.rewind(end - 1, state)
        text.append(proposer, state, end)
        poison_dead(proposer, state)
    assert_holds(proposer, state, text)


@both_paths
def test_two_rewinds_are_no_way_around_a_lost_tail(path: str) -> None:
    proposer = make_proposer(path, max_num_drafts=1)
    text, state = make_text(proposer, 60), proposer.alloc_state()
    text.prefill(proposer, state, 19)
    text.append(proposer, state, 24)
    # rows 16 to 18 left the ring as rows 21 to 23 came
    assert proposer.rewind(20, state) == 20
    assert proposer.rewind(19, state) == 16


@both_paths
def test_rewind_to_more_rows_than_there_are_keeps_all(path: str) -> None:
    proposer = make_proposer(path)
    text, state = make_text(proposer, 20), proposer.alloc_state()
    assert proposer.rewind(5, state) == 0
    text.prefill(proposer, state, 9)
    assert proposer.rewind(10, state) == 9
    assert proposer.rewind(9, state) == 9
    assert proposer.rewind(0, state) == 0
    assert proposer.last_pair_key(state) is None
    text.prefill(proposer, state, 19)
    assert_holds(proposer, state, text)


@both_paths
@pytest.mark.parametrize("kpool", [1, 3, 4])
def test_rounds_over_pool_boundaries_in_both_directions_end_as_a_fresh_prefill(path: str, kpool: int) -> None:
    proposer = make_proposer(path, index_kpool=kpool, index_topk=2 * kpool, max_num_drafts=4)
    text, state = make_text(proposer, 90), proposer.alloc_state()
    text.prefill(proposer, state, 2)
    position = 2
    for num_accepted in (4, 0, 3, 1, 0, 0, 2, 4, 4, 1, 3, 0, 2, 1):
        text.propose(proposer, state, position, 4)
        proposer.after_verify(num_accepted, state)
        end = position + 1 + num_accepted
        proposer.catchup_batch(
            [text.tokens[position + 2 : end + 1]], [text.hiddens[position + 1 : end]], [position + 1], [state]
        )
        poison_dead(proposer, state)
        assert_holds(proposer, state, text)
        position = end
