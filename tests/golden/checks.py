"""What a head must match of a golden case; each check takes a case and a HeadFactory, so every head is held alike.

Bounds. float32: edges 1e-4, logits 1e-3 absolute; replaying row by row moves the oracle's logits by 2.6e-5 and
absorbing by 3e-6 (vectors/README.md), the rest is room for another order of sums. bfloat16, each step fed the golden
previous hidden: up to the selection every edge is bitwise the oracle's in eager PyTorch, so 2 ulps of its magnitude
are allowed; after attention the sums are ordered otherwise, and 0.25 on logits of std 1.9 is what the oracle supports.
A bfloat16 draft may be another token only where the oracle's own logits of the two lie within NEAR_TIE.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from tests.golden.replay import (
    CONTEXT_EDGES,
    GoldenCase,
    HeadFactory,
    SequencePlay,
    StepPlay,
    cache_contents,
    play_sequence,
)

AFTER_ATTENTION = frozenset(
    {"attn_heads", "attn_out", "x1", "moe_in", "router_logits", "router_weights", "experts_out", "shared_out"}
    | {"moe_out", "block_out", "head_normed", "logits"}
)
NEAR_TIE = 0.125  # two steps of bfloat16 between 8 and 16, where the largest logits lie


def bound_of(case: GoldenCase, edge: str, expected: Tensor) -> float:
    if case.is_float32:
        return 1e-3 if edge == "logits" else 1e-4
    if edge not in AFTER_ATTENTION:
        return float(expected.float().abs().max()) * 2**-7
    return 0.25


def assert_edge(case: GoldenCase, where: str, got: Tensor, expected: Tensor) -> float:
    """Hold one edge to its bound, infinities and dtype exactly; returns the largest difference."""
    edge = where.rsplit("/", 1)[-1]
    assert got.shape == expected.shape, f"{case.name} {where}: shape {list(got.shape)}, golden {list(expected.shape)}"
    assert got.dtype == expected.dtype, f"{case.name} {where}: {got.dtype}, golden {expected.dtype}"
    if expected.numel() == 0:
        return 0.0
    infinite = expected.isinf()
    assert torch.equal(got[infinite], expected[infinite]), f"{case.name} {where}: infinities differ"
    difference = (got.double() - expected.double()).abs()[~infinite]
    worst = float(difference.max()) if difference.numel() else 0.0
    bound = bound_of(case, edge, expected[~infinite])
    assert worst <= bound, f"{case.name} {where}: differs by {worst:.3g}, bound {bound:.3g}"
    return worst


def check_drafts_and_edges(case: GoldenCase, factory: HeadFactory) -> None:
    """Drafts of every propose, every recorded edge of every step, and the prefill's edges."""
    for index in range(len(case.sequences)):
        play = main_play(case, index, factory)
        for step in play.steps:
            if not _check_step(case, step, play):
                break
        for key, edges in play.context.items():
            for edge in CONTEXT_EDGES:
                if f"{key}/{edge}" in case.vectors:
                    assert_edge(case, f"{key}/{edge}", edges[edge], case.vectors[f"{key}/{edge}"])


def check_final_cache(case: GoldenCase, factory: HeadFactory) -> None:
    """What the cache holds at the end, and the number of rows; raw rows as far as the ring goes back."""
    for index in range(len(case.sequences)):
        play = main_play(case, index, factory)
        if any(_oracle_broke_a_tie(case, step) for step in play.steps):
            continue
        for edge, got in cache_contents(play.cache, play.state).items():
            expected = case.vectors[f"seq{index}/final/{edge}"]
            first = play.state.raw_from if edge in ("idx_k", "idx_gate") else 0
            assert_edge(case, f"seq{index}/final/{edge}", got, expected[first:])


def check_variant(
    case: GoldenCase,
    factory: HeadFactory,
    variant: str,
    *,
    recycle: str = "post_norm",
    index_share: str = "off",
    stops_at_ties: bool = True,
) -> None:
    """The head with this decision gives the variant's drafts and logits.

    A variant of a case may tie exactly where the main chain does not, and torch's own topk then chose for the oracle
    as it liked; the sequence is compared up to such a step, unless the variant says how ties go.
    """
    for index in range(len(case.sequences)):
        play = play_sequence(case, index, factory, recycle=recycle, index_share=index_share)
        drafts = case.variants[variant][index]
        for step in play.steps:
            if stops_at_ties and _ties_at_the_cut(step, play):
                break
            expected = case.vectors[f"{variant}/{step.key}/logits"]
            assert_edge(case, f"{variant}/{step.key}/logits", step.edges["logits"], expected)
            draft = play.drafts[step.propose][step.index]
            if draft != drafts[step.propose][step.index]:
                assert _is_near_tie(case, expected, draft), f"{case.name} {variant}/{step.key}: draft {draft}"
                break
        else:
            assert play.drafts == drafts


