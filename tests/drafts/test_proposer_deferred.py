"""Deferred tokens: with draft_embed_target ids stay on the device, and their embeddings land in the buffer."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from circuit import StateError
from drafts.proposer import DraftProposer
from drafts.proposer_state import ProposerState
from tests.drafts.drafter_twin import Text, both_paths, make_proposer, make_text, snapshot


def setup(path: str) -> tuple[DraftProposer, Text, ProposerState]:
    proposer = make_proposer(path)
    text, state = make_text(proposer, 60), proposer.alloc_state()
    text.prefill(proposer, state, 14)
    return proposer, text, state


def defer(
    proposer: DraftProposer,
    text: Text,
    state: ProposerState,
    buffer: Tensor,
    *,
    position: int = 14,
    num_drafts: int = 1,
) -> list[int]:
    token, hidden = int(text.tokens[position + 1]), text.hiddens[position]
    return proposer.propose(token, hidden, position, num_drafts, state, draft_embed_target=buffer)


@both_paths
@pytest.mark.parametrize("shape", [(20,), (1, 20)])
def test_deferred_token_is_the_proposed_one_and_its_embedding_is_in_the_buffer(
    path: str, shape: tuple[int, ...]
) -> None:
    proposer, text, state = setup(path)
    expected = text.propose(proposer, state, 14, 1)
    before = snapshot(proposer, state)
    buffer = torch.full(shape, float("nan"))
    assert defer(proposer, text, state, buffer) == []
    assert proposer.read_deferred_draft_token() == expected[0]
    assert proposer.read_deferred_draft_token() == expected[0]
    assert proposer.read_deferred_draft_tokens() == expected
    assert torch.equal(buffer.flatten(), proposer.weights["embed_tokens"][expected[0]])
    assert snapshot(proposer, state) == before


@both_paths
def test_several_drafts_may_be_deferred_at_once(path: str) -> None:
    proposer, text, state = setup(path)
    expected = text.propose(proposer, state, 14, 3)
    wide = torch.full((3, 41), float("nan"))
    buffer = wide[:, 1:21]
    assert defer(proposer, text, state, buffer, num_drafts=3) == []
    assert proposer.read_deferred_draft_tokens() == expected
    assert torch.equal(buffer, proposer.weights["embed_tokens"][expected])
    assert wide[:, 21:].isnan().all()
    with pytest.raises(StateError, match="3 were deferred; call read_deferred_draft_tokens"):
        proposer.read_deferred_draft_token()


@both_paths
def test_near_the_limit_only_the_rows_of_drafts_made_are_filled(path: str) -> None:
    proposer = make_proposer(path, max_seq_len=16)
    text, state = make_text(proposer, 60), proposer.alloc_state()
    text.prefill(proposer, state, 14)
    buffer = torch.full((4, 20), 7.0)
    defer(proposer, text, state, buffer, num_drafts=4)
    drafts = proposer.read_deferred_draft_tokens()
    assert len(drafts) == 2
    assert torch.equal(buffer[:2], proposer.weights["embed_tokens"][drafts])
    assert (buffer[2:] == 7.0).all()


@both_paths
@pytest.mark.parametrize(
    "later", ["propose", "nothing fits", "no drafts", "batch", "empty batch", "error", "missing rows"]
)
def test_later_propose_leaves_no_older_token(path: str, later: str) -> None:
    proposer, text, state = setup(path)
    defer(proposer, text, state, torch.empty(20))
    proposer.read_deferred_draft_token()
    if later == "propose":
        text.propose(proposer, state, 14, 1)
    elif later == "nothing fits":
        proposer.propose(1, text.hiddens[0], 10**6, 1, state, draft_embed_target=torch.empty(20))
    elif later == "no drafts":
        text.propose(proposer, state, 14, 0)
    elif later == "batch":
        proposer.propose_batch([1], text.hiddens[:1], [14], 1, [state])
    elif later == "empty batch":
        proposer.propose_batch([], [], [], 1, [])
    elif later == "error":
        with pytest.raises(ValueError, match="got 61"):
            proposer.propose(61, text.hiddens[0], 14, 1, state, draft_embed_target=torch.empty(20))
    else:
        with pytest.raises(StateError, match="expected 30 rows"):
            defer(proposer, text, state, torch.empty(20), position=30)
    with pytest.raises(StateError, match="the last propose deferred none"):
        proposer.read_deferred_draft_token()


def test_nothing_was_deferred_before_the_first_propose() -> None:
    with pytest.raises(StateError, match="deferred none; give it draft_embed_target"):
        make_proposer().read_deferred_draft_token()


@both_paths
@pytest.mark.parametrize("end", ["free_state", "take_drafter_kv"])
def test_token_goes_with_its_own_state_and_no_other(path: str, end: str) -> None:
    proposer, text, state = setup(path)
    other = proposer.alloc_state()
    defer(proposer, text, state, torch.empty(20))
    token = proposer.read_deferred_draft_token()
    getattr(proposer, end)(other)
    proposer.free_state(other)
    proposer.free_state(other)
    assert proposer.read_deferred_draft_token() == token
    getattr(proposer, end)(state)
    with pytest.raises(StateError, match="deferred none"):
        proposer.read_deferred_draft_token()


@both_paths
def test_deferred_draft_obeys_its_grammar(path: str) -> None:
    proposer, text, state = setup(path)
    free = text.propose(proposer, state, 14, 1)[0]
    only = (free + 5) % 61
    mask = torch.zeros(2, dtype=torch.int32)
    mask[only // 32] = 1 << (only % 32) if only % 32 < 31 else -(2**31)
    buffer = torch.empty(20)
    token, hidden = int(text.tokens[15]), text.hiddens[14]
    assert proposer.propose(token, hidden, 14, 1, state, draft_embed_target=buffer, grammar_bitmask=mask) == []
    assert proposer.read_deferred_draft_token() == only
    assert torch.equal(buffer, proposer.weights["embed_tokens"][only])
