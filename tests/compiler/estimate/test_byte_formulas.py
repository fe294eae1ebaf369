"""The bytes of every call of the released config's draft, by formulas written out here and from no cost of a node.

n rows, one a sequence, of C context rows in whole blocks; bf16 is 2 bytes, float32 4, a position, an id or a slot 8.
"""

from collections.abc import Callable

import pytest

from circuit import Circuit
from compiler import bind_dims
from drafts.commands.plan_subject import plan_subject
from drafts.decisions import default_decisions
from drafts.plan_drafter import bind_without_weights

HIDDEN, VOCAB, Q_RANK, RANK = 4096, 154880, 1536, 512
HEADS, NOPE, V = 64, 256, 256
INDEX_HEADS, INDEX_WIDTH, KPOOL, TOPK = 32, 128, 4, 2048
EXPERTS, TOP_K, INTER = 288, 8, 2048
DRAFTS = 16  # the longest chain a selection grows by
WIDTH = TOPK + KPOOL - 1
GROWN = WIDTH + DRAFTS - 1
SIZES = [(1, 4096), (3, 4096), (16, 131072)]

Bytes = Callable[[int, int], int]


def linear(inner: int, outer: int, *, element: int = 2) -> tuple[Bytes, Bytes]:
    return lambda n, c: element * (n * inner + outer * inner), lambda n, c: element * n * outer


def norm(width: int) -> tuple[Bytes, Bytes]:
    return lambda n, c: 2 * (n * width + width), lambda n, c: 2 * n * width


def distinct(n: int) -> float:
    return EXPERTS * (1 - (1 - TOP_K / EXPERTS) ** n)


def rows(read: int, written: int) -> tuple[Bytes, Bytes]:
    """So many bytes a row."""
    return lambda n, c: n * read, lambda n, c: n * written


