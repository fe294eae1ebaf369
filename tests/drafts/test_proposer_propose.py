"""propose: drafts of a fresh drafter whatever came before, near limits what fits, and nothing kept of its arguments."""

from __future__ import annotations

import pytest
import torch

from circuit import StateError
from tests.drafts.drafter_twin import (
    CLOSE,
    Text,
    assert_holds,
    both_paths,
    contents,
    fresh_twin,
    make_proposer,
    make_text,
    poison_dead,
    snapshot,
    swap_in,
)
from tests.drafts.test_proposer_rows import hidden_forms


def fresh_drafts(proposer: object, text: Text, position: int, num_drafts: int) -> list[int]:
    twin, state = fresh_twin(proposer, text.tokens[1 : position + 1], text.hiddens[:position])  # type: ignore[arg-type]
    return text.propose(twin, state, position, num_drafts)


@both_paths
@pytest.mark.parametrize("kpool", [1, 3, 4, 16])
@pytest.mark.parametrize("recycle", ["post_norm", "block_output"])
def test_drafts_after_every_number_of_rows_are_a_fresh_drafters(path: str, kpool: int, recycle: str) -> None:
    proposer = make_proposer(path, index_kpool=kpool, index_topk=2 * kpool, decisions={"recycle": recycle})
    text, state = make_text(proposer, 60), proposer.alloc_state()
    for position in (0, 1, 2, 3, 4, 11, 12, 15, 16, 17, 33, 47):
        proposer.after_verify(0, state)
        proposer.rewind(position, state)
        text.append(proposer, state, position)
        poison_dead(proposer, state)
        drafts = text.propose(proposer, state, position, 4)
        assert drafts == fresh_drafts(proposer, text, position, 4)
        assert proposer.drafter_rows(state) == position + 4
        # a shorter chain is the start of a longer one
        assert text.propose(proposer, state, position, 2) == drafts[:2]


@both_paths
@pytest.mark.parametrize("hidden_source", ["pre_norm", "post_norm"])
def test_targets_norm_is_applied_to_its_own_hiddens_only(path: str, hidden_source: str) -> None:
    decisions = {"supplied_hidden": "pre_norm", "hidden_source": hidden_source}
    proposer = make_proposer(path, decisions=decisions)
    text, state = make_text(proposer, 30), proposer.alloc_state()
    text.prefill(proposer, state, 20)
    drafts = text.propose(proposer, state, 20, 4)
    assert drafts == fresh_drafts(proposer, text, 20, 4)
    # the same, fed hiddens that were normed outside
    normed = text.hiddens
    if hidden_source == "post_norm":
        scale = torch.rsqrt(normed.square().mean(-1, keepdim=True) + proposer.config.rms_norm_eps)
        normed = normed * scale * proposer.weights["target_norm"]
        outside = make_proposer(path)
        state = outside.alloc_state()
        normed_text = Text(text.tokens, normed)
        normed_text.prefill(outside, state, 20)
        assert normed_text.propose(outside, state, 20, 4) == drafts


@both_paths
@pytest.mark.parametrize("ahead", [1, 2, 3, 4])
def test_drafter_that_is_ahead_is_rewound_first(path: str, ahead: int) -> None:
    proposer = make_proposer(path, max_num_drafts=4)
    text, other, state = make_text(proposer, 60), make_text(proposer, 60, seed=5), proposer.alloc_state()
    text.prefill(proposer, state, 21)
    other.propose(proposer, state, 21, ahead)
    assert proposer.drafter_rows(state) == 21 + ahead
    assert text.propose(proposer, state, 21, 3) == fresh_drafts(proposer, text, 21, 3)
    assert proposer.drafter_rows(state) == 24


@both_paths
def test_rewind_that_would_lose_rows_is_refused_and_says_what_to_do(path: str) -> None:
    proposer = make_proposer(path, max_num_drafts=1)
    text, state = make_text(proposer, 60), proposer.alloc_state()
    text.prefill(proposer, state, 31)
    before = snapshot(proposer, state)
    with pytest.raises(StateError, match=r"rows 20 to 21 cannot be kept by a rewind from 31 rows") as caught:
        text.propose(proposer, state, 22, 1)
    assert "rewind(22)" in str(caught.value)
    assert "from row 20" in str(caught.value)
    assert snapshot(proposer, state) == before
    assert proposer.rewind(22, state) == 20
    text.append(proposer, state, 22)
    assert text.propose(proposer, state, 22, 1) == fresh_drafts(proposer, text, 22, 1)


@both_paths
def test_missing_rows_are_refused_and_named(path: str) -> None:
    proposer = make_proposer(path)
    text, state = make_text(proposer, 60), proposer.alloc_state()
    text.prefill(proposer, state, 9)
    before = snapshot(proposer, state)
    with pytest.raises(StateError, match=r"expected 12 rows before position 12, got 9.*rows 9 to 11"):
        text.propose(proposer, state, 12, 2)
    assert snapshot(proposer, state) == before