def check_differs_from_variant(case: GoldenCase, factory: HeadFactory, variant: str) -> None:
    """The head does not do what the variant does: wherever main and variant part by more than the bound, it is main."""
    for index in range(len(case.sequences)):
        play = main_play(case, index, factory)
        for step in play.steps:
            if _oracle_broke_a_tie(case, step):
                break
            main, other = case.vectors[f"{step.key}/logits"], case.vectors[f"{variant}/{step.key}/logits"]
            bound = bound_of(case, "logits", main)
            got = step.edges["logits"].float()
            assert (got - main.float()).abs().max() <= bound
            if (main.float() - other.float()).abs().max() > 2 * bound:
                assert (got - other.float()).abs().max() > bound, f"{case.name} {step.key} does as {variant}"


@functools.cache
def main_play(case: GoldenCase, index: int, factory: HeadFactory) -> SequencePlay:
    """Sequence `index` played with the default decisions; several checks look at one play."""
    return play_sequence(case, index, factory, is_teacher_forced=not case.is_float32)


def _check_step(case: GoldenCase, step: StepPlay, play: SequencePlay) -> bool:
    """Hold a step's edges, selection and draft; False where what follows cannot be compared, after a tie."""
    prefix = f"{step.key}/"
    names = [name.removeprefix(prefix) for name in case.vectors if name.startswith(prefix)]
    assert names, f"{case.name} {step.key}: no golden edges"
    selected = step.edges["selected"][0]
    selected = selected[selected >= 0].sort().values.tolist()
    if _oracle_broke_a_tie(case, step):
        assert selected == _lowest_first(case, step), f"{case.name} {step.key}: the lowest pool wins a tie"
        return False
    assert selected == step.expected["selected"], f"{case.name} {step.key}"
    for edge in names:
        expected, got = case.vectors[prefix + edge], step.edges[edge]
        if edge == "router_ids":
            assert torch.equal(got, expected.long()), f"{case.name} {prefix}{edge}"
        else:
            # pool keys are per row here: one row, its own sequence's pools
            assert_edge(case, prefix + edge, got[0] if edge == "pool_keys" else got, expected)
    draft, expected = play.drafts[step.propose][step.index], case.drafts(step.sequence)[step.propose][step.index]
    assert draft == expected or is_excused(case, step, draft), (
        f"{case.name} {step.key}: draft {draft}, golden {expected}"
    )
    return True


def is_excused(case: GoldenCase, step: StepPlay, draft: int) -> bool:
    """Whether `draft` may stand for the golden one: the oracle broke a tie of pools, or bfloat16 logits lie close."""
    return _is_near_tie(case, case.vectors[f"{step.key}/logits"], draft) or _oracle_broke_a_tie(case, step)


def _is_near_tie(case: GoldenCase, logits: Tensor, draft: int) -> bool:
    return not case.is_float32 and float(logits.max() - logits[0, draft]) <= NEAR_TIE


def _lowest_first(case: GoldenCase, step: StepPlay) -> list[int]:
    """The rows that the golden scores select when the lowest pool wins a tie, plus the tail."""
    config, position = case.config(), step.position
    scores = case.vectors[f"{step.key}/index_scores"][0]
    pools = scores.sort(descending=True, stable=True).indices[: config.index_topk_pools]
    pools = pools[~scores[pools].isinf()]
    rows = [int(pool) * config.index_kpool + slot for pool in pools for slot in range(config.index_kpool)]
    visible = position + 1
    return sorted([*rows, *range(visible - visible % config.index_kpool, visible)])


def _oracle_broke_a_tie(case: GoldenCase, step: StepPlay) -> bool:
    """Whether the oracle's topk met an exact tie at the cut here and did not choose the lowest pool."""
    return step.expected["index_margin"] == 0.0 and step.expected["selected"] != _lowest_first(case, step)


def _ties_at_the_cut(step: StepPlay, play: SequencePlay) -> bool:
    """Whether the last chosen pool and the first one left out score exactly alike."""
    scores = step.edges.get("index_scores")
    budget = play.cache.config.index_topk_pools
    if scores is None or scores.shape[1] <= budget:
        return False
    ranked = scores[0].sort(descending=True).values
    return bool(ranked[budget - 1] == ranked[budget])
