"""The launches that one draft of the GLM-5.3-Flash head is designed to take on a GPU: eleven, by the values they make.

Values carry the names of `glm5_next.mtp_head`. A draft that lacks some of them, as drafts 2..K without an indexer, has
the same launches with less in them.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from circuit import Circuit, LoweringError
from compiler import LaunchCost, group_launches, plan_program, split_launch

PLANNED_LAUNCHES: dict[str, tuple[str, ...]] = {
    "embed, norms, eh_proj": ("drafter_hidden", "embedded", "e_normed", "h_normed", "eh_in", "eh_out"),
    "norm, projections": ("attn_in", "q_a", "kv_a", "idx_k_raw", "idx_gate", "idx_w"),
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
        "next_position",
    ),
    "W_UK, score, top-k": (
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
    "router, shared up": (
        "moe_in",
        "router_in",
        "router_logits",
        "router_ids",
        "shared_gate",
        "shared_up",
        "shared_active",
    ),
    "downs, sum, residual": ("experts_out", "shared_out", "moe_out", "block_out"),
    "lm_head, argmax": (
        "head_normed",
        "logits",
        "allowed_logits",
        "draft",
        "confidence",
    ),
}


LAUNCH_OF = {value: launch for launch, values in PLANNED_LAUNCHES.items() for value in values}
# one node that takes two launches: every row of gate_up has to be there before the first of down
ROUTED = ("experts_out", "mlp.experts.gate_up_proj", "routed gate_up")
PLANNED = "planned"


def planned_launches(circuit: Circuit, dims: Mapping[str, int]) -> tuple[LaunchCost, ...]:
    """Return the launches of one draft whose dims are bound, under the names and tags of the Triton backend's rules.

    The rules fuse regions, of which two start two launches each; bytes are told apart per launch here. Kernels carry
    `planned` until there is code for them, and `no rule` where the backend has none for this form of a draft.
    """
    grouped = group_launches(circuit, LAUNCH_OF, numerics=PLANNED, kernel=f"{PLANNED}, no rule")
    value, weight, name = ROUTED
    launches = split_launch(circuit, grouped, value=value, weight=weight, name=name)
    try:
        planned = plan_program(circuit, name=circuit.name, backend="triton", dims=dims)
    except LoweringError:
        return launches
    regions = {call.rule: call for call in planned.calls if call.rule}
    rule_of = {result: call.rule for call in planned.calls for held in call.body for result in held.results}
    started: Counter[str] = Counter()
    tagged = []
    for launch in launches:
        # views may stand in the region before: the one that holds most of the launch is meant
        held = Counter(rule_of[value] for value in launch.values if value in rule_of).most_common(1)
        region = regions[held[0][0]] if held else None
        if region is None or started[region.rule] == len(region.launches):
            tagged.append(launch)
            continue
        kernel = region.launches[started[region.rule]]
        started[region.rule] += 1
        kernel = f"{kernel}, {PLANNED}" if region.is_planned else kernel
        tagged.append(replace(launch, numerics=region.numerics, kernel=kernel))
    return tuple(tagged)
