"""The bytes that launches take at the released sizes are the bytes that the nodes declare; nothing more is read.

A launch takes views; what only its own region works on, scratch and counters, is nobody's cost. Of a stack of experts,
the embedding table and the caches a launch reads some rows, as many as the declared cost counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from math import prod

import pytest

from circuit import Call
from compiler.compile import Compiled
from compiler.region import Region
from compiler.triton.emission import LaunchPlan
from compiler.triton.launch import View
from drafts.commands.plan_subject import plan_subject
from drafts.plan_drafter import bind_without_weights
from drafts.triton_runner import compile_for_launches, launch_circuit, launch_plan

BLOCKS = 256  # of 16 rows: a context of 4096
EXACT = (
    "entry",
    "in_proj",
    "absorb_index",
    "sparse_mla",
    "o_proj",
    "router_shared",
    "experts",
    "lm_head",
)


@cache
def released() -> tuple[Compiled, LaunchPlan]:
    """Two drafts of one row at the released sizes; no weight has memory."""
    subject = plan_subject("glm-5.3-flash", dtype_name="bf16")
    binding = bind_without_weights(subject.config, subject.decisions)
    compiled = compile_for_launches(
        binding,
        launch_circuit(binding, num_drafts=2),
        num_rows=1,
        max_blocks=BLOCKS,
        num_blocks=BLOCKS + 1,
        num_sequences=2,
    )
    return compiled, launch_plan(compiled, name="released")


def region_of(rule: str, draft: int) -> tuple[int, Call]:
    calls = [
        (index, call)
        for index, call in enumerate(released()[0].circuit.calls)
        if isinstance(call.node, Region) and call.node.rule == rule
    ]
    return calls[draft - 1]


def declared_bytes(call: Call) -> int:
    cost = call.node.cost(*(arg.type for arg in call.args))
    return cost.bytes_read + cost.bytes_written


def taken_bytes(index: int, call: Call) -> int:
    """Bytes of the views that the launches of a call take, each once, its own work memory aside."""
    plan = released()[1]
    ours = {view for launch, of in zip(plan.launches, plan.calls, strict=True) if of == index for view in launch.views}
    others = {
        view.buffer
        for launch, of in zip(plan.launches, plan.calls, strict=True)
        if of != index
        for view in launch.views
    }
    kept = {view.buffer for view in plan.outputs.values()}
    shared = [
        view
        for view in ours
        if plan.buffers[view.buffer].kind not in ("arena", "counter") or view.buffer in others | kept
    ]
    return sum(bytes_of(view, shared) for view in shared)


def bytes_of(view: View, beside: Iterable[View]) -> int:
    """What is read or written of a view."""
    num_bytes = prod(view.shape) * view.dtype.itemsize
    config = plan_subject("glm-5.3-flash", dtype_name="bf16").config
    match view.buffer:
        case "embed_tokens":
            return num_bytes // view.shape[0]
        case "mlp.experts.gate_up_proj" | "mlp.experts.down_proj":
            return num_bytes // view.shape[0] * config.num_experts_per_tok
        case "index_keys":
            # the null block is nobody's
            return num_bytes // view.shape[0] * BLOCKS
        case "latent_cache":
            selected = next(other for other in beside if other.buffer.startswith("selected"))
            return prod(selected.shape) * view.shape[-1] * view.dtype.itemsize
    return num_bytes


@pytest.mark.parametrize("draft", [1, 2])
@pytest.mark.parametrize("rule", EXACT)
def test_launches_take_the_bytes_that_their_region_declares(rule: str, draft: int) -> None:
    index, call = region_of(rule, draft)
    assert taken_bytes(index, call) == declared_bytes(call)


@pytest.mark.parametrize("draft", [1, 2])
def test_launch_of_q_up_takes_what_it_declares_but_for_rows_of_the_caches(draft: int) -> None:
    """A row's entries of the three caches, and the pool that it may complete: 8 kB beside 63 MB."""
    index, call = region_of("q_up", draft)
    plan = released()[1]
    launch = plan.launches[plan.calls.index(index)]
    states = sum(prod(view.shape) * 2 for view in set(launch.views) if plan.buffers[view.buffer].kind == "state")
    plain = sum(prod(view.shape) * view.dtype.itemsize for view in set(launch.views)) - states
    assert abs(plain - declared_bytes(call)) < 8192


def test_every_weight_of_the_program_is_taken_by_a_launch() -> None:
    """Eleven launches a draft; what the program declares and none takes would be memory for nothing."""
    compiled, plan = released()
    assert len(plan.launches) == 22
    taken = {view.buffer for launch in plan.launches for view in launch.views}
    assert set(compiled.circuit.weights) <= taken
