import pytest
import torch

from circuit import TypeRuleError, f32
from nodes import TopkRouter
from tests.support.node_cases import same_bits
from tests.support.rounding import randn

NUM_EXPERTS = 12


def router(**attributes: object) -> TopkRouter:
    return TopkRouter(**{"top_k": 3, "n_group": 1, "topk_group": 1, "norm_topk_prob": True, "scale": 2.5, **attributes})


def brute_force(node: TopkRouter, logits: list[float], bias: list[float]) -> tuple[list[int], list[float]]:
    scores = torch.tensor(logits, dtype=torch.float64).sigmoid().tolist()
    biased = [score + shift for score, shift in zip(scores, bias, strict=True)]
    size = len(logits) // node.n_group
    groups = [range(first, first + size) for first in range(0, len(logits), size)]
    if node.n_group > 1:
        strength = [sum(sorted((biased[e] for e in group), reverse=True)[:2]) for group in groups]
        kept = sorted(range(node.n_group), key=lambda g: (-strength[g], g))[: node.topk_group]
        groups = [groups[g] for g in kept]
    ids = sorted(sorted((e for group in groups for e in group), key=lambda e: (-biased[e], e))[: node.top_k])
    total = sum(scores[e] for e in ids) + 1e-20 if node.norm_topk_prob else 1.0
    return ids, [scores[e] / total * node.scale for e in ids]


@pytest.mark.parametrize("norm_topk_prob", [True, False], ids=["normed", "raw"])
@pytest.mark.parametrize("n_group, topk_group", [(1, 1), (2, 1), (3, 2), (4, 4), (6, 2)])
def test_router_equals_brute_force(n_group: int, topk_group: int, norm_topk_prob: bool) -> None:
    node = router(n_group=n_group, topk_group=topk_group, norm_topk_prob=norm_topk_prob)
    logits, bias = 2 * randn(17, NUM_EXPERTS, seed=n_group), 0.3 * randn(NUM_EXPERTS, seed=9)
    ids, weights = node.reference(logits, bias)
    for row in range(17):
        expected_ids, expected_weights = brute_force(node, logits[row].tolist(), bias.tolist())
        assert ids[row].tolist() == expected_ids
        torch.testing.assert_close(weights[row], torch.tensor(expected_weights), rtol=1e-6, atol=0)


def test_router_lowest_expert_wins_a_tie() -> None:
    node = router()
    assert node.reference(torch.zeros(1, 300), torch.zeros(300))[0].tolist() == [[0, 1, 2]]
    logits = torch.zeros(1, NUM_EXPERTS)
    logits[0, [2, 5, 7, 11]] = 1.0
    logits[0, 9] = 2.0
    assert node.reference(logits, torch.zeros(NUM_EXPERTS))[0].tolist() == [[2, 5, 9]]


def test_router_lowest_group_wins_a_tie() -> None:
    node = router(n_group=4, topk_group=2)
    assert node.reference(torch.zeros(1, NUM_EXPERTS), torch.zeros(NUM_EXPERTS))[0].tolist() == [[0, 1, 2]]
    logits = torch.zeros(1, NUM_EXPERTS)
    logits[0, 9:] = 3.0
    # the last group is best, the first wins the tie for the second place
    assert router(n_group=4, topk_group=2, top_k=6).reference(logits, torch.zeros(NUM_EXPERTS))[0].tolist() == [
        [0, 1, 2, 9, 10, 11]
    ]


def test_router_group_counts_its_two_best_only() -> None:
    logits = torch.tensor([[4.0, -9.0, -9.0, 1.0, 1.0, -9.0, 0.5, 0.5, 0.5]])
    # sums of two: about 0.98, 1.46, 1.24; of one: the first group wins; of all: the last
    assert router(n_group=3, topk_group=1, top_k=2).reference(logits, torch.zeros(9))[0].tolist() == [[3, 4]]


