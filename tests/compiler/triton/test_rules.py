"""The launches of the head on a GPU: all eleven fire, and nothing is left over."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from circuit import Circuit, LoweringError
from compiler import chain
from compiler.plan import ProgramPlan, plan_program, require_runnable
from compiler.registry import region_rules
from drafts.binding import DraftBinding, bind_head
from drafts.config import DraftConfig
from drafts.decisions import Decisions
from drafts.weights import head_weight_specs
from tests.drafts.tiny_head import tiny_config
from tests.support.head_scene import DECISIONS

LAUNCHES = (
    "entry",
    "in_proj",
    "q_up",
    "absorb_index",
    "mla_split",
    "combine_values",
    "o_proj",
    "router_shared",
    "experts_up",
    "experts_down",
    "lm_head",
)
OTHER_HEADS = {"lm_head_certified", "lm_head_int8"}  # rules of the lever draft_head
# the released sizes, pools of 4
REAL = {
    "vocab_size": 154880,
    "hidden_size": 4096,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 256,
    "qk_head_dim": 256,
    "v_head_dim": 256,
    "index_n_heads": 32,
    "index_head_dim": 128,
    "index_kpool": 4,
    "index_topk": 2048,
    "n_routed_experts": 288,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
}
# what the study of these launches counted at batch 1 in bf16, megabytes read; scores are those of a short context
MEGABYTES = {
    "entry": 67.1,
    "in_proj": 19.1,
    "q_up": 62.9,
    "absorb_index": 16.8,
    "sparse_mla": 16.8 + 2.1,
    "o_proj": 134.2,
    "router_shared": 38.3,
    "experts": 268.4 + 151.0,
    "lm_head": 1268.8,
}


def bound(config: DraftConfig, **decisions: Any) -> DraftBinding:
    """The head over weights that have a shape and no memory."""
    made = Decisions(**decisions)
    specs = head_weight_specs(config, target_norm=made.applies_target_norm)
    weights = {spec.name: torch.empty(spec.shape, dtype=spec.dtype, device="meta") for spec in specs}
    return bind_head(config, weights, made, block_size=16, max_num_drafts=3)


def planned(circuit: Circuit, config: DraftConfig, *, rows: int = 1, blocks: int = 2) -> ProgramPlan:
    sizes = {"n": rows, "max_blocks": blocks, "num_blocks": rows * blocks + 1, "num_sequences": rows + 1}
    dims = {**sizes, "tail_depth": config.index_kpool + 3, "mask_words": -(-config.vocab_size // 32)}
    return plan_program(circuit, name="p", backend="triton", dims=dims)


@pytest.fixture(params=DECISIONS, ids=list(DECISIONS))
def decisions(request: pytest.FixtureRequest) -> dict[str, str]:
    return DECISIONS[request.param]


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("changes", [{}, {"index_kpool": 1}, {"index_kpool": 16, "index_topk": 32}], ids=str)
def test_one_draft_is_eleven_launches_in_order_and_nothing_more(
    decisions: dict[str, str], is_first: bool, changes: dict[str, int]
) -> None:
    config = tiny_config(**changes)
    made = planned(bound(config, **decisions).step(is_first=is_first), config, rows=3)
    assert made.launches == LAUNCHES
    assert {call.node_type for call in made.calls} == {"Region"}
    # rows that only fill the cache have a rule of their own
    assert set(made.unfired_rules) == {"context_writes", *OTHER_HEADS}
    assert all(call.body for call in made.calls)


def test_chain_is_eleven_launches_a_draft_and_each_draft_is_whole(decisions: dict[str, str]) -> None:
    config = tiny_config()
    binding = bound(config, **decisions)
    steps = [binding.step(is_first=True), *[binding.step(is_first=False)] * 2]
    made = planned(chain(steps, feedback=binding.feedback, outputs=("token",)), config)
    assert made.launches == LAUNCHES * 3
    for index, call in enumerate(made.calls):
        draft = f"draft {index // 9 + 1}"
        assert {inner.block.split("/")[0] for inner in call.body} == {draft}, call.rule


def test_context_rows_are_four_launches(decisions: dict[str, str]) -> None:
    config = tiny_config()
    made = planned(bound(config, **decisions).context(), config, rows=64)
    assert made.launches == ("entry", "in_proj", "context_writes", "context_tail")
    assert [inner.node_type for inner in made.calls[-1].body].count("AppendCache") == 2


def test_bytes_are_those_that_the_study_counted() -> None:
    config = tiny_config(dtype=torch.bfloat16, **REAL)
    made = planned(bound(config).step(is_first=True), config, blocks=1)
    read = {call.rule: call.bytes_read / 1e6 for call in made.calls}
    assert {rule: pytest.approx(count, rel=0.01) for rule, count in MEGABYTES.items()} == read | {
        # attention reads its query and selection beside the 2.1 MB of a full selection; a short context has 16 rows
        "sparse_mla": read["sparse_mla"] + 2.1
    }
    # inside a region nothing is read twice; written are values that other launches read, and no logits
    assert made.bytes_written < 0.5e6
    assert made.bytes_read < sum(inner.bytes_read for call in made.calls for inner in call.body)


@pytest.mark.parametrize("has_grammar", [True, False])
@pytest.mark.parametrize("has_confidence", [True, False])
def test_grammar_and_confidence_are_part_of_the_last_launch(has_grammar: bool, has_confidence: bool) -> None:
    config = tiny_config()
    step = bound(config).step(is_first=True, has_grammar=has_grammar, has_confidence=has_confidence)
    made = planned(step, config)
    assert made.launches == LAUNCHES
    inside = {inner.node_type for inner in made.calls[-1].body}
    assert ("GrammarMask" in inside) == has_grammar
    assert ("TokenProbability" in inside) == has_confidence
    # neither makes the logits leave
    assert made.calls[-1].bytes_written < 4 * config.vocab_size


def test_logits_that_a_caller_reads_keep_the_last_launch_from_forming() -> None:
    config = tiny_config()
    step = bound(config).step(is_first=True)
    step.output("logits", step.value("logits"))
    with pytest.raises(LoweringError) as caught:
        planned(step, config)
    assert str(caught.value).startswith("%head_normed = RmsNorm: no lowering of its own on triton")
    assert "lm_head did not fire: value %logits is read outside, by the output 'logits'" in str(caught.value)


def test_every_rule_is_built_and_the_program_may_run() -> None:
    config = tiny_config()
    made = planned(bound(config).step(is_first=True), config)
    assert made.planned_rules == ()
    require_runnable(made)
    assert not [rule.name for rule in region_rules("triton") if rule.is_planned]
