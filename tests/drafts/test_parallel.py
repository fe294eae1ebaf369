"""The parallel plan, each rank's parts, and that a rank reads only those of a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

import drafts.checkpoint
from circuit import BindingError, LoweringError
from compiler import collectives
from drafts.binding import bind_head
from drafts.compile_drafter import bound_circuit
from drafts.decisions import Decisions
from drafts.eager_glm5_next import EagerGlm5NextHead
from drafts.parallel import ParallelPlan, split_specs, split_weights, weight_splits
from drafts.proposer import DraftProposer
from drafts.ranks import Ranks
from drafts.runner import DraftRunner
from drafts.weights import head_weight_specs, load_weights
from tests.drafts.tiny_head import tiny_config, tiny_weights, write_checkpoint

DECISIONS = Decisions(supplied_hidden="post_norm")


def plan_of(tp: int, ep: int) -> ParallelPlan:
    return ParallelPlan(tp=tp, ep=ep)


# the plan


@pytest.mark.parametrize("tp, ep, count", [(1, 1, 1), (2, 2, 2), (4, 2, 4), (1, 8, 8)])
def test_larger_axis_is_the_world(tp: int, ep: int, count: int) -> None:
    assert plan_of(tp, ep).num_ranks == count
    assert plan_of(tp, ep).is_split == (count > 1)


@pytest.mark.parametrize("wrong", [{"tp": 2, "ep": 3}, {"tp": 0}, {"tp": True}, {"dp": 2}, {"ep": "2"}])
def test_plan_refuses_what_is_none(wrong: dict[str, Any]) -> None:
    with pytest.raises((ValidationError, BindingError)):
        ParallelPlan(**wrong)


@pytest.mark.parametrize("tp, ep", [(2, 2), (3, 3), (1, 4), (4, 2), (4, 8), (1, 7)])
def test_parts_of_all_ranks_are_the_whole_once(tp: int, ep: int) -> None:
    config = tiny_config(num_attention_heads=5, vocab_size=60)
    plan, weights = plan_of(tp, ep), tiny_weights(config)
    parts = [split_weights(weights, weight_splits(config, plan, rank)) for rank in range(plan.num_ranks)]
    for name, split in weight_splits(config, plan, 0).items():
        # neighbours along the axis, the first group of them
        joined = torch.cat([parts[rank][name] for rank in range(split.num_ranks)], dim=split.dim)
        assert torch.equal(joined, weights[name]), name
        assert all(
            torch.equal(parts[rank][name], parts[rank % split.num_ranks][name]) for rank in range(plan.num_ranks)
        )
    whole = set(weights) - set(weight_splits(config, plan, 0))
    assert all(part[name] is weights[name] for part in parts for name in whole)


def test_vocabulary_that_does_not_divide_stays_whole() -> None:
    assert "lm_head" in weight_splits(tiny_config(vocab_size=60), plan_of(3, 1), 0)
    assert "lm_head" not in weight_splits(tiny_config(vocab_size=61), plan_of(3, 1), 0)


def test_rank_without_a_head_is_refused_and_without_an_expert_is_not() -> None:
    config = tiny_config()
    with pytest.raises(BindingError, match=r"tp 4, ep 1\): expected tp of at most 3, one head a rank; lower --tp"):
        weight_splits(config, plan_of(4, 1), 0)
    splits = weight_splits(config, plan_of(1, 8), 7)
    assert splits["mlp.experts.down_proj"].width == 0
    with pytest.raises(BindingError, match="expected a rank from 0 to 1, got 2"):
        weight_splits(config, plan_of(2, 2), 2)


# loading


@pytest.mark.parametrize("plan", [plan_of(2, 2), plan_of(3, 3), plan_of(1, 8)], ids=str)
@pytest.mark.parametrize("is_tied", [False, True])
def test_rank_loads_its_parts_and_reads_nothing_else(
    plan: ParallelPlan, is_tied: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config(vocab_size=60, tie_word_embeddings=is_tied)
    weights = tiny_weights(config)
    if is_tied:
        weights["lm_head"] = weights["embed_tokens"]
    folder = write_checkpoint(tmp_path, config, weights, vocab_size=60, tie_word_embeddings=is_tied)
    num_read: list[int] = []
    iterate = drafts.checkpoint.iterate_tensors

    def counted(*args: Any, **kwargs: Any) -> Any:
        for tensor in iterate(*args, **kwargs):
            num_read.append(tensor.numel())
            yield tensor

    monkeypatch.setattr("drafts.weights.iterate_tensors", counted)
    for rank in range(plan.num_ranks):
        num_read.clear()
        splits = weight_splits(config, plan, rank)
        specs = split_specs(head_weight_specs(config), splits)
        loaded = load_weights(folder, specs)
        for name, expected in split_weights(weights, splits).items():
            assert torch.equal(loaded[name], expected), f"rank {rank}: {name}"
        # a tied lm_head is a view of the table
        held = {(*spec.sources, spec.shape, spec.part): loaded[spec.name].numel() for spec in specs}
        if is_tied and "lm_head" in splits:
            assert loaded["lm_head"].untyped_storage().data_ptr() == loaded["embed_tokens"].untyped_storage().data_ptr()
            held.pop(next(key for key in held if key[0] == specs[1].sources[0] and key[-1] is not None))
        assert sum(num_read) == sum(held.values())


def test_shape_of_a_part_is_checked_against_the_whole_tensor(tmp_path: Path) -> None:
    config = tiny_config()
    folder = write_checkpoint(tmp_path, config, tiny_weights(config))
    wrong = tiny_config(q_lora_rank=15)
    specs = split_specs(head_weight_specs(wrong), weight_splits(wrong, plan_of(3, 1), 0))
    with pytest.raises(Exception, match=r"q_a_proj.*expected shape \[15, 20\], got \[14, 20\]"):
        load_weights(folder, specs)


# binding


def test_binding_takes_the_parts_of_its_rank_and_no_others() -> None:
    config = tiny_config()
    plan = plan_of(3, 3)
    sizes = {"block_size": 16, "max_num_drafts": 4}
    splits = weight_splits(config, plan, 1)
    held = split_weights(tiny_weights(config), splits)
    binding = bind_head(config, held, DECISIONS, parallel=plan, rank=1, **sizes)
    names = [call.results[0].name for call in collectives(binding.step(is_first=True))]
    assert names == ["attn_out", "experts_out"]
    assert not collectives(binding.context())
    with pytest.raises(BindingError, match=r"expected weight .*self_attn.q_b_proj.*as rank 1 of tp 3, ep 3"):
        bind_head(config, tiny_weights(config), DECISIONS, parallel=plan, rank=1, **sizes)
    with pytest.raises(BindingError, match=r"expected weight .*self_attn.q_b_proj"):
        bind_head(config, held, DECISIONS, **sizes)


class _Absent:
    """A communicator that is never to be used."""

    rank, num_ranks = 0, 3

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        raise AssertionError("exchanged")

    all_gather = all_reduce


def split_proposer() -> DraftProposer:
    config = tiny_config()
    plan = plan_of(3, 3)
    ranks = Ranks(plan, 0, _Absent(), {"tp": _Absent(), "ep": _Absent()})
    weights = split_weights(tiny_weights(config), weight_splits(config, plan, 0))
    return DraftProposer(config, weights, DECISIONS, max_seq_len=64, ranks=ranks)


def test_eager_head_refuses_a_part_that_it_was_not_told_of() -> None:
    config = tiny_config()
    held = split_weights(tiny_weights(config), weight_splits(config, plan_of(3, 3), 0))
    with pytest.raises(ValueError, match=r"self_attn.q_b_proj: expected"):
        EagerGlm5NextHead(config, held, DECISIONS)


def test_split_drafter_is_not_compiled_and_says_so(tmp_path: Path) -> None:
    with pytest.raises(LoweringError, match=r"a compiled program exchanges nothing with other ranks.*tp 3, ep 3"):
        bound_circuit(split_proposer(), tmp_path)


def test_runner_of_a_whole_drafter_is_not_swapped_into_a_split_one() -> None:
    proposer = split_proposer()
    whole = DraftProposer(proposer.config, tiny_weights(proposer.config), DECISIONS, max_seq_len=64)
    binding = whole.circuit_draft()
    assert binding is not None
    with pytest.raises(BindingError, match="its ranks are not this proposer's"):
        proposer.set_circuit_draft(DraftRunner(binding))
