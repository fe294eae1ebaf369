"""Inputs that tell a wrong lowering from a right one, by node type, and how a result is held to its lowering's tag.

Beside random numbers: ties, large and tiny magnitudes, zeros of both signs, spreads at which an eps is half of the
result, values beyond every clamp, NaN wherever a node must not look, sequences that end at the edge of a pool or a
ring. `is_exact` cases are whole numbers whose sums are exact in any order, some of them midway between two numbers of
bf16: there a tolerance for another order has no excuse, and the same numbers are asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from circuit import Node
from compiler.edge_bounds import NARROW_STEP
from compiler.parity import Bound, compare_edge
from compiler.registry import Lowering
from nodes import (
    AbsorbQuery,
    AbsorbValue,
    AppendCache,
    AppendTail,
    IndexerScores,
    LayerNorm,
    Linear,
    RoutedExperts,
    SelectTopk,
    SparseMlaAttention,
    TopkRouter,
)

NAN, INF = float("nan"), float("inf")
NUM_ROWS = (1, 3, 9)  # the last is more than are unrolled
BOTH = (torch.float32, torch.bfloat16)


@dataclass(frozen=True)
class TagCase:
    """One call of a node: its arguments, the same ones each time, and whether its sums are exact in any order."""

    name: str
    node: Node
    arguments: tuple[Tensor, ...]
    is_exact: bool = False


def tag_cases(node_type: str) -> list[TagCase]:
    """Return the cases of a node type; KeyError where nobody wrote any."""
    return list(_CASES[node_type]())


def has_tag_cases(node_type: str) -> bool:
    return node_type in _CASES


def check_tag(case: TagCase, lowering: Lowering) -> None:
    """Fail where a lowering's results lie further from the reference's than its tag says, or are of another type."""
    expected = _tuple(case.node.reference(*(tensor.clone() for tensor in case.arguments)))
    check_results(
        case, lowering, _tuple(lowering.function(case.node, *(one.clone() for one in case.arguments))), expected
    )


def check_results(case: TagCase, lowering: Lowering, got: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> None:
    """Hold results to the tag: by bits, or by its bound; where sums are exact a tolerance asks for equal numbers."""
    where = f"{type(case.node).__name__}, {case.name}"
    assert len(got) == len(expected), f"{where}: {len(got)} results, expected {len(expected)}"
    for index, (ours, theirs) in enumerate(zip(got, expected, strict=True)):
        assert ours.dtype == theirs.dtype, f"{where}, result {index}: {ours.dtype}, expected {theirs.dtype}"
        assert ours.shape == theirs.shape, f"{where}, result {index}: {ours.shape}, expected {theirs.shape}"
        # block 0 and sequence 0 belong to nobody
        ours, theirs = (side[1:] if case.node.writes else side for side in (ours, theirs))
        difference = compare_edge(where, ours, theirs, step=0, bound=tag_bound(lowering, theirs.dtype))
        said = f"{where}, result {index}: relative L2 {difference.relative_l2:.2e}, {difference.num_different} differ"
        assert difference.is_within_bound, f"{said}; tag {lowering.numerics}"
        if case.is_exact or not theirs.is_floating_point():
            assert torch.equal(ours.nan_to_num(7.0), theirs.nan_to_num(7.0)), f"{said}; sums are exact here"


def tag_bound(lowering: Lowering, dtype: torch.dtype) -> Bound:
    """Return a tag as a bound on results of a dtype: a tolerance is at least one rounding to the neighbour."""
    if lowering.numerics.kind != "tolerance":
        return Bound(0, lowering.numerics.kind)
    return Bound(max(lowering.numerics.bound, NARROW_STEP.get(dtype, 0.0)), lowering.numerics.reason)


def _tuple(made: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return made if isinstance(made, tuple) else (made,)


def _randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _whole(*shape: int, seed: int = 0, largest: int = 4) -> Tensor:
    return torch.randint(-largest, largest + 1, shape, generator=torch.Generator().manual_seed(seed)).float()


def _midway(*shape: int) -> Tensor:
    """257 and 259, of both signs: midway between two bf16 numbers, one rounds down and one up."""
    return (
        torch.tensor([257.0, 259.0, -257.0, -259.0]).repeat(math.prod(shape) // 4 + 1)[: math.prod(shape)].view(shape)
    )


def _layer_norm() -> Iterator[TagCase]:
    node = LayerNorm(eps=1e-6)
    gain, bias = 1 + 0.3 * _randn(64, seed=1), 0.2 * _randn(64, seed=2)
    spreads = {"ordinary": 1.0, "spread of the eps": 1e-3, "far below the eps": 1e-6, "large": 1e4, "zeros": 0.0}
    for dtype in BOTH:
        for name, spread in spreads.items():
            x = spread * _randn(3, 64, seed=3)
            # with the bias beside it a wrong scale would drown
            for kind, shift in (("", bias), ("no bias, ", 0 * bias)):
                yield TagCase(f"{kind}{name} {dtype}", node, (x.to(dtype), gain.to(dtype), shift.to(dtype)))
        broken = _randn(3, 64, seed=4)
        broken[1, 5] = NAN
        yield TagCase(f"NaN row {dtype}", node, (broken.to(dtype), gain.to(dtype), bias.to(dtype)))
        # sums of whole numbers, so that a large mean cancels exactly
        shifted = 128.0 + _whole(3, 64, seed=5, largest=100)
        yield TagCase(f"large mean {dtype}", node, (shifted.to(dtype), gain.to(dtype), bias.to(dtype)))
        signs = torch.tensor([1.0, -1.0]).repeat(2, 32)
        shift = torch.tensor([256.0, 256.0, 258.0, 258.0]).repeat(16)
        exact = (signs, torch.ones(64), shift)
        yield TagCase(f"midway {dtype}", node, tuple(tensor.to(dtype) for tensor in exact), dtype == torch.bfloat16)


def _products(
    node: Node, x: Callable[[Tensor], Tensor], weight: Tensor, *, fan_in: int, width: int
) -> Iterator[TagCase]:
    """Cases of a product whose rows are [n, fan_in], shaped by `x`; `weight` holds NaN where it may not be read."""
    is_read = ~weight.isnan()
    for dtype in BOTH:
        for rows in NUM_ROWS:
            for name, scale in {"ordinary": 1.0, "large": 1e4, "tiny": 1e-6, "zeros": 0.0}.items():
                given = (x(scale * _randn(rows, width * fan_in, seed=6)), weight)
                yield TagCase(f"{name}, {rows} rows {dtype}", node, tuple(tensor.to(dtype) for tensor in given))
            broken = _randn(rows, width * fan_in, seed=7)
            broken[rows // 2, 0] = NAN
            yield TagCase(f"NaN row, {rows} rows {dtype}", node, (x(broken).to(dtype), weight.to(dtype)))
            whole = torch.where(is_read, _whole(*weight.shape, seed=8, largest=100), NAN)
            given = (x(_whole(rows, width * fan_in, seed=9)), whole)
            yield TagCase(f"midway, {rows} rows {dtype}", node, tuple(tensor.to(dtype) for tensor in given), True)


def _linear() -> Iterator[TagCase]:
    yield from _products(Linear(), lambda x: x, _randn(5, 67, seed=10), fan_in=67, width=1)


def _absorb_query() -> Iterator[TagCase]:
    for value_rows in (3, 0):
        kv_b = _randn(3, 5 + value_rows, 7, seed=11)
        kv_b[:, 5:] = NAN
        node = AbsorbQuery(v_head_dim=value_rows)
        yield from _products(node, lambda x: x.view(-1, 3, 5), kv_b.view(-1, 7), fan_in=5, width=3)


def _absorb_value() -> Iterator[TagCase]:
    for key_rows in (2, 0):
        kv_b = _randn(3, key_rows + 3, 7, seed=12)
        kv_b[:, :key_rows] = NAN
        node = AbsorbValue(v_head_dim=3, qk_nope_head_dim=key_rows)
        yield from _products(node, lambda x: x.view(-1, 3, 7), kv_b.view(-1, 7), fan_in=7, width=3)


def _append_cache() -> Iterator[TagCase]:
    for dtype in BOTH:
        # of one entry a block, the second slot belongs to somebody
        for entries in (4, 1):
            first, last = entries, 4 * entries - 1
            for name, slots in {
                "in order": [first, first + 1, first + 2],
                "first and last": [first, last, first + 1],
                "skipped": [-1, last, -1],
                "all skipped": [-1, -1, -1],
            }.items():
                cache, rows = _randn(4, entries, 3, seed=13), _randn(3, 3, seed=14)
                cache[0] = NAN
                rows[2, 1] = NAN
                given = (cache.to(dtype), rows.to(dtype), torch.tensor(slots))
                yield TagCase(f"{name}, {entries} entries {dtype}", AppendCache(), given)


def _append_tail() -> Iterator[TagCase]:
    runs = {
        "one row": [(1, 6, 1)],
        "as many as the ring": [(1, 2, 4)],
        "one more than the ring": [(1, 2, 5)],
        "longer than two rings": [(2, 3, 11)],
        "two sequences": [(1, 2, 3), (2, 7, 3)],
        "two long sequences": [(1, 0, 6), (2, 9, 7)],
        "nobody's rows": [(1, 5, 2), (0, 0, 3)],
    }
    for dtype in BOTH:
        for name, spans in runs.items():
            sequence = torch.tensor([slot for slot, _, count in spans for _ in range(count)])
            position = torch.tensor([start + row for _, start, count in spans for row in range(count)])
            tail = _randn(3, 4, 2, 3, seed=15)
            keys, gates = (_randn(len(sequence), 3, seed=seed) for seed in (16, 17))
            tail[0] = keys[-1, 0] = NAN
            given = (tail.to(dtype), keys.to(dtype), gates.to(dtype), position, sequence)
            yield TagCase(f"{name} {dtype}", AppendTail(), given)


def _indexer_scores() -> Iterator[TagCase]:
    for dtype in BOTH:
        for rows in NUM_ROWS:
            for pool in (4, 1):
                yield from _pool_scores(rows, pool, dtype)


def _pool_scores(rows: int, pool: int, dtype: torch.dtype) -> Iterator[TagCase]:
    node = IndexerScores(pool=pool)
    table = torch.tensor([[1, 2], [3, 4]]).repeat(5, 1)[:rows]
    # six pools a row: before the first, on its last token, just short of the next, all of them
    position = torch.tensor([pool - 1, 2 * pool - 2, 6 * pool - 1, 0, 3 * pool - 1]).repeat(2)[:rows]
    for name, scale in {"ordinary": 1.0, "large": 1e3, "tiny": 1e-5, "zeros": 0.0, "whole": -1.0}.items():
        # the root of three heads rounds, that of four is exact
        keys, query, weights = _randn(5, 3, 16, seed=18), _randn(rows, 3, 16, seed=19), _randn(rows, 3, seed=20)
        if name == "whole":
            keys, query, weights = _whole(5, 3, 16, seed=18), _whole(rows, 4, 16, seed=19), _whole(rows, 4, seed=20)
        keys, query = keys * abs(scale), query * abs(scale)
        keys[0] = NAN
        # keys of pools that no row has completed
        seen = {
            int(table[row].view(-1)[p // 3]) * 3 + p % 3
            for row in range(rows)
            for p in range((int(position[row]) + 1) // pool)
        }
        for entry in set(range(15)) - seen:
            keys.view(15, 16)[entry] = NAN
        given = (keys.to(dtype), query.to(dtype), weights.to(dtype), position, table)
        yield TagCase(f"{name}, pool {pool}, {rows} rows {dtype}", node, given, name == "whole")


def _routed_experts() -> Iterator[TagCase]:
    for dtype in BOTH:
        for rows in NUM_ROWS:
            yield from _expert_rows(rows, dtype)


def _expert_rows(rows: int, dtype: torch.dtype) -> Iterator[TagCase]:
    # experts 1 and 6 are chosen by nobody; every row shares one with its neighbour
    choices = torch.tensor([[0, 2, 4], [2, 3, 5], [0, 4, 5]]).repeat(3, 1)[:rows]
    unused = [expert for expert in range(7) if expert not in set(choices.flatten().tolist())]
    for name, limit, scale in (
        ("ordinary", 7.0, 1.0),
        ("clamped", 0.25, 3.0),
        ("tiny", 7.0, 1e-3),
        ("zeros", 7.0, 0.0),
    ):
        gate_up, down = _randn(7, 10, 16, seed=21), _randn(7, 16, 5, seed=22)
        gate_up[unused], down[unused] = NAN, NAN
        weights = _randn(rows, 3, seed=23).abs()
        weights[0, 0] = 0.0
        given = (scale * _randn(rows, 16, seed=24), gate_up, down)
        x, gate_up, down = (tensor.to(dtype) for tensor in given)
        yield TagCase(f"{name}, {rows} rows {dtype}", RoutedExperts(limit=limit), (x, choices, weights, gate_up, down))
    # one inner column: every sum has one term or whole terms, so each rounding stands alone
    gate_up, down = _whole(7, 2, 16, seed=25), _whole(7, 16, 1, seed=26)
    gate_up[unused], down[unused] = NAN, NAN
    for limit in (3.0, 1000.0):
        given = (_whole(rows, 16, seed=27) + 0.25, gate_up, down)
        x, wide_gate_up, wide_down = (tensor.to(dtype) for tensor in given)
        arguments = (x, choices, _randn(rows, 3, seed=28).abs(), wide_gate_up, wide_down)
        yield TagCase(
            f"roundings alone, limit {limit}, {rows} rows {dtype}", RoutedExperts(limit=limit), arguments, True
        )


def _select_topk() -> Iterator[TagCase]:
    for topk, pool in ((13, 4), (8, 4), (3, 1), (2, 4), (40, 2)):
        for pools in (1, 3, 7, 17, 70, 600):
            yield from _pools(SelectTopk(topk=topk, pool=pool), pools)
    yield from _pools(SelectTopk(topk=241, pool=2), 300)


def _pools(node: SelectTopk, pools: int) -> Iterator[TagCase]:
    full = pools * node.pool
    # just before, on and after the last token of a pool, the first token, and every pool complete
    position = torch.tensor([0, node.pool - 1, node.pool, full - 2, full - 1, full // 2]).clamp(min=0)
    rows = len(position)
    coarse = torch.randint(-2, 3, (rows, pools), generator=torch.Generator().manual_seed(29)).float()
    kinds = {
        "random": _randn(rows, pools, seed=30),
        "ties": coarse,
        "all equal": torch.zeros(rows, pools),
        "zeros of both signs": torch.where(coarse < 0, -0.0, 0.0),
        "ascending": torch.arange(pools).float().expand(rows, pools).clone(),
        "neighbours": _neighbours(pools).expand(rows, pools).clone(),
        "negative neighbours": -_neighbours(pools).expand(rows, pools).clone(),
        "NaN and infinity": torch.where(coarse == 2, NAN, torch.where(coarse == 1, INF, coarse)),
    }
    last_token = (torch.arange(pools) + 1) * node.pool - 1
    for name, scores in kinds.items():
        masked = scores.masked_fill(last_token > position.unsqueeze(1), -INF)
        yield TagCase(f"{name}, topk {node.topk}, pool {node.pool}, {pools} pools", node, (masked, position))


def _neighbours(count: int) -> Tensor:
    """Three numbers over and over between which float32 has no other."""
    return (torch.tensor(1.0).view(torch.int32) + torch.arange(count) * 7 % 3).to(torch.int32).view(torch.float32)


def _sparse_mla() -> Iterator[TagCase]:
    for dtype in BOTH:
        for rows in NUM_ROWS:
            yield from _attention_rows(rows, dtype)


def _attention_rows(rows: int, dtype: torch.dtype) -> Iterator[TagCase]:
    node = SparseMlaAttention(scale=0.5)
    table = torch.tensor([[1, 2], [4, 3]]).repeat(5, 1)[:rows]
    # a full selection, one of a single row, one of none, one with gaps; token 5 is selected by nobody
    selected = torch.tensor([[0, 1, 2, 3, 4], [4, -1, -1, -1, -1], [-1] * 5, [0, -1, 3, -1, -1]]).repeat(3, 1)[:rows]
    for name, scale in {"ordinary": 1.0, "flat": 1e-3, "zeros": 0.0}.items():
        latent, query = _randn(5, 3, 8, seed=31), scale * _randn(rows, 3, 8, seed=32)
        latent[0], latent[2, 2], latent[3, 2] = NAN, NAN, NAN
        yield TagCase(f"{name}, {rows} rows {dtype}", node, (latent.to(dtype), query.to(dtype), selected, table))
    latent = _whole(5, 3, 8, seed=33)
    latent[0], latent[2, 2], latent[3, 2] = NAN, NAN, NAN
    query = _whole(rows, 3, 8, seed=34)
    yield TagCase(f"peaked, {rows} rows {dtype}", node, (latent.to(dtype), query.to(dtype), selected, table))
    # equal scores of two rows: probabilities of a half, results midway
    even = torch.tensor([[0, 1, -1, -1, -1], [2, 3, -1, -1, -1]]).repeat(5, 1)[:rows]
    halves = torch.where(torch.arange(3).view(1, 3, 1) % 2 == 0, 256.0, _midway(8) * 2 - 256.0).expand(5, 3, 8).clone()
    halves[..., 0] = 0.0
    arguments = (halves.to(dtype), torch.zeros(rows, 3, 8).to(dtype), even, table)
    yield TagCase(f"midway, {rows} rows {dtype}", node, arguments, dtype == torch.bfloat16)
    # probabilities of a third are rounded to bf16 before they meet latents, and their sum is exact then
    three = torch.tensor([[0, 1, 2, -1, -1], [4, 3, 1, -1, -1]]).repeat(5, 1)[:rows]
    arguments = (_whole(5, 3, 8, seed=39, largest=100).to(dtype), torch.zeros(rows, 3, 8).to(dtype), three, table)
    yield TagCase(f"thirds, {rows} rows {dtype}", node, arguments, dtype == torch.bfloat16)


def _topk_router() -> Iterator[TagCase]:
    alone = TopkRouter(top_k=1, n_group=1, topk_group=1, norm_topk_prob=True, scale=2.5)
    yield TagCase("one expert", alone, (torch.zeros(2, 1), torch.zeros(1)))
    for n_group, topk_group in ((1, 1), (2, 1), (3, 2), (4, 1)):
        for norms in (True, False):
            for scale in (2.5, 1.0):
                node = TopkRouter(top_k=3, n_group=n_group, topk_group=topk_group, norm_topk_prob=norms, scale=scale)
                yield from _router_rows(node)


def _router_rows(node: TopkRouter) -> Iterator[TagCase]:
    coarse = torch.randint(-2, 3, (5, 12), generator=torch.Generator().manual_seed(35)).float()
    for name, logits in {
        "random": _randn(5, 12, seed=36),
        "ties": coarse,
        "all equal": torch.zeros(5, 12),
        # sigmoids of the size of the 1e-20 in the sum
        "vanishing": -45.0 + coarse,
        "underflowing": -200.0 + coarse,
        "saturated": 40.0 + coarse,
        "NaN": torch.where(coarse == 2, NAN, coarse),
    }.items():
        for kind, bias in {"no bias": torch.zeros(12), "bias": _randn(12, seed=37), "one bias": _one_biased()}.items():
            yield TagCase(f"{name}, {kind}, {node}", node, (logits, bias))


def _one_biased() -> Tensor:
    # enough to choose an expert whatever its score, and to let its group win alone
    bias = torch.zeros(12)
    bias[10] = 1.5
    return bias


_CASES: dict[str, Callable[[], Iterator[TagCase]]] = {
    "AbsorbQuery": _absorb_query,
    "AbsorbValue": _absorb_value,
    "AppendCache": _append_cache,
    "AppendTail": _append_tail,
    "IndexerScores": _indexer_scores,
    "LayerNorm": _layer_norm,
    "Linear": _linear,
    "RoutedExperts": _routed_experts,
    "SelectTopk": _select_topk,
    "SparseMlaAttention": _sparse_mla,
    "TopkRouter": _topk_router,
}