@both_paths
@pytest.mark.parametrize("room", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize("limit", ["max_seq_len", "budget"])
def test_near_the_limit_as_many_drafts_as_fit(path: str, room: int, limit: str) -> None:
    proposer = make_proposer(path, max_seq_len=33 if limit == "max_seq_len" else 96)
    state = proposer.alloc_state_for(None if limit == "max_seq_len" else 33)
    text, position = make_text(proposer, 60), 33 - room
    text.prefill(proposer, state, position)
    before = snapshot(proposer, state)
    drafts = text.propose(proposer, state, position, 4)
    assert len(drafts) == min(4, room)
    if room == 0:
        assert snapshot(proposer, state) == before
    else:
        assert drafts == fresh_drafts(make_proposer(path), text, position, len(drafts))
        assert proposer.drafter_rows(state) == position + len(drafts)
        assert proposer.after_verify(0, state) == position + 1


@both_paths
def test_position_beyond_the_limit_gives_nothing(path: str) -> None:
    proposer = make_proposer(path, max_seq_len=33)
    text, state = make_text(proposer, 60), proposer.alloc_state()
    text.prefill(proposer, state, 20)
    assert text.propose(proposer, state, 33, 4) == []
    assert text.propose(proposer, state, 40, 4) == []
    assert proposer.drafter_rows(state) == 20


@both_paths
@pytest.mark.parametrize("position", [5, 9, 12, 20])
def test_no_drafts_asked_for_gives_none_and_changes_nothing(path: str, position: int) -> None:
    proposer = make_proposer(path)
    text, state = make_text(proposer, 60), proposer.alloc_state()
    text.prefill(proposer, state, 9)
    text.propose(proposer, state, 9, 3)
    before = snapshot(proposer, state)
    assert text.propose(proposer, state, position, 0) == []
    assert snapshot(proposer, state) == before
    assert proposer.after_verify(1, state) == 11


@both_paths
def test_second_propose_without_a_verify_gives_the_same_ids_and_cache(path: str) -> None:
    proposer = make_proposer(path)
    text, state = make_text(proposer, 60), proposer.alloc_state()
    text.prefill(proposer, state, 14)
    drafts = text.propose(proposer, state, 14, 4)
    before = snapshot(proposer, state)
    for _ in range(3):
        assert text.propose(proposer, state, 14, 4) == drafts
    assert snapshot(proposer, state) == before


@both_paths
def test_hiddens_may_be_overwritten_afterwards(path: str) -> None:
    proposer = make_proposer(path)
    text, state, buffer = make_text(proposer, 60), proposer.alloc_state(), torch.empty(20, 20)
    buffer[:] = text.hiddens[:20]
    proposer.prefill_drafter(text.tokens[:20], buffer, state)
    buffer.fill_(float("nan"))
    row = text.hiddens[19].clone()
    drafts = proposer.propose(int(text.tokens[20]), row, 19, 4, state)
    row.fill_(float("nan"))
    assert drafts == fresh_drafts(proposer, text, 19, 4)
    proposer.after_verify(0, state)
    assert_holds(proposer, state, text)


@both_paths
@pytest.mark.parametrize("form", hidden_forms(torch.zeros(1, 2)))
def test_hidden_of_any_layout_gives_the_contiguous_drafts(path: str, form: str) -> None:
    proposer = make_proposer(path)
    text, state = make_text(proposer, 60), proposer.alloc_state()
    text.prefill(proposer, state, 14)
    expected, held = text.propose(proposer, state, 14, 4), contents(proposer, state)
    hiddens = hidden_forms(text.hiddens[13:16])[form]
    for hidden in (hiddens[1], hiddens[1:2]):
        assert proposer.propose(int(text.tokens[15]), hidden, 14, 4, state) == expected
        assert torch.equal(contents(proposer, state).latent, held.latent)


@both_paths
def test_expanded_hidden_gives_the_contiguous_drafts(path: str) -> None:
    proposer = make_proposer(path)
    text, state = make_text(proposer, 60), proposer.alloc_state()
    text.prefill(proposer, state, 14)
    flat = torch.tensor(0.25).expand(20)
    expected = proposer.propose(7, flat.contiguous(), 14, 4, state)
    assert proposer.propose(7, flat, 14, 4, state) == expected
    assert proposer.propose(7, flat[None], 14, 4, state) == expected


@both_paths
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_unclean_hidden_does_not_reach_later_runs(path: str, value: float) -> None:
    proposer = make_proposer(path)
    text, state, neighbour = make_text(proposer, 60), proposer.alloc_state(), proposer.alloc_state()
    text.prefill(proposer, state, 14)
    drafts = proposer.propose(3, torch.full((20,), value), 14, 4, state)
    assert all(0 <= draft < proposer.config.vocab_size for draft in drafts)
    # the next round of the same sequence, and another sequence
    assert text.propose(proposer, state, 14, 4) == fresh_drafts(proposer, text, 14, 4)
    proposer.after_verify(0, state)
    assert_holds(proposer, state, text)
    text.prefill(proposer, neighbour, 17)
    assert text.propose(proposer, neighbour, 17, 4) == fresh_drafts(proposer, text, 17, 4)


def test_swap_in_the_middle_of_a_sequence_goes_on_with_the_same_cache() -> None:
    proposer = make_proposer("eager")
    text, state = make_text(proposer, 90), proposer.alloc_state()
    text.prefill(proposer, state, 9)
    for position in range(9, 60, 3):
        if position % 2:
            swap_in(proposer)
        else:
            proposer.set_circuit_draft(None)
        drafts = text.propose(proposer, state, position, 4)
        assert drafts == fresh_drafts(proposer, text, position, 4)
        proposer.after_verify(0, state)
        text.append(proposer, state, position + 3)
        poison_dead(proposer, state)
    assert_holds(proposer, state, text, **CLOSE)
    assert proposer.path_counters["propose.eager"] == 8
    assert proposer.path_counters["propose.circuit:reference"] == 9


def test_bf16_drafter_drafts_and_rewinds_as_a_fresh_one() -> None:
    for path in ("eager", "circuit"):
        proposer = make_proposer(path, dtype=torch.bfloat16)
        text, state = make_text(proposer, 60), proposer.alloc_state()
        text.prefill(proposer, state, 18)
        first = text.propose(proposer, state, 18, 4)
        proposer.rewind(18, state)
        assert text.propose(proposer, state, 18, 4) == first
