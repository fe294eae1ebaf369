"""The router's choice of experts: exact, and the lowest index wins every tie."""

import triton
import triton.language as tl

from compiler.kernels.numerics import packed, packed_index


@triton.jit
def expert_keys(choice, EXPERTS: tl.constexpr):
    """Return keys of scores [r, e] that sort like them, the lowest index first; lanes past the experts get 0.

    Experts count from one: expert 0 at NaN would have the largest key of all, which bounds those not yet chosen.
    """
    number = tl.arange(0, choice.shape[1])[None, :] + tl.full(choice.shape, 1, tl.int32)
    return tl.where(number <= EXPERTS, packed(choice, number), 0)


@triton.jit
def in_best_groups(choice, EXPERTS: tl.constexpr, N_GROUP: tl.constexpr, TOPK_GROUP: tl.constexpr):
    """Whether each expert [r, e] lies in one of its row's TOPK_GROUP best groups, by the sum of two best scores."""
    rows: tl.constexpr = choice.shape[0]
    size: tl.constexpr = EXPERTS // N_GROUP
    expert = tl.arange(0, choice.shape[1])[None, :]
    keys = expert_keys(choice, EXPERTS)
    last = tl.full([rows], 0xFFFFFFFFFFFFFFFF, tl.uint64)
    is_best = tl.full(choice.shape, 0, tl.int1)
    for _ in range(TOPK_GROUP):
        best = tl.zeros([rows], tl.uint64)
        for group in range(N_GROUP):
            in_group = expert // size == group
            inside = tl.where(in_group, keys, 0)
            first = packed_index(tl.max(inside, 1))[:, None] - 1
            second = packed_index(tl.max(tl.where(expert == first, 0, inside), 1))[:, None] - 1
            score = tl.sum(tl.where((expert == first) | (expert == second), choice, 0.0), 1)
            key = packed(score, group + tl.full([rows], 1, tl.int32))
            best = tl.where((key < last) & (key > best), key, best)
        last = best
        is_best = is_best | (expert // size == packed_index(best)[:, None] - 1)
    return is_best


@triton.jit
def choose_experts(
    ids_ptr,
    weights_ptr,
    logits_ptr,
    bias_ptr,
    first_row,
    ROWS: tl.constexpr,
    EXPERTS: tl.constexpr,
    TOP_K: tl.constexpr,
    N_GROUP: tl.constexpr,
    TOPK_GROUP: tl.constexpr,
    IS_NORMED: tl.constexpr,
    SCALE: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_E: tl.constexpr,
):
    """Write the experts of BLOCK_R rows, ascending, and their weights: sigmoid scores, chosen by score plus bias.

    Logits, ids and weights lie row by row without gaps.
    """
    row = first_row + tl.arange(0, BLOCK_R)
    expert = tl.arange(0, BLOCK_E)
    is_live = (row < ROWS)[:, None] & (expert < EXPERTS)[None, :]
    # other multiprocessors wrote them: not from this one's first cache
    logits_ptrs = logits_ptr + row[:, None] * EXPERTS + expert[None, :]
    logits = tl.load(logits_ptrs, mask=is_live, other=0.0, cache_modifier=".cg")
    bias = tl.load(bias_ptr + expert, mask=expert < EXPERTS, other=0.0)
    scores = 1.0 / (1.0 + tl.exp(-logits))
    choice = scores + bias[None, :]
    if N_GROUP > 1:
        is_best = in_best_groups(choice, EXPERTS, N_GROUP, TOPK_GROUP)
        choice = tl.where(is_best, choice, float("-inf"))
    keys = expert_keys(choice, EXPERTS)
    last = tl.full([BLOCK_R], 0xFFFFFFFFFFFFFFFF, tl.uint64)
    for _ in range(TOP_K):
        last = tl.max(tl.where(keys < last[:, None], keys, 0), 1)
    is_chosen = keys >= last[:, None]
    place = tl.cumsum(is_chosen.to(tl.int32), 1) - 1
    weights = tl.where(is_chosen, scores, 0.0)
    if IS_NORMED:
        weights = weights / (tl.sum(weights, 1)[:, None] + 1e-20)
    at = row[:, None] * TOP_K + place
    tl.store(ids_ptr + at, expert[None, :].to(tl.int64) + tl.zeros(choice.shape, tl.int64), mask=is_chosen & is_live)
    tl.store(weights_ptr + at, weights * SCALE, mask=is_chosen & is_live)
