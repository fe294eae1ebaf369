"""A target attends the same rows however many tokens run in a pass, also where pools score exactly alike."""

from typing import Any

import pytest
import torch

from drafts.targets.ties import _LowestIndexTopk
from tests.drafts import tiny_target
from tests.drafts.tiny_target import adapter, random_tokens, tiny_model


def test_stable_topk_takes_the_lowest_index_among_equals() -> None:
    scores = torch.tensor([[0.0, 2.0, 0.0, 0.0, 2.0, -1.0]])
    with _LowestIndexTopk():
        values, indices = scores.topk(4, dim=-1)
        assert torch.topk(scores, 2, largest=False).indices.tolist() == [[5, 0]]
    assert values.tolist() == [[2.0, 2.0, 0.0, 0.0]]
    assert indices.tolist() == [[1, 4, 0, 2]]


@pytest.fixture
def tying_target(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Two index heads: every fourth pool matches neither, and where both weights are negative such pools tie on top."""
    config = tiny_target.tiny_config()
    config.text_config.index_n_heads = 2
    monkeypatch.setattr(tiny_target, "tiny_config", lambda: config)
    return adapter.TransformersTarget(tiny_target.tiny_model())


@pytest.mark.parametrize("width", [4])
def test_verify_of_several_tokens_equals_one_by_one_where_pools_tie(width: int, tying_target: Any) -> None:
    target = tying_target
    prompt, tokens = random_tokens(80, seed=0), random_tokens(24, seed=50)
    logits = []
    for size in (1, width):
        sequence = target.open_sequence()
        sequence.prefill(prompt)
        rows = []
        for start in range(0, len(tokens), size):
            rows.append(sequence.verify(tokens[start : start + size]).logits)
            sequence.rollback(size)
        logits.append(torch.cat(rows))
    # f32, sums of at most 64 products in another order
    torch.testing.assert_close(logits[1], logits[0], rtol=0, atol=1e-4)


def test_forward_of_the_indexers_is_put_back() -> None:
    target = adapter.TransformersTarget(tiny_model())
    before = [dict(module.__dict__) for module in target.indexers]
    target.open_sequence().prefill(random_tokens(9, seed=5))
    assert [module.__dict__.keys() for module in target.indexers] == [held.keys() for held in before]
    assert len(target.indexers) == 2