FORMULAS: dict[str, tuple[Bytes, Bytes]] = {
    "drafter_hidden": norm(HIDDEN),
    "embedded": rows(8 + 2 * HIDDEN, 2 * HIDDEN),  # the token, and one row of the table
    "e_normed": norm(HIDDEN),
    "h_normed": norm(HIDDEN),
    "eh_in": rows(2 * 2 * HIDDEN, 2 * 2 * HIDDEN),
    "eh_out": linear(2 * HIDDEN, HIDDEN),
    "attn_in": norm(HIDDEN),
    "q_a": linear(HIDDEN, Q_RANK),
    "q_a_normed": norm(Q_RANK),
    "q": linear(Q_RANK, HEADS * NOPE),
    "kv_a": linear(HIDDEN, RANK),
    "latent": norm(RANK),
    "latent_cache_slots": rows(8 + 8, 8),
    "next_latent_cache": rows(2 * RANK + 8, 2 * RANK),
    "idx_q": linear(Q_RANK, INDEX_HEADS * INDEX_WIDTH),
    "idx_k_raw": linear(HIDDEN, INDEX_WIDTH),
    # gain and bias
    "idx_k": (lambda n, c: 2 * (n + 2) * INDEX_WIDTH, lambda n, c: 2 * n * INDEX_WIDTH),
    "idx_gate": linear(HIDDEN, INDEX_WIDTH),
    "idx_w": linear(HIDDEN, INDEX_HEADS),
    # key and gate of every row of a pool, the position bias of each of its places, position and sequence
    "pool_key": (
        lambda n, c: n * 2 * KPOOL * 2 * INDEX_WIDTH + 2 * KPOOL * INDEX_WIDTH + n * 16,
        lambda n, c: 2 * n * INDEX_WIDTH,
    ),
    "next_tail": rows(2 * 2 * INDEX_WIDTH + 16, 2 * 2 * INDEX_WIDTH),
    "index_keys_slots": rows(8 + 8, 8),
    "next_index_keys": rows(2 * INDEX_WIDTH + 8, 2 * INDEX_WIDTH),
    "idx_q_heads": rows(0, 0),
    # the keys of all pools of every sequence, query, head weights, position, block table; a float32 a pool
    "index_scores": (
        lambda n, c: n * (c // KPOOL * 2 * INDEX_WIDTH + 2 * INDEX_HEADS * (INDEX_WIDTH + 1) + 8 + c // 16 * 8),
        lambda n, c: n * 4 * (c // KPOOL),
    ),
    "chosen": (lambda n, c: n * (4 * (c // KPOOL) + 8), lambda n, c: n * 8 * WIDTH),
    "selected": rows(8 * WIDTH + 16, 8 * GROWN),
    "q_heads": rows(0, 0),
    "q_latent": (lambda n, c: 2 * HEADS * NOPE * (n + RANK), lambda n, c: 2 * n * HEADS * RANK),
    # the selected latents alone, whatever the context; query, ids, block table
    "attended": (
        lambda n, c: n * (GROWN * 2 * RANK + 2 * HEADS * RANK + 8 * GROWN + c // 16 * 8),
        lambda n, c: 2 * n * HEADS * RANK,
    ),
    "attn_heads": (lambda n, c: 2 * (n * HEADS * RANK + HEADS * V * RANK), lambda n, c: 2 * n * HEADS * V),
    "attn_out": linear(HEADS * V, HIDDEN),
    "x1": rows(2 * 2 * HIDDEN, 2 * HIDDEN),
    "moe_in": norm(HIDDEN),
    "router_in": rows(2 * HIDDEN, 4 * HIDDEN),
    "router_logits": linear(HIDDEN, EXPERTS, element=4),
    "router_ids": (lambda n, c: 4 * (n * EXPERTS + EXPERTS), lambda n, c: n * TOP_K * (8 + 4)),
    # gate, up and down of the experts that the rows touch, the rows, their ids and weights
    "experts_out": (
        lambda n, c: round(distinct(n) * 3 * 2 * HIDDEN * INTER) + n * (2 * HIDDEN + TOP_K * (8 + 4)),
        lambda n, c: 2 * n * HIDDEN,
    ),
    "shared_gate": linear(HIDDEN, INTER),
    "shared_up": linear(HIDDEN, INTER),
    "shared_active": rows(2 * 2 * INTER, 2 * INTER),
    "shared_out": linear(INTER, HIDDEN),
    "moe_out": rows(2 * 2 * HIDDEN, 2 * HIDDEN),
    "block_out": rows(2 * 2 * HIDDEN, 2 * HIDDEN),
    "head_normed": norm(HIDDEN),
    "logits": linear(HIDDEN, VOCAB),
    "draft": rows(2 * VOCAB, 8),
    "next_position": rows(8, 8),
}


def released_draft(n: int, context: int) -> Circuit:
    config = plan_subject("glm-5.3-flash", dtype_name=None).config
    binding = bind_without_weights(config, default_decisions(config))
    blocks = context // binding.state_layout.block_size
    dims = {**binding.dims, "n": n, "max_blocks": blocks, "num_blocks": n * blocks + 1, "num_sequences": n + 1}
    return bind_dims(binding.step(is_first=True), dims)


@pytest.mark.parametrize("n, context", SIZES)
def test_every_call_of_a_draft_costs_its_formula(n: int, context: int) -> None:
    calls = {call.results[0].name: call for call in released_draft(n, context).calls}
    assert calls.keys() == FORMULAS.keys()
    for name, (read, written) in FORMULAS.items():
        cost = calls[name].node.cost(*(arg.type for arg in calls[name].args))
        # the average of distinct experts is rounded once here and once there
        assert abs(cost.bytes_read - read(n, context)) <= (name == "experts_out"), name
        assert cost.bytes_written == written(n, context), name


def test_a_draft_of_one_row_reads_what_the_design_says() -> None:
    read = sum(call.node.cost(*(arg.type for arg in call.args)).bytes_read for call in released_draft(1, 4096).calls)
    assert round(read / 1e9, 2) == 2.05
    assert 470 < read / 4.3e12 * 1e6 < 480
    assert round(2 * VOCAB * HIDDEN / read, 2) == 0.62
