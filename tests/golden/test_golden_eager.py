"""The eager head and its path against an oracle they share nothing with."""

from __future__ import annotations

import torch

from drafts.batch import RowBatch
from drafts.cache import DrafterCache
from drafts.decisions import Decisions
from drafts.eager_glm5_next import EagerGlm5NextHead, EagerPath
from tests.golden.checks import (
    assert_edge,
    check_differs_from_variant,
    check_drafts_and_edges,
    check_final_cache,
    check_variant,
    is_excused,
    main_play,
)
from tests.golden.eager_head import eager_head
from tests.golden.replay import CONTEXT_EDGES, GoldenCase, play_path, play_sequence, rows_of


def test_eager_gives_the_drafts_and_every_edge(golden_case: GoldenCase) -> None:
    check_drafts_and_edges(golden_case, eager_head)


def test_eager_leaves_the_cache_as_recorded(golden_case: GoldenCase) -> None:
    check_final_cache(golden_case, eager_head)


def test_recycling_the_block_output_is_the_pre_norm_chain(case_with_pre_norm_chain: GoldenCase) -> None:
    check_variant(case_with_pre_norm_chain, eager_head, "pre_norm_chain", recycle="block_output")


def test_sharing_the_exact_set_is_share_topk(case_with_share_topk: GoldenCase) -> None:
    check_variant(case_with_share_topk, eager_head, "share_topk", index_share="exact_set")


def test_row_0_is_an_ordinary_row(case_with_zero_pos0: GoldenCase) -> None:
    check_differs_from_variant(case_with_zero_pos0, eager_head, "zero_pos0")


def test_the_lowest_pool_wins_a_tie(case_with_ties_lowest: GoldenCase) -> None:
    check_variant(case_with_ties_lowest, eager_head, "ties_lowest", stops_at_ties=False)


def test_bf16_weights_computed_in_float32(case_with_fp32_compute: GoldenCase) -> None:
    for index in range(len(case_with_fp32_compute.sequences)):
        play = play_sequence(case_with_fp32_compute, index, eager_head, dtype=torch.float32)
        assert play.drafts == case_with_fp32_compute.variants["fp32_compute"][index]
        for step in play.steps:
            expected = case_with_fp32_compute.vectors[f"fp32_compute/{step.key}/logits"]
            assert (step.edges["logits"] - expected).abs().max() <= 1e-3, step.key


def test_path_plays_every_operation(golden_case: GoldenCase) -> None:
    for index in range(len(golden_case.sequences)):
        play = play_path(golden_case, index, _path(golden_case))
        for step in main_play(golden_case, index, eager_head).steps:
            got = play.drafts[step.propose][step.index]
            if got != golden_case.drafts(index)[step.propose][step.index]:
                assert is_excused(golden_case, step, got)
                break


def test_sequences_drafted_in_one_batch_are_as_alone(golden_case: GoldenCase) -> None:
    config = golden_case.config()
    num_rows = max(op["rows_after"] for sequence in golden_case.sequences for op in sequence["ops"]) + 16
    cache = DrafterCache.for_rows(config, num_rows, num_sequences=len(golden_case.sequences))
    path, parts = _path(golden_case), []
    for sequence in golden_case.sequences:
        prefill, propose = sequence["ops"][:2]
        state = cache.allocate(rows=num_rows)
        hiddens = golden_case.vectors[sequence["hiddens"]]
        tokens = torch.tensor(prefill["tokens"][1:], dtype=torch.int64)
        path.write_rows(rows_of(cache, state, tokens, hiddens[: len(tokens)], 0), cache)
        cache.commit(state, len(tokens))
        hidden = hiddens[propose["hidden_row"]][None]
        parts.append(rows_of(cache, state, torch.tensor([propose["last_token"]]), hidden, propose["position"]))
    num_drafts = max(len(golden_case.drafts(index)[0]) for index in range(len(golden_case.sequences)))
    rows = RowBatch(*(torch.cat([getattr(part, name) for part in parts]) for name in RowBatch.__slots__))
    got = path.draft(rows, cache, num_drafts=num_drafts).ids
    for row, part in enumerate(parts):
        alone = path.draft(part, cache, num_drafts=num_drafts).ids
        assert got[row].tolist() == alone[0].tolist() or not golden_case.is_float32
        for step in main_play(golden_case, row, eager_head).steps:
            if step.propose > 0:
                break
            draft, expected = int(got[row, step.index]), golden_case.drafts(row)[0][step.index]
            if draft != expected:
                assert is_excused(golden_case, step, draft)
                break


def test_prefill_rows_stepped_in_one_run_select_as_recorded(golden_case: GoldenCase) -> None:
    config = golden_case.config()
    head = eager_head(config, golden_case.weights(config), Decisions(supplied_hidden="post_norm"))
    for index, sequence in enumerate(golden_case.sequences):
        prefill = sequence["ops"][0]
        if prefill["rows_written"] == 0:
            continue
        cache = DrafterCache.for_rows(config, prefill["rows_written"])
        state = cache.allocate(rows=prefill["rows_written"])
        hidden = golden_case.vectors[sequence["hiddens"]][: prefill["rows_written"]]
        rows = rows_of(cache, state, torch.tensor(prefill["tokens"][1:]), hidden, 0)
        edges, _ = head.step(
            rows, (cache.latent, cache.index_keys, cache.tail), recycled=False, selected=None, selected_at=None
        )
        for edge in CONTEXT_EDGES:
            assert_edge(golden_case, f"{edge}", edges[edge], golden_case.vectors[f"seq{index}/op0/{edge}"])
        last = edges["selected"][-1]
        if prefill["index_margin"] is None or _cut_margin(edges["index_scores"][-1], config.index_topk_pools) > 1e-4:
            assert last[last >= 0].sort().values.tolist() == prefill["selected"]


def _cut_margin(scores: torch.Tensor, budget: int) -> float:
    ranked = scores.sort(descending=True).values
    return float(ranked[budget - 1] - ranked[budget]) if len(ranked) > budget else float("inf")


def _path(case: GoldenCase) -> EagerPath:
    config = case.config()
    return EagerPath(EagerGlm5NextHead(config, case.weights(config), Decisions(supplied_hidden="post_norm")))
