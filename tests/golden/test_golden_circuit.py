"""The head's circuit under the interpreter against the oracle, by the same checks as the eager head."""

from __future__ import annotations

import torch

from drafts.binding import bind_head
from drafts.decisions import Decisions
from drafts.runner import DraftRunner
from tests.golden.checks import (
    check_differs_from_variant,
    check_drafts_and_edges,
    check_final_cache,
    check_variant,
    is_excused,
    main_play,
)
from tests.golden.circuit_head import circuit_head
from tests.golden.eager_head import eager_head
from tests.golden.replay import GoldenCase, play_path, play_sequence

# where eager and circuit order their sums alike; from the attention product on, the eager head gathers fewer rows, and
# its expert loop multiplies matrix by matrix where the reference gathers
SAME_ORDER = (
    "e_normed",
    "h_normed",
    "eh_out",
    "attn_in",
    "q_a_normed",
    "q",
    "latent",
    "idx_q",
    "idx_k",
    "idx_gate",
    "idx_w",
)


def test_circuit_gives_the_drafts_and_every_edge(golden_case: GoldenCase) -> None:
    check_drafts_and_edges(golden_case, circuit_head)


def test_circuit_leaves_the_cache_as_recorded(golden_case: GoldenCase) -> None:
    check_final_cache(golden_case, circuit_head)


def test_circuit_recycling_the_block_output_is_the_pre_norm_chain(case_with_pre_norm_chain: GoldenCase) -> None:
    check_variant(case_with_pre_norm_chain, circuit_head, "pre_norm_chain", recycle="block_output")


def test_circuit_sharing_the_exact_set_is_share_topk(case_with_share_topk: GoldenCase) -> None:
    check_variant(case_with_share_topk, circuit_head, "share_topk", index_share="exact_set")


def test_circuit_row_0_is_an_ordinary_row(case_with_zero_pos0: GoldenCase) -> None:
    check_differs_from_variant(case_with_zero_pos0, circuit_head, "zero_pos0")


def test_circuit_lowest_pool_wins_a_tie(case_with_ties_lowest: GoldenCase) -> None:
    check_variant(case_with_ties_lowest, circuit_head, "ties_lowest")


def test_circuit_is_bitwise_the_eager_head_where_sums_are_ordered_alike(golden_case: GoldenCase) -> None:
    for index in range(len(golden_case.sequences)):
        eager, circuit = (main_play(golden_case, index, factory) for factory in (eager_head, circuit_head))
        first_steps = [pair for pair in zip(eager.steps, circuit.steps, strict=True) if pair[0].index == 0]
        assert first_steps
        for theirs, ours in first_steps:
            for edge in SAME_ORDER:
                assert torch.equal(ours.edges[edge], theirs.edges[edge]), f"{golden_case.name} {ours.key}/{edge}"
            # the selection is discrete, and equal whatever follows
            assert sorted(ours.edges["selected"][0].tolist()) == sorted(theirs.edges["selected"][0].tolist())
            assert torch.equal(ours.edges["router_ids"], theirs.edges["router_ids"].long())


def test_circuit_with_new_rows_attended_drafts_as_the_eager_head(golden_case: GoldenCase) -> None:
    for index in range(len(golden_case.sequences)):
        eager, circuit = (
            play_sequence(golden_case, index, factory, index_share="pools_and_new_rows")
            for factory in (eager_head, circuit_head)
        )
        assert circuit.drafts == eager.drafts


def test_runner_plays_every_operation(golden_case: GoldenCase) -> None:
    config = golden_case.config()
    for index in range(len(golden_case.sequences)):
        decisions = Decisions(supplied_hidden="post_norm")
        block_size = main_play(golden_case, index, circuit_head).cache.block_size
        binding = bind_head(config, golden_case.weights(config), decisions, block_size=block_size, max_num_drafts=16)
        play = play_path(golden_case, index, DraftRunner(binding))
        for step in main_play(golden_case, index, circuit_head).steps:
            got = play.drafts[step.propose][step.index]
            if got != golden_case.drafts(index)[step.propose][step.index]:
                assert is_excused(golden_case, step, got)
                break
