"""take, trim, install, free: a drafter cache between two turns of a conversation."""

from __future__ import annotations

import pytest
import torch

from circuit import StateError
from tests.drafts.drafter_twin import (
    assert_holds,
    assert_same_contents,
    both_paths,
    contents,
    fresh_twin,
    make_proposer,
    make_text,
    poison_dead,
    snapshot,
)


@both_paths
@pytest.mark.parametrize("rows", [0, 1, 15, 16, 17, 33])
@pytest.mark.parametrize("kpool", [1, 3, 4])
def test_taken_rows_live_on_in_another_state(path: str, rows: int, kpool: int) -> None:
    proposer = make_proposer(path, num_sequences=3, index_kpool=kpool, index_topk=2 * kpool)
    text, state = make_text(proposer, 60), proposer.alloc_state()
    text.prefill(proposer, state, rows)
    expected = contents(proposer, state)
    pair_key = proposer.last_pair_key(state)
    kv = proposer.take_drafter_kv(state)
    assert kv.num_rows == rows
    assert kv.last_pair_key == pair_key
    assert proposer.drafter_rows(state) == 0
    assert proposer.last_pair_key(state) is None
    # what the first state does now is no matter
    make_text(proposer, 60, seed=9).prefill(proposer, state, 40)
    proposer.free_state(state)
    heir = proposer.alloc_state()
    poison_dead(proposer, heir)
    assert proposer.install_drafter_kv(kv, pair_key, heir)
    assert_same_contents(contents(proposer, heir), expected, atol=0, rtol=0)
    assert kv.is_used_up
    twin, twin_state = fresh_twin(proposer, text.tokens[1 : rows + 1], text.hiddens[:rows])
    assert text.propose(proposer, heir, rows, 4) == text.propose(twin, twin_state, rows, 4)
    proposer.after_verify(0, heir)
    text.append(proposer, heir, 50)
    poison_dead(proposer, heir)
    assert_holds(proposer, heir, text)


@both_paths
def test_state_is_as_new_after_take(path: str) -> None:
    proposer = make_proposer(path, num_sequences=3)
    text, state = make_text(proposer, 60), proposer.alloc_state()
    text.prefill(proposer, state, 20)
    text.propose(proposer, state, 20, 4)
    kv = proposer.take_drafter_kv(state)
    assert kv.num_rows == 24
    assert state.num_drafted == 0
    assert proposer.after_verify(4, state) == 0
    assert len(state.sequence.blocks) == 6
    poison_dead(proposer, state)
    text.prefill(proposer, state, 30)
    assert_holds(proposer, state, text)


@both_paths
def test_every_block_has_one_owner_through_take_trim_install_and_free(path: str) -> None:
    proposer = make_proposer(path, num_sequences=3, max_seq_len=64)
    cache, text = proposer.cache, make_text(proposer, 60)
    total = cache.num_free_blocks
    first, second = proposer.alloc_state_for(40), proposer.alloc_state()

    def owned(*kvs: object) -> int:
        blocks = [*first.sequence.blocks, *second.sequence.blocks]
        for kv in kvs:
            blocks += kv.carried.rows.blocks  # type: ignore[attr-defined]
        assert len(set(blocks)) == len(blocks)
        return len(blocks)

    text.prefill(proposer, first, 35)
    kv = proposer.take_drafter_kv(first)
    assert owned(kv) + cache.num_free_blocks == total
    assert proposer.trim_drafter_kv(20, kv) == 16
    assert owned(kv) + cache.num_free_blocks == total
    assert proposer.install_drafter_kv(kv, 15, second)
    assert owned() + cache.num_free_blocks == total
    assert len(second.sequence.blocks) == 4
    other = proposer.take_drafter_kv(second)
    proposer.free_drafter_kv(other)
    proposer.free_drafter_kv(other)
    proposer.free_drafter_kv(kv)
    assert owned() + cache.num_free_blocks == total
    proposer.free_state(first)
    proposer.free_state(second)
    assert cache.num_free_blocks == total


