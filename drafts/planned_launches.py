"""The launches that one draft of the GLM-5.3-Flash head takes on a GPU: eleven, by the values that each makes.

Their names are those of the Triton backend's rules; values carry the names of `glm5_next.mtp_head`. A draft that lacks
some of them, as drafts 2..K without an indexer, has the same launches with less in them.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace

from circuit import Call, Circuit, Cost, LoweringError
from compiler import (
    AFTER_SPECIALISING,
    LaunchCost,
    Request,
    collectives,
    compile_circuit,
    group_launches,
    plan_compiled,
    split_launch,
    target_of,
)
from compiler.triton import emit

PLANNED_LAUNCHES: dict[str, tuple[str, ...]] = {
    "entry": ("drafter_hidden", "embedded", "e_normed", "h_normed", "eh_in", "eh_out"),
    "in_proj": ("attn_in", "q_a", "kv_a", "idx_k_raw", "idx_gate", "idx_w"),
    "q_up": (
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
    "absorb_index": (
        "q_heads",
        "q_latent",
        "idx_q_heads",
        "index_scores",
        "chosen",
        "selected",
    ),
    "mla_split": ("attended",),
    "combine_values": ("attn_heads",),
    "o_proj": ("attn_out", "x1"),
    "router_shared": (
        "moe_in",
        "router_in",
        "router_logits",
        "router_ids",
        "shared_gate",
        "shared_up",
        "shared_active",
    ),
    "experts_down": ("experts_out", "shared_out", "moe_out", "block_out"),
    "lm_head": (
        "head_normed",
        "logits",
        "allowed_logits",
        "draft_row",
        "draft",
        "confidence",
    ),
}


LAUNCH_OF = {value: launch for launch, values in PLANNED_LAUNCHES.items() for value in values}
# one node that takes two launches: every row of gate_up has to be there before the first of down
ROUTED = ("experts_out", "mlp.experts.gate_up_proj", "experts_up")
NO_RULE = "no rule"
PART = ".part"  # ends the name of a rank's part of a sum
# what waits for a sum over ranks runs with what comes after it
AFTER_SUM = {"attn_out": ("router_shared", ("x1",)), "experts_out": ("lm_head", ("moe_out", "block_out"))}


def planned_launches(circuit: Circuit, dims: Mapping[str, int]) -> tuple[LaunchCost, ...]:
    """Return the launches of one draft whose dims are bound, with the tags and the kernels of the Triton backend.

    A region that starts two launches has one cost; bytes are told apart per launch here. The kernel is `no rule` where
    the backend has none for this form of a draft.
    """
    exchanges = {call.results[0].name: call for call in collectives(circuit)}
    grouped = group_launches(circuit, _launch_of(exchanges), numerics=NO_RULE, kernel=NO_RULE)
    value, weight, name = ROUTED
    value = f"{value}{PART}" if value in exchanges else value
    launches = split_launch(circuit, grouped, value=value, weight=weight, name=name)
    if exchanges:
        # no rule is for one rank of several
        return tuple(_exchange_tag(launch, exchanges) for launch in launches)
    target = target_of("triton")
    try:
        compiled = compile_circuit(circuit, Request(target, dims), passes=AFTER_SPECIALISING)
        plan = plan_compiled(compiled, name=circuit.name, target=target, dims=dims)
        emitted = emit(compiled.circuit, name=circuit.name).launches
    except LoweringError:
        return launches
    kernels = {launch.name: launch.kernel for launch in emitted}
    tags = {started: call.numerics for call in plan.calls for started in call.launches}
    launches = tuple(part for launch in launches for part in _certified(launch, kernels))
    return tuple(
        replace(launch, numerics=tags[launch.name], kernel=kernels[launch.name]) if launch.name in kernels else launch
        for launch in launches
    )


def _certified(launch: LaunchCost, kernels: Mapping[str, str]) -> tuple[LaunchCost, ...]:
    """Return the head's launch as the two that a certified one starts; what the second reads is known on the device."""
    if launch.name != "lm_head" or "lm_head_bounds" not in kernels:
        return (launch,)
    whole, *in_bytes = launch.weights
    first = replace(launch, name="lm_head_bounds", weights=tuple(in_bytes), element_bytes=1)
    return first, replace(launch, name="lm_head_rescore", cost=Cost(), weights=(whole,), weight_bytes=0)


def _launch_of(exchanges: Collection[str]) -> dict[str, str]:
    """Return the launch of each value where those of `exchanges` are made whole by one, a launch of its own."""
    summed = {name: AFTER_SUM[name] for name in AFTER_SUM if name in exchanges}
    moved = {value for _, values in summed.values() for value in values}
    launch_of: dict[str, str] = {}
    for launch, values in PLANNED_LAUNCHES.items():
        # in front of what the launch has of its own
        launch_of |= {value: launch for to, late in summed.values() if to == launch for value in late}
        here = [value for value in values if value not in moved]
        for value in here:
            parts = (f"{value}{PART}", f"{value}.value") if value in exchanges else (value,)
            launch_of |= dict.fromkeys(parts, launch)
        launch_of |= {value: f"exchange {value}" for value in here if value in exchanges}
    return launch_of


def _exchange_tag(launch: LaunchCost, exchanges: Mapping[str, Call]) -> LaunchCost:
    call = exchanges.get(launch.values[0])
    if call is None:
        return launch
    return replace(launch, numerics="exchange", kernel=f"{call.node.exchange} over {call.node.attributes()['axis']}")