def test_router_bias_moves_the_choice_and_not_the_weight() -> None:
    logits, bias = randn(5, NUM_EXPERTS, seed=0), torch.zeros(NUM_EXPERTS)
    bias[[4, 6, 7]] = 10.0
    ids, weights = router(norm_topk_prob=False, scale=1.0).reference(logits, bias)
    assert ids.tolist() == [[4, 6, 7]] * 5
    assert same_bits(weights, logits.sigmoid()[:, [4, 6, 7]].contiguous())


@pytest.mark.parametrize("scale", [1.0, 2.5])
def test_router_weights_sum_to_the_scale(scale: float) -> None:
    _, weights = router(scale=scale).reference(randn(5, NUM_EXPERTS, seed=0), torch.zeros(NUM_EXPERTS))
    torch.testing.assert_close(weights.sum(dim=1), torch.full((5,), scale))


def test_router_of_vanishing_scores_gives_finite_weights() -> None:
    _, weights = router().reference(torch.full((1, NUM_EXPERTS), -200.0), torch.zeros(NUM_EXPERTS))
    assert weights.tolist() == [[0.0, 0.0, 0.0]]


@pytest.mark.parametrize("groups", [{}, {"n_group": 3, "topk_group": 1}], ids=["ungrouped", "grouped"])
def test_router_shows_a_nan(groups: dict) -> None:
    logits = randn(2, NUM_EXPERTS, seed=0)
    logits[1, 7] = float("nan")
    ids, weights = router(**groups).reference(logits, torch.zeros(NUM_EXPERTS))
    assert 7 in ids[1]
    assert weights.isnan().any(dim=1).tolist() == [False, True]


def test_router_rows_are_independent() -> None:
    logits, bias = randn(5, NUM_EXPERTS, seed=0), randn(NUM_EXPERTS, seed=1)
    node = router(n_group=3, topk_group=2)
    together = node.reference(logits, bias)
    for row in range(5):
        alone = node.reference(logits[row : row + 1], bias)
        assert same_bits(alone[0][0], together[0][row])
        assert same_bits(alone[1][0], together[1][row])


@pytest.mark.parametrize(
    "attributes, num_experts, message",
    [
        pytest.param({"n_group": 5, "topk_group": 2}, 12, "logits: expected 5 equal groups", id="unequal_groups"),
        pytest.param({"n_group": 12, "topk_group": 6}, 12, "groups of at least 2 experts", id="groups_of_one"),
        pytest.param({"n_group": 4, "topk_group": 1, "top_k": 4}, 12, "groups of at least 4", id="too_few_to_choose"),
        pytest.param({"top_k": 13}, 12, "1 equal groups of at least 13 experts", id="more_than_there_are"),
        pytest.param({"n_group": 2, "topk_group": 3}, 12, "topk_group: expected at most n_group 2, got 3", id="groups"),
    ],
)
def test_router_refuses_groups_that_cannot_be_limited(attributes: dict, num_experts: int, message: str) -> None:
    with pytest.raises(TypeRuleError, match=rf"TopkRouter\..*{message}"):
        router(**attributes).infer(f32("n", num_experts), f32(num_experts))


@pytest.mark.parametrize("attributes", [{"top_k": 12}, {"n_group": 6, "topk_group": 2}, {"top_k": 1}])
def test_router_takes_the_smallest_groups_that_work(attributes: dict) -> None:
    node = router(**attributes)
    node.infer(f32("n", NUM_EXPERTS), f32(NUM_EXPERTS))
    ids, _ = node.reference(randn(3, NUM_EXPERTS, seed=0), torch.zeros(NUM_EXPERTS))
    assert all(len(set(row)) == node.top_k for row in ids.tolist())


def test_router_of_one_expert_has_no_groups_to_rank() -> None:
    ids, weights = router(top_k=1).reference(torch.zeros(2, 1), torch.zeros(1))
    assert ids.tolist() == [[0], [0]]
    assert weights.tolist() == [[2.5], [2.5]]
