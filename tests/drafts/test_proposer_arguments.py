"""Bad arguments are a ValueError that names them, before anything runs; a freed state is a StateError everywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from circuit import StateError
from drafts.proposer import DraftProposer
from drafts.proposer_state import ProposerState
from tests.drafts.drafter_twin import both_paths, make_proposer, make_text, snapshot

H = 20
GOOD = torch.zeros(H)
ROWS = torch.zeros(3, H)
META = torch.zeros(H, device="meta")
SPARSE = torch.zeros(1, H).to_sparse()


def propose(**changes: Any) -> Callable[[DraftProposer, ProposerState], object]:
    def call(proposer: DraftProposer, state: ProposerState) -> object:
        arguments: dict[str, Any] = {"last_token": 3, "target_hidden": GOOD, "position": 9, "num_drafts": 2}
        return proposer.propose(state=state, **(arguments | changes))

    return call


def prefill(tokens: Any, hiddens: Any) -> Callable[[DraftProposer, ProposerState], object]:
    return lambda proposer, state: proposer.prefill_drafter(tokens, hiddens, state)


def catchup(
    tokens: Any, hiddens: Any, row_base: Any, pos_base: Any
) -> Callable[[DraftProposer, ProposerState], object]:
    return lambda proposer, state: proposer.catchup_drafter(tokens, hiddens, row_base, pos_base, state)


def catchup_batch(tokens: Any, hiddens: Any, first: Any, *, times: int = 1) -> Callable[..., object]:
    return lambda proposer, state: proposer.catchup_batch(tokens, hiddens, first, [state] * times)


def batch(**changes: Any) -> Callable[[DraftProposer, ProposerState], object]:
    def call(proposer: DraftProposer, state: ProposerState) -> object:
        arguments: dict[str, Any] = {
            "last_tokens": [3],
            "target_hiddens": GOOD[None],
            "positions": [9],
            "num_drafts": 2,
            "states": [state],
        }
        changed = {name: change(state) if callable(change) else change for name, change in changes.items()}
        return proposer.propose_batch(**(arguments | changed))

    return call


BAD: dict[str, tuple[Callable[..., object], str]] = {
    "token_negative": (propose(last_token=-1), "ids 0 to 60, got -1"),
    "token_beyond_vocabulary": (propose(last_token=61), "ids 0 to 60, got 61"),
    "token_float": (propose(last_token=1.0), "expected integers"),
    "token_bool": (propose(last_token=True), "expected integers"),
    "token_none": (propose(last_token=None), "expected integers"),
    "token_text": (propose(last_token="3"), "expected integers"),
    "token_beyond_int64": (propose(last_token=2**70), "expected integers"),
    "hidden_wide": (propose(target_hidden=torch.zeros(H + 1)), r"float32 \[1, 20\]"),
    "hidden_two_rows": (propose(target_hidden=torch.zeros(2, H)), r"got torch.float32 \[2, 20\]"),
    "hidden_scalar": (propose(target_hidden=torch.tensor(0.0)), "hiddens"),
    "hidden_double": (propose(target_hidden=GOOD.double()), "got torch.float64"),
    "hidden_meta": (propose(target_hidden=META), "on cpu, got torch.strided on meta"),
    "hidden_sparse": (propose(target_hidden=SPARSE), "expected a strided tensor"),
    "hidden_list": (propose(target_hidden=[0.0] * H), "expected a tensor, got list"),
    "position_negative": (propose(position=-1), "propose.position: expected 0 or more"),
    "position_float": (propose(position=9.0), "propose.position: expected an integer"),
    "num_drafts_negative": (propose(num_drafts=-1), "propose.num_drafts: expected 0 to 4, got -1"),
    "num_drafts_too_many": (propose(num_drafts=5), "propose.num_drafts: expected 0 to 4, got 5"),
    "num_drafts_bool": (propose(num_drafts=True), "expected an integer, got bool"),
    "hidden_stack": (propose(target_hidden_stack=GOOD), "target_hidden_stack"),
    "mask_dtype": (propose(grammar_bitmask=torch.ones(2, dtype=torch.int64)), "expected int32"),
    "mask_dims": (propose(grammar_bitmask=torch.ones(1, 1, 2, dtype=torch.int32)), "expected int32"),
    "mask_list": (propose(grammar_bitmask=[1, 1]), "expected int32"),
    "mask_meta": (propose(grammar_bitmask=torch.ones(2, dtype=torch.int32, device="meta")), "meta device"),
    "buffer_rows": (propose(draft_embed_target=torch.zeros(3, H)), r"expected torch.float32 \[2, 20\]"),
    "buffer_flat_for_two": (propose(draft_embed_target=torch.zeros(H)), r"expected torch.float32 \[2, 20\]"),
    "buffer_dtype": (propose(draft_embed_target=torch.zeros(2, H).half()), "got torch.float16"),
    "buffer_meta": (propose(draft_embed_target=torch.zeros(2, H, device="meta")), "on meta"),
    "buffer_list": (propose(draft_embed_target=[0.0]), "expected a tensor, got list"),
    "buffer_expanded": (propose(draft_embed_target=GOOD.expand(2, H)), "memory of its own"),
    "prefill_lengths": (prefill([1, 2], ROWS), "one per token"),
    "prefill_two_dims": (prefill([[1, 2, 3]], ROWS), "expected integers"),
    "prefill_ragged": (prefill([[1, 2], [3]], ROWS), "expected integers"),
    "prefill_text": (prefill("abc", ROWS), "expected integers"),
    "prefill_meta_tokens": (prefill(torch.zeros(3, dtype=torch.int64, device="meta"), ROWS), "expected integers"),
    "prefill_float_tokens": (prefill(torch.zeros(3), ROWS), "expected integers"),
    "prefill_id": (prefill([1, 2, 61], ROWS), "got 61"),
    "prefill_dtype": (prefill([1, 2, 3], ROWS.bfloat16()), "got torch.bfloat16"),
    "prefill_device": (prefill([1, 2, 3], ROWS.to("meta")), "on meta"),
    "catchup_bases_differ": (catchup([1, 2, 3], ROWS, 9, 10), "expected pos_base 9"),
    "catchup_base_negative": (catchup([1, 2, 3], ROWS, -1, -1), "row_base"),
    "catchup_base_float": (catchup([1, 2, 3], ROWS, 9.0, 9.0), "row_base"),
    "catchup_lengths": (catchup([1, 2], ROWS, 9, 9), "one per token"),
    "catchup_batch_twice": (catchup_batch([[1], [1]], [ROWS[:1]] * 2, [9, 9], times=2), "each state once"),
    "catchup_batch_columns": (catchup_batch([[1], [1]], [ROWS[:1]], [9]), "catchup_batch.tokens: expected 1"),
    "catchup_batch_first": (catchup_batch([[1]], [ROWS[:1]], [-1]), "first_pos"),
    "catchup_batch_hidden": (catchup_batch([[1]], [ROWS], [9]), "one per token"),
    "batch_twice": (
        batch(last_tokens=[3, 3], target_hiddens=torch.zeros(2, H), positions=[9, 9], states=lambda s: [s, s]),
        "each state once",
    ),
    "batch_tokens": (batch(last_tokens=[3, 4]), "propose_batch.last_tokens: expected 1 like states, got 2"),
    "batch_hiddens": (batch(target_hiddens=ROWS), "propose_batch.target_hiddens: expected 1"),
    "batch_positions": (batch(positions=[]), "propose_batch.positions: expected 1"),
    "batch_masks": (batch(grammar_bitmasks=[None, None]), "propose_batch.grammar_bitmasks: expected 1"),
    "batch_num_drafts": (batch(num_drafts=-1), "propose_batch.num_drafts"),
    "batch_num_drafts_of_none": (
        batch(last_tokens=[], target_hiddens=[], positions=[], states=lambda s: [], num_drafts=-1),
        "propose_batch.num_drafts",
    ),
    "batch_token": (batch(last_tokens=[61]), "got 61"),
    "accepted_negative": (lambda proposer, state: proposer.after_verify(-1, state), "num_accepted"),
    "accepted_bool": (lambda proposer, state: proposer.after_verify(True, state), "num_accepted"),
    "rewind_negative": (lambda proposer, state: proposer.rewind(-1, state), "rewind.rows"),
    "rewind_float": (lambda proposer, state: proposer.rewind(2.5, state), "rewind.rows"),
    "budget_zero": (lambda proposer, state: proposer.alloc_state_for(0), "budget_tokens"),
    "budget_float": (lambda proposer, state: proposer.alloc_state_for(8.0), "budget_tokens"),
}


@both_paths
@pytest.mark.parametrize("name", BAD)
def test_bad_argument_is_refused_by_name_and_changes_nothing(path: str, name: str) -> None:
    proposer = make_proposer(path)
    state = proposer.alloc_state()
    text = make_text(proposer, 20)
    text.prefill(proposer, state, 9)
    text.propose(proposer, state, 9, 3)
    before, counters = snapshot(proposer, state), proposer.path_counters
    call, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        call(proposer, state)
    assert snapshot(proposer, state) == before
    assert proposer.path_counters == counters


USES: dict[str, Callable[[DraftProposer, ProposerState], object]] = {
    "drafter_rows": lambda proposer, state: proposer.drafter_rows(state),
    "last_pair_key": lambda proposer, state: proposer.last_pair_key(state),
    "rewind": lambda proposer, state: proposer.rewind(0, state),
    "prefill_drafter": prefill([1, 2, 3], ROWS),
    "prefill_drafter of one token": prefill([1], ROWS[:1]),
    "catchup_drafter": catchup([1, 2, 3], ROWS, 0, 0),
    "catchup_drafter elsewhere": catchup([1, 2, 3], ROWS, 5, 5),
    "catchup_batch": catchup_batch([[1]], [ROWS[:1]], [0]),
    "catchup_batch of nothing": catchup_batch([[]], [ROWS[:0]], [0]),
    "propose": propose(position=0),
    "propose of nothing": propose(position=0, num_drafts=0),
    "propose beyond the limit": propose(position=10**6),
    "propose_batch": batch(positions=[0]),
    "propose_batch of nothing": batch(positions=[0], num_drafts=0),
    "after_verify": lambda proposer, state: proposer.after_verify(0, state),
    "take_drafter_kv": lambda proposer, state: proposer.take_drafter_kv(state),
    "install_drafter_kv": lambda proposer, state: proposer.install_drafter_kv(
        proposer.take_drafter_kv(proposer.alloc_state()), None, state
    ),
}


@both_paths
@pytest.mark.parametrize("name", USES)
def test_use_after_free_raises_and_harms_nobody(path: str, name: str) -> None:
    proposer = make_proposer(path)
    freed = proposer.alloc_state()
    text = make_text(proposer, 20)
    text.prefill(proposer, freed, 9)
    proposer.free_state(freed)
    # the heir holds the blocks and the tail slot that the freed state had
    heir = proposer.alloc_state()
    text.prefill(proposer, heir, 9)
    before = snapshot(proposer, heir)[2:]
    with pytest.raises(StateError, match="live sequence, got a freed one"):
        USES[name](proposer, freed)
    assert snapshot(proposer, heir)[2:] == before


def test_freed_state_in_a_batch_raises_before_the_others_run() -> None:
    proposer = make_proposer(num_sequences=2)
    live, freed = proposer.alloc_state(), proposer.alloc_state()
    text = make_text(proposer, 20)
    text.prefill(proposer, live, 9)
    proposer.free_state(freed)
    before = snapshot(proposer, live)
    with pytest.raises(StateError, match="freed"):
        proposer.propose_batch([1, 1], text.hiddens[:2], [9, 0], 2, [live, freed])
    with pytest.raises(StateError, match="freed"):
        proposer.catchup_batch([[1], [1]], [text.hiddens[:1]] * 2, [9, 0], [live, freed])
    assert snapshot(proposer, live) == before


@pytest.mark.parametrize("name", ["max_seq_len", "max_num_drafts", "num_sequences"])
@pytest.mark.parametrize("number", [0, -1, 1.5, True])
def test_proposer_of_no_size_is_refused_by_name(name: str, number: object) -> None:
    with pytest.raises(ValueError, match=f"DraftProposer.{name}"):
        make_proposer(**{name: number})


def test_proposer_longer_than_the_checkpoint_allows_is_refused() -> None:
    with pytest.raises(ValueError, match="max_seq_len: expected 1 to 512, got 513"):
        make_proposer(max_seq_len=513)