@both_paths
@pytest.mark.parametrize("num_shared", [0, 1, 2, 15, 17, 18, 24, 25, 26, 99])
def test_last_row_of_a_shared_prefix_is_dropped_and_written_anew(path: str, num_shared: int) -> None:
    proposer = make_proposer(path, num_sequences=3)
    text, other, state = make_text(proposer, 60), make_text(proposer, 60, seed=7), proposer.alloc_state()
    text.prefill(proposer, state, 24)
    kv = proposer.take_drafter_kv(state)
    # the new turn shares num_shared tokens with the old one, and row p-1 pairs token p, which differs
    kept = proposer.trim_drafter_kv(num_shared, kv)
    assert kept <= min(24, max(0, num_shared - 1))
    assert kept >= min(24, max(0, num_shared - 1)) - 3
    assert kv.num_rows == kept
    proposer.install_drafter_kv(kv, kept - 1 if kept else None, state)
    num_shared = min(num_shared, 25)
    text.tokens[num_shared:], text.hiddens[num_shared:] = other.tokens[num_shared:], other.hiddens[num_shared:]
    poison_dead(proposer, state)
    text.append(proposer, state, 40)
    assert_holds(proposer, state, text)


@both_paths
@pytest.mark.parametrize("why", ["pair key", "no pair key", "rows there", "budget", "used up", "freed", "other cache"])
def test_install_that_does_not_fit_changes_nothing_and_leaves_the_blocks(path: str, why: str) -> None:
    proposer = make_proposer(path, num_sequences=4)
    text, state = make_text(proposer, 60), proposer.alloc_state()
    text.prefill(proposer, state, 20)
    kv = proposer.take_drafter_kv(state)
    target = proposer.alloc_state_for(19 if why == "budget" else None)
    pair_key: int | None = {"pair key": 18, "no pair key": None}.get(why, 19)
    if why == "rows there":
        text.prefill(proposer, target, 3)
    if why == "used up":
        assert proposer.install_drafter_kv(kv, 19, state)
    if why == "freed":
        proposer.free_drafter_kv(kv)
    if why == "other cache":
        stranger = make_proposer(path)
        strange_state = stranger.alloc_state()
        assert not stranger.install_drafter_kv(kv, 19, strange_state)
        assert stranger.drafter_rows(strange_state) == 0
        with pytest.raises(ValueError, match="taken from this proposer"):
            stranger.free_drafter_kv(kv)
    else:
        before = snapshot(proposer, target)
        assert not proposer.install_drafter_kv(kv, pair_key, target)
        assert snapshot(proposer, target) == before
    if why not in ("used up", "freed"):
        assert kv.num_rows == 20
        assert proposer.install_drafter_kv(kv, 19, state)
        assert_holds(proposer, state, text)


@both_paths
def test_used_up_cache_cannot_be_trimmed_and_reads_as_empty(path: str) -> None:
    proposer = make_proposer(path)
    text, state = make_text(proposer, 60), proposer.alloc_state()
    text.prefill(proposer, state, 20)
    kv = proposer.take_drafter_kv(state)
    with pytest.raises(ValueError, match="num_shared_tokens"):
        proposer.trim_drafter_kv(-1, kv)
    proposer.free_drafter_kv(kv)
    assert kv.num_rows == 0
    assert kv.last_pair_key is None
    with pytest.raises(StateError, match="installed or freed already"):
        proposer.trim_drafter_kv(3, kv)


@both_paths
def test_state_whose_blocks_were_taken_says_so_when_the_pool_is_empty(path: str) -> None:
    proposer = make_proposer(path, num_sequences=1, max_seq_len=64)
    text, state = make_text(proposer, 70), proposer.alloc_state()
    text.prefill(proposer, state, 50)
    kv = proposer.take_drafter_kv(state)
    assert proposer.cache.num_free_blocks == 0
    with pytest.raises(StateError, match="free blocks"):
        text.prefill(proposer, state, 10)
    assert text.propose(proposer, state, 64, 3) == []
    with pytest.raises(StateError, match="free blocks"):
        text.propose(proposer, state, 0, 3)
    assert proposer.drafter_rows(state) == 0
    assert proposer.install_drafter_kv(kv, 49, state)
    text.append(proposer, state, 64)
    assert_holds(proposer, state, text)


@both_paths
def test_ring_that_lost_rows_is_remembered_over_a_turn(path: str) -> None:
    proposer = make_proposer(path, max_num_drafts=1)
    text, state = make_text(proposer, 60), proposer.alloc_state()
    text.prefill(proposer, state, 31)
    kv = proposer.take_drafter_kv(state)
    assert proposer.trim_drafter_kv(24, kv) == 20
    assert proposer.install_drafter_kv(kv, 19, state)
    poison_dead(proposer, state)
    text.append(proposer, state, 31)
    assert_holds(proposer, state, text)
    assert torch.isfinite(contents(proposer, state).pool_keys).all()
