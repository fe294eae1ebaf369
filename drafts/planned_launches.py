"""The launches that one draft of the GLM-5.3-Flash head is designed to take on a GPU: eleven, by the values they make.

Values carry the names of `glm5_next.mtp_head`. A draft that lacks some of them, as drafts 2..K without an indexer, has
the same launches with less in them.
"""

from circuit import Circuit
from compiler import LaunchCost, group_launches, split_launch

PLANNED_LAUNCHES: dict[str, tuple[str, ...]] = {
    "embed, norms, eh_proj": ("drafter_hidden", "embedded", "e_normed", "h_normed", "eh_in", "eh_out"),
    "norm, projections of x": ("attn_in", "q_a", "kv_a", "idx_k_raw", "idx_gate", "idx_w"),
    "q_b, wq_b, cache rows": (
        "q_a_normed",
        "q",
        "latent",
        "latent_cache_slots",
        "next_latent_cache",
        "idx_q",
        "idx_k",
        "pool_key",
        "next_tail",
        "index_keys_slots",
        "next_index_keys",
    ),
    "W_UK, scores, top pools": (
        "q_heads",
        "q_latent",
        "idx_q_heads",
        "index_scores",
        "chosen",
        "selected",
    ),
    "attend selected rows": ("attended",),
    "absorb W_UV": ("attn_heads",),
    "o_proj, residual": ("attn_out", "x1"),
    "router, shared gate_up": (
        "moe_in",
        "router_in",
        "router_logits",
        "router_ids",
        "shared_gate",
        "shared_up",
    ),
    "downs, sum, residual": ("experts_out", "shared_active", "shared_out", "moe_out", "block_out"),
    "lm_head, argmax": (
        "head_normed",
        "logits",
        "allowed_logits",
        "draft",
        "confidence",
        "next_position",
    ),
}


LAUNCH_OF = {value: launch for launch, values in PLANNED_LAUNCHES.items() for value in values}
# one node that takes two launches: every row of gate_up has to be there before the first of down
ROUTED = ("experts_out", "mlp.experts.gate_up_proj", "routed gate_up")
PLANNED = "planned"


def planned_launches(circuit: Circuit) -> tuple[LaunchCost, ...]:
    """Return the launches of one draft whose dims are bound, as designed: none of them is built yet."""
    grouped = group_launches(circuit, LAUNCH_OF, numerics=PLANNED, kernel=PLANNED)
    value, weight, name = ROUTED
    return split_launch(circuit, grouped, value=value, weight=weight, name=name)
