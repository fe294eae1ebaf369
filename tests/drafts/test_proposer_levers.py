"""ModelLevers: each switch documented and tagged, tested both ways, and nothing else accepted."""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError

from drafts.config import DraftConfig
from drafts.decisions import default_decisions
from drafts.levers import ModelLevers, lever_table
from drafts.proposer import DraftProposer
from tests.drafts.drafter_twin import (
    assert_holds,
    assert_same_contents,
    both_paths,
    contents,
    make_proposer,
    make_text,
)
from tests.drafts.tiny_head import tiny_config, tiny_weights


def test_every_lever_states_its_meaning_and_what_it_does_to_numerics() -> None:
    table = lever_table()
    assert [row[0] for row in table] == list(ModelLevers.model_fields)
    for name, default, numerics, meaning in table:
        assert getattr(ModelLevers(), name) == default
        assert numerics in ("bitwise", "other drafts")
        assert len(meaning) > 20
        assert meaning.endswith(".")


@pytest.mark.parametrize(
    "wrong",
    [
        {"mtp_kv_exactly": True},
        {"mtp_kv_exact": 1},
        {"index_share": "on"},
        {"index_share": True},
        {"propose_batch_max": 0},
        {"propose_batch_max": 257},
        {"propose_batch_max": "16"},
    ],
    ids=str,
)
def test_unknown_lever_or_ill_typed_value_is_refused_by_name(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        ModelLevers(**wrong)  # type: ignore[arg-type]


def test_levers_cannot_be_changed_under_a_proposer() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        make_proposer().levers.mtp_kv_exact = False  # type: ignore[misc]


@both_paths
def test_mtp_kv_exact_decides_whether_accepted_rows_are_rewritten(path: str) -> None:
    latents = {}
    for is_exact in (True, False):
        proposer = make_proposer(path, levers=ModelLevers(mtp_kv_exact=is_exact))
        text, state = make_text(proposer, 60), proposer.alloc_state()
        text.prefill(proposer, state, 18)
        text.propose(proposer, state, 18, 4)
        proposer.after_verify(2, state)
        written = proposer.catchup_batch([text.tokens[20:22]], [text.hiddens[19:21]], [19], [state])
        assert written == [2 if is_exact else 0]
        assert proposer.drafter_rows(state) == 21
        latents[is_exact] = contents(proposer, state).latent.clone()
        if is_exact:
            assert_holds(proposer, state, text)
    # the first row is true either way, the accepted drafts' rows are not the same
    assert torch.equal(latents[True][:19], latents[False][:19])
    assert not torch.isclose(latents[True][19:], latents[False][19:]).all(dim=1).any()


@both_paths
@pytest.mark.parametrize("kpool", [1, 4])
def test_index_share_on_and_off_leave_identical_caches_after_exact_rounds(path: str, kpool: int) -> None:
    held, drafts = {}, {}
    for share in ("off", "pools_and_new_rows", "exact_set"):
        proposer = make_proposer(path, levers=ModelLevers(index_share=share), index_kpool=kpool, index_topk=2 * kpool)
        text, state = make_text(proposer, 60), proposer.alloc_state()
        text.prefill(proposer, state, 30)
        drafts[share], position = [], 30
        for num_accepted in (2, 0, 4, 1):
            drafts[share].append(text.propose(proposer, state, position, 4))
            end = position + 1 + num_accepted
            proposer.after_verify(num_accepted, state)
            accepted, hiddens = text.tokens[position + 2 : end + 1], text.hiddens[position + 1 : end]
            proposer.catchup_batch([accepted], [hiddens], [position + 1], [state])
            position = end
        held[share] = contents(proposer, state)
        assert_holds(proposer, state, text)
    for share in ("pools_and_new_rows", "exact_set"):
        assert_same_contents(held[share], held["off"], atol=0, rtol=0)
        # drafts 2..K attend other rows, so the lever is seen to do something; draft 1 selects for itself
        assert drafts[share] != drafts["off"]
        assert [row[0] for row in drafts[share]] == [row[0] for row in drafts["off"]]


@pytest.mark.parametrize("share", ["pools_and_new_rows", "exact_set", "off"])
def test_both_paths_draft_alike_under_every_index_share(share: str) -> None:
    made = []
    for path in ("eager", "circuit"):
        proposer = make_proposer(path, levers=ModelLevers(index_share=share))
        text, state = make_text(proposer, 60), proposer.alloc_state()
        text.prefill(proposer, state, 30)
        made.append([text.propose(proposer, state, position, 4) for position in (30, 29, 28)])
    assert made[0] == made[1]


@pytest.mark.parametrize("share", ["pools_and_new_rows", "exact_set", "off"])
def test_index_share_with_chains_of_one(share: str) -> None:
    made = []
    for path in ("eager", "circuit"):
        proposer = make_proposer(path, levers=ModelLevers(index_share=share), max_num_drafts=1)
        text, state = make_text(proposer, 60), proposer.alloc_state()
        text.prefill(proposer, state, 30)
        made.append(text.propose(proposer, state, 30, 1))
    assert made[0] == made[1]
    assert len(made[0]) == 1


def from_config(config: DraftConfig, levers: ModelLevers | None) -> DraftProposer:
    return DraftProposer(config, tiny_weights(config), default_decisions(config), max_seq_len=64, levers=levers)


def test_index_share_follows_the_checkpoint_unless_the_lever_says_otherwise() -> None:
    plain, sharing = tiny_config(), tiny_config(index_share_for_mtp_iteration=True)
    assert from_config(plain, None).decisions.index_share == "off"
    assert from_config(sharing, None).decisions.index_share == "pools_and_new_rows"
    assert from_config(sharing, ModelLevers(index_share="off")).decisions.index_share == "off"
    assert from_config(plain, ModelLevers(index_share="exact_set")).decisions.index_share == "exact_set"
    bound = from_config(plain, ModelLevers(index_share="pools_and_new_rows")).circuit_draft()
    assert bound is not None
    assert bound.decisions.index_share == "pools_and_new_rows"


@pytest.mark.parametrize("most", [1, 3])
def test_propose_batch_max_changes_no_draft(most: int) -> None:
    # its refusals are tested with the batch
    proposer = make_proposer(levers=ModelLevers(propose_batch_max=most))
    text, state = make_text(proposer, 60), proposer.alloc_state()
    text.prefill(proposer, state, 18)
    alone = text.propose(proposer, state, 18, 4)
    token, hidden = int(text.tokens[19]), text.hiddens[18:19]
    assert proposer.propose_batch([token], hidden, [18], 4, [state]) == [alone]
