"""The lever draft_vocab: only listed tokens are drafted, by every path alike, and masks meet them by their ids."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from circuit import BindingError
from drafts.draft_head import DraftHead
from drafts.grammar import num_drafts_allowed
from drafts.levers import ModelLevers
from drafts.proposer import DraftProposer
from drafts.runner import DraftRunner
from drafts.triton_runner import TritonRunner
from tests.drafts.drafter_twin import Text, make_proposer, make_text, swap_in

# crosses words of a mask, holds bit 31 of one, and leaves out the first and the last token of 61
VOCAB = (3, 8, 17, 30, 31, 32, 45, 59)
LEVERS = ModelLevers(draft_vocab=VOCAB)
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])


def mask_of(*tokens: int, words: int = 2) -> torch.Tensor:
    bits = torch.zeros(words * 32, dtype=torch.int64)
    bits[list(tokens)] = 1
    return (bits.view(words, 32) << torch.arange(32)).sum(dim=1).to(torch.int32)


def drafted(
    proposer: DraftProposer, mask: torch.Tensor | None = None, *, num_drafts: int = 3
) -> tuple[list[list[int]], list[list[float]]]:
    """Drafts and confidences of a text at several positions."""
    text, state = make_text(proposer, 40), proposer.alloc_state()
    ids, confidences = [], []
    for position in (5, 18, 31):
        text.append(proposer, state, position)
        made: list[list[float]] = []
        ids += proposer.propose_batch(
            [int(text.tokens[position + 1])],
            [text.hiddens[position]],
            [position],
            num_drafts,
            [state],
            # a mask of one row would leave drafts 2 and 3 free
            grammar_bitmasks=[None if mask is None else mask.expand(num_drafts, -1)],
            confidences=made,
        )
        confidences += made
        proposer.after_verify(0, state)
    proposer.free_state(state)
    return ids, confidences


def first_draft(proposer: DraftProposer, text: Text) -> tuple[int, float]:
    state = proposer.alloc_state()
    text.prefill(proposer, state, 12)
    token, hidden = int(text.tokens[13]), text.hiddens[12]
    made: list[list[float]] = []
    ((draft,),) = proposer.propose_batch([token], [hidden], [12], 1, [state], confidences=made)
    return draft, made[0][0]


@DTYPES
@pytest.mark.parametrize("mask", [None, mask_of(0, 8, 31, 45, 60), mask_of(*range(1, 32), words=1)], ids=str)
def test_draft_vocab_drafts_alike_by_the_eager_head_and_the_circuit(
    dtype: torch.dtype, mask: torch.Tensor | None
) -> None:
    proposer = make_proposer(levers=LEVERS, dtype=dtype)
    ids, confidences = drafted(proposer, mask)
    swap_in(proposer)
    circuit_ids, circuit_confidences = drafted(proposer, mask)
    assert ids == circuit_ids
    torch.testing.assert_close(torch.tensor(confidences), torch.tensor(circuit_confidences))
    allowed = set(VOCAB) if mask is None else {t for t in VOCAB if t < 32 * len(mask) and mask[t // 32] >> t % 32 & 1}
    assert {token for row in ids for token in row} <= allowed


@pytest.mark.interpreted
def test_draft_vocab_drafts_alike_by_launches() -> None:
    proposer = make_proposer(levers=LEVERS)
    mask = mask_of(0, 8, 31, 45, 60)
    expected = drafted(proposer), drafted(proposer, mask)
    binding = proposer.circuit_draft()
    assert binding is not None
    proposer.set_circuit_draft(TritonRunner(binding))
    for (ids, confidences), got in zip(expected, (drafted(proposer), drafted(proposer, mask)), strict=True):
        assert got[0] == ids
        torch.testing.assert_close(torch.tensor(got[1]), torch.tensor(confidences))


def test_draft_vocab_of_all_tokens_drafts_what_the_whole_head_drafts() -> None:
    assert drafted(make_proposer(levers=ModelLevers(draft_vocab=tuple(range(61))))) == drafted(make_proposer())


def test_draft_vocab_drafts_the_best_listed_token_with_its_share_of_those() -> None:
    whole = make_proposer()
    text = make_text(whole, 20)
    seen: dict[str, torch.Tensor] = {}
    swap_in(whole).observe = lambda step, value, tensor: seen.setdefault(value.name, tensor)  # type: ignore[func-returns-value]
    best, _ = first_draft(whole, text)
    # without the token that the whole head drafts
    listed = tuple(token for token in range(1, 61, 2) if token != best)
    draft, confidence = first_draft(make_proposer("circuit", levers=ModelLevers(draft_vocab=listed)), text)
    logits = seen["logits"][0, list(listed)]
    assert draft == listed[int(logits.argmax())]
    assert confidence == pytest.approx(float(torch.softmax(logits, dim=0).max()))


@pytest.mark.parametrize("path", ["eager", "circuit"])
def test_draft_vocab_stops_before_a_mask_that_allows_no_listed_token(path: str) -> None:
    proposer = make_proposer(path, levers=LEVERS)
    text, state = make_text(proposer, 20), proposer.alloc_state()
    text.prefill(proposer, state, 12)
    token, hidden = int(text.tokens[13]), text.hiddens[12]
    masks = torch.stack([mask_of(8, 9), mask_of(9, 60), mask_of(8)])
    assert num_drafts_allowed(masks, vocab_size=61, num_drafts=3) == 3
    assert proposer.propose(token, hidden, 12, 3, state, grammar_bitmask=masks) == [8]
    assert proposer.propose(token, hidden, 12, 3, state, grammar_bitmask=masks[1]) == []


def test_draft_vocab_sees_rows_written_into_lm_head_and_refuses_another_tensor() -> None:
    proposer = make_proposer(levers=LEVERS)
    binding = proposer.circuit_draft()
    assert binding is not None
    runner = DraftRunner(binding)
    proposer.set_circuit_draft(runner)
    before = drafted(proposer)[0]
    with torch.no_grad():
        proposer.weights["lm_head"].mul_(-1.0)
    after = drafted(proposer)[0]
    assert before != after
    proposer.set_circuit_draft(None)
    assert drafted(proposer)[0] == after
    other = make_proposer(levers=LEVERS)
    with pytest.raises(BindingError, match="is another tensor"):
        other.set_circuit_draft(runner)


def test_draft_vocab_of_a_runner_is_the_proposers() -> None:
    proposer = make_proposer(levers=LEVERS)
    whole = DraftProposer(proposer.config, proposer.weights, proposer.decisions, max_seq_len=96)
    binding = whole.circuit_draft()
    assert binding is not None
    with pytest.raises(BindingError, match="draft_head are not this proposer's"):
        proposer.set_circuit_draft(DraftRunner(binding))


def test_draft_vocab_is_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "tokens.txt"
    file.write_text("3\n8\n17\n")
    assert ModelLevers(draft_vocab=str(file)).head == DraftHead(draft_vocab=(3, 8, 17))  # type: ignore[arg-type]
    assert ModelLevers(draft_vocab=torch.tensor([3, 8, 17])).draft_vocab == (3, 8, 17)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ([3, 3], "got 3 after 3"),
        ([8, 3], "got 3 after 8"),
        ([], "got none"),
        ([-1, 3], "greater than or equal to 0"),
        ([True], "valid integer"),
        (["3"], "valid integer"),
        ("there_is_no_such_file", "one token id a line, got No such file or directory; check the path"),
        (7, "valid tuple"),
    ],
    ids=str,
)
def test_draft_vocab_refuses_what_is_no_ascending_list(given: object, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        ModelLevers(draft_vocab=given)  # type: ignore[arg-type]


def test_draft_vocab_refuses_words_in_a_file_and_tokens_beyond_the_vocabulary(tmp_path: Path) -> None:
    file = tmp_path / "tokens.txt"
    file.write_text("3\neight\n")
    with pytest.raises(ValueError, match="expected one token id a line, got 'eight'"):
        ModelLevers(draft_vocab=str(file))  # type: ignore[arg-type]
    with pytest.raises(BindingError, match="below vocab_size 61, got 61"):
        make_proposer(levers=ModelLevers(draft_vocab=(3, 61)))
