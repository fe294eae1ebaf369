"""The eager head's step: what the golden vectors leave out, above all that memory nobody wrote never matters."""

from __future__ import annotations

import ast
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from drafts.batch import RowBatch
from drafts.cache import CachedSequence, DrafterCache
from drafts.config import DraftConfig
from drafts.eager_attention import best_pools, rms_norm
from drafts.eager_glm5_next import EagerGlm5NextHead, EagerPath, EagerStep
from tests.drafts.tiny_head import context_rows, join, rows_at, tiny_config, tiny_head, tiny_weights


def run_step(head: EagerGlm5NextHead, rows: RowBatch, cache: DrafterCache, **options: object) -> EagerStep:
    columns = (rows.token, rows.hidden, rows.position, rows.sequence, rows.block_table)
    stated = {"recycled": False, "record_edges": True} | options
    return head.step(*columns, cache.latent, cache.index_keys, cache.tail, **stated)


def filled(
    config: DraftConfig, head: EagerGlm5NextHead, count: int, *, seed: int = 1, num_sequences: int = 3
) -> tuple[DrafterCache, CachedSequence]:
    """A cache with one sequence of `count` context rows and room for 40 more."""
    cache = DrafterCache.for_rows(config, count + 40, num_sequences=num_sequences, max_num_drafts=5)
    return cache, add_sequence(config, head, cache, count, seed=seed)


def add_sequence(
    config: DraftConfig, head: EagerGlm5NextHead, cache: DrafterCache, count: int, *, seed: int
) -> CachedSequence:
    state = cache.allocate(rows=count + 40)
    tokens, hiddens = context_rows(config, count, seed=seed)
    EagerPath(head).write_rows(rows_at(cache, state, tokens, hiddens, 0), cache)
    cache.commit(state, count)
    return state


def one_row(config: DraftConfig, cache: DrafterCache, state: CachedSequence, *, seed: int = 9) -> RowBatch:
    return rows_at(cache, state, *context_rows(config, 1, seed=seed), cache.rows(state))


@pytest.mark.parametrize("kpool, count", [(1, 11), (4, 19), (4, 16), (3, 2)])
def test_rows_of_one_sequence_in_one_step_are_as_one_by_one(kpool: int, count: int) -> None:
    config = tiny_config(index_kpool=kpool, index_topk=2 * kpool)
    head = tiny_head(config)
    tokens, hiddens = context_rows(config, count)
    together, alone = (DrafterCache.for_rows(config, count) for _ in range(2))
    states = together.allocate(rows=count), alone.allocate(rows=count)
    at_once = run_step(head, rows_at(together, states[0], tokens, hiddens, 0), together)
    for row in range(count):
        rows = rows_at(alone, states[1], tokens[row : row + 1], hiddens[row : row + 1], row)
        single = run_step(head, rows, alone)
        assert torch.equal(single.selected[0], at_once.selected[row])
        torch.testing.assert_close(single.logits[0], at_once.logits[row], atol=1e-5, rtol=1e-5)
    for ours, theirs in ((together.latent, alone.latent), (together.index_keys, alone.index_keys)):
        torch.testing.assert_close(ours[1:], theirs[1:], atol=1e-6, rtol=1e-5, equal_nan=True)


def test_sequences_and_padding_in_one_step_are_as_alone() -> None:
    config = tiny_config()
    head = tiny_head(config)
    cache, first = filled(config, head, 23)
    second, third = (add_sequence(config, head, cache, count, seed=count) for count in (3, 0))
    parts = [one_row(config, cache, state, seed=slot) for slot, state in enumerate((first, second, third))]
    null = torch.zeros(2, dtype=torch.int64)
    padding = RowBatch(null, torch.full((2, 20), math.nan), null, null, torch.zeros(2, 1, dtype=torch.int64))
    together = run_step(head, join(parts[0], padding, *parts[1:]), cache)
    for row, part in zip((0, 3, 4), parts, strict=True):
        alone = run_step(head, part, cache)
        torch.testing.assert_close(together.logits[row], alone.logits[0], atol=1e-5, rtol=1e-5)
        assert torch.equal(together.selected[row], alone.selected[0])


def test_memory_that_is_not_the_sequences_never_matters() -> None:
    config = tiny_config()
    head = tiny_head(config)
    cache, state = filled(config, head, 22)
    rows = one_row(config, cache, state)
    expected = run_step(head, rows, cache)
    for poison in (math.nan, math.inf, 1e30):
        other, state = filled(config, head, 22)
        mine = torch.zeros(other.num_blocks, dtype=torch.bool)
        mine[state.blocks] = True
        other.latent[~mine], other.index_keys[~mine], other.tail[0] = poison, poison, poison
        other.tail[state.slot + 1 :] = poison
        # rejected rows and pools of an earlier run, past the row that is written
        other.latent[state.blocks[1], 23 % 16 :] = poison
        other.index_keys[state.blocks[1], 5 % 4 :] = poison
        got = run_step(head, one_row(config, other, state), other)
        assert torch.equal(got.logits, expected.logits)
        assert torch.equal(got.selected, expected.selected)


def test_row_that_is_not_selected_never_matters() -> None:
    config = tiny_config()
    head = tiny_head(config)
    cache, state = filled(config, head, 24)
    other = add_sequence(config, head, cache, 6, seed=2)  # a longer tail, so the first row's has empty places
    rows = join(one_row(config, cache, state), one_row(config, cache, other))
    expected = run_step(head, rows, cache)
    dropped = sorted(set(range(24)) - set(expected.selected[0].tolist()))
    assert 0 in dropped
    cache.latent[torch.tensor(state.blocks)[torch.tensor(dropped) // 16], torch.tensor(dropped) % 16] = math.nan
    assert torch.equal(run_step(head, rows, cache).logits, expected.logits)


@pytest.mark.parametrize("kpool", [1, 3, 4])
def test_number_of_selected_rows(kpool: int) -> None:
    config = tiny_config(index_kpool=kpool, index_topk=2 * kpool)
    head = tiny_head(config)
    cache = DrafterCache.for_rows(config, 20)
    state = cache.allocate(rows=20)
    selected = run_step(head, rows_at(cache, state, *context_rows(config, 20), 0), cache).selected
    assert selected.shape == (20, 3 * kpool - 1)
    for row, chosen in enumerate(selected.tolist()):
        visible = row + 1
        ids = [place for place in chosen if place >= 0]
        assert len(ids) == min(visible // kpool, 2) * kpool + visible % kpool
        assert len(set(ids)) == len(ids)
        assert ids == sorted(ids)
        assert max(ids) <= row
        assert set(range(visible - visible % kpool, visible)) <= set(ids)


def test_experts_never_chosen_may_hold_nan() -> None:
    config = tiny_config()
    weights = tiny_weights(config)
    weights["mlp.gate.e_score_correction_bias"][4:] = -10.0
    cache, state = filled(config, tiny_head(config, weights=weights), 9)
    rows = one_row(config, cache, state)
    expected = run_step(tiny_head(config, weights=weights), rows, cache)
    for name in ("mlp.experts.gate_up_proj", "mlp.experts.down_proj"):
        weights[name][4:] = math.nan
    got = run_step(tiny_head(config, weights=weights), rows, cache)
    assert torch.equal(got.logits, expected.logits)
    assert not got.logits.isnan().any()


def test_weights_are_held_and_not_copied() -> None:
    config = tiny_config()
    weights = tiny_weights(config)
    head = tiny_head(config, weights=weights)
    cache, state = filled(config, head, 6)
    before = run_step(head, one_row(config, cache, state), cache).logits
    weights["self_attn.kv_b_proj"].mul_(2)
    assert not torch.equal(run_step(head, one_row(config, cache, state), cache).logits, before)


def test_supplied_pre_norm_gets_the_target_norm_once() -> None:
    config = tiny_config()
    weights = tiny_weights(config)
    pre, post = (tiny_head(config, weights=weights, supplied_hidden=form) for form in ("pre_norm", "post_norm"))
    tokens, hiddens = context_rows(config, 10)
    normed = rms_norm(hiddens, weights["target_norm"], config.rms_norm_eps)
    drafts, caches = [], []
    for head, fed in ((pre, hiddens), (post, normed)):
        cache = DrafterCache.for_rows(config, 20)
        state = cache.allocate(rows=20)
        path = EagerPath(head)
        path.write_rows(rows_at(cache, state, tokens[:9], fed[:9], 0), cache)
        drafts.append(path.draft(rows_at(cache, state, tokens[9:], fed[9:], 9), cache, num_drafts=4).ids)
        caches.append(cache.latent[1:])
    assert torch.equal(drafts[0], drafts[1])
    assert torch.equal(caches[0].nan_to_num(), caches[1].nan_to_num())


def test_supplied_as_trained_on_pre_norm_applies_no_norm() -> None:
    config = tiny_config()
    forms = {"supplied_hidden": "pre_norm", "hidden_source": "pre_norm"}
    assert tiny_head(config, **forms).target_norm is None


def test_pools_and_new_rows_attends_the_rows_since() -> None:
    config = tiny_config()
    head = tiny_head(config, index_share="pools_and_new_rows")
    cache, state = filled(config, head, 22)
    path = EagerPath(head, record_edges=True)
    path.draft(one_row(config, cache, state), cache, num_drafts=5)
    first = set(path.last_steps[0].selected[0].tolist()) - {-1}
    for index, step in enumerate(path.last_steps):
        attended = step.selected[0][step.selected[0] >= 0].tolist()
        assert sorted(attended) == sorted(first | set(range(23, 23 + index)))


def test_shared_selection_needs_the_decision() -> None:
    config = tiny_config()
    head = tiny_head(config)
    cache, state = filled(config, head, 5)
    rows = one_row(config, cache, state)
    selected = torch.zeros(1, 1, dtype=torch.int64)
    with pytest.raises(ValueError, match="index_share 'off'"):
        run_step(head, rows, cache, selected=selected, selected_at=rows.position)
    with pytest.raises(ValueError, match="selected_at missing"):
        run_step(tiny_head(config, index_share="exact_set"), rows, cache, selected=selected)


def test_row_with_nothing_selected_attends_to_zeros() -> None:
    config = tiny_config()
    head = tiny_head(config, index_share="exact_set")
    cache, state = filled(config, head, 5)
    rows = one_row(config, cache, state)
    nothing = torch.full((1, 3), -1)
    step = run_step(head, rows, cache, selected=nothing, selected_at=rows.position)
    assert (step.edges["attn_heads"] == 0).all()
    assert not step.logits.isnan().any()


@pytest.mark.parametrize("count", [0, 1, 7, 8, 11, 12, 30])
def test_recording_changes_nothing(count: int) -> None:
    config = tiny_config()
    head = tiny_head(config)
    cache, state = filled(config, head, count)
    rows = one_row(config, cache, state)
    recorded, plain = run_step(head, rows, cache), run_step(head, rows, cache, record_edges=False)
    assert plain.edges == {}
    assert torch.equal(recorded.logits, plain.logits)
    assert torch.equal(recorded.selected, plain.selected)
    assert recorded.edges["index_scores"].shape == (1, (count + 1) // 4)


def test_float64_head_is_the_oracle_of_the_float32_head() -> None:
    narrow, wide = tiny_config(), tiny_config(dtype=torch.float64)
    weights = tiny_weights(narrow)
    widened = {name: tensor if name.startswith("mlp.gate.") else tensor.double() for name, tensor in weights.items()}
    logits = []
    for config, held in ((narrow, weights), (wide, widened)):
        head = tiny_head(config, weights=held)
        cache, state = filled(config, head, 13)
        logits.append(run_step(head, one_row(config, cache, state), cache).logits)
    assert logits[1].dtype == torch.float64
    torch.testing.assert_close(logits[0].double(), logits[1], atol=2e-5, rtol=1e-5)


def test_no_rows_give_no_drafts() -> None:
    config = tiny_config()
    head = tiny_head(config)
    cache, _ = filled(config, head, 5)
    empty = torch.empty(0, dtype=torch.int64)
    rows = RowBatch(empty, torch.empty(0, 20), empty, empty, torch.empty(0, 1, dtype=torch.int64))
    assert run_step(head, rows, cache).logits.shape == (0, config.vocab_size)
    assert EagerPath(head).draft(rows, cache, num_drafts=3).ids.shape == (0, 3)


def test_misfitting_weights_are_named() -> None:
    config = tiny_config()
    weights = tiny_weights(config)
    weights["hnorm"] = weights["hnorm"][:-1]
    with pytest.raises(ValueError, match=r"hnorm: expected torch.float32 \[20\], got torch.float32 \[19\]"):
        tiny_head(config, weights=weights)
    del weights["hnorm"]
    with pytest.raises(ValueError, match=r"hnorm: .*no such weight"):
        tiny_head(config, weights=weights)


DRAFTS = Path(__file__).parents[2] / "drafts"


@pytest.mark.parametrize("module", ["eager_glm5_next", "eager_attention", "eager_moe", "path"])
def test_eager_head_knows_neither_circuits_nor_nodes(module: str) -> None:
    tree = ast.walk(ast.parse((DRAFTS / f"{module}.py").read_text()))
    names = [alias.name for node in tree if isinstance(node, ast.Import) for alias in node.names]
    tree = ast.walk(ast.parse((DRAFTS / f"{module}.py").read_text()))
    names += [node.module or "" for node in tree if isinstance(node, ast.ImportFrom)]
    assert not [name for name in names if name.split(".")[0] in ("circuit", "nodes", "compiler")]


SCORES = {
    "ties go to the lowest": ([[1.0, 2.0, 2.0, 2.0]], 2, [[1, 2]]),
    "all alike": ([[0.0] * 5], 3, [[0, 1, 2]]),
    "negative scores are chosen": ([[-3.0, -1.0, -2.0]], 2, [[1, 2]]),
    "fewer selectable than wanted": ([[-1.0, -math.inf, 0.0]], 3, [[0, 2, -1]]),
    "fewer pools than wanted": ([[-1.0]], 3, [[0, -1, -1]]),
    "none": ([[]], 2, [[-1, -1]]),
}


@pytest.mark.parametrize("scores, budget, expected", SCORES.values(), ids=SCORES)
def test_best_pools(scores: list[list[float]], budget: int, expected: list[list[int]]) -> None:
    assert best_pools(torch.tensor(scores), budget).tolist() == expected


def route(config: DraftConfig, weights: dict[str, Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    return tiny_head(config, weights=weights).mlp.route(x, {})


def test_router_ties_go_to_the_lowest_experts_and_weights_are_unbiased() -> None:
    config = tiny_config()
    weights = tiny_weights(config)
    weights["mlp.gate.weight"].zero_()
    weights["mlp.gate.e_score_correction_bias"][:] = torch.tensor([0.0, 0.5, 0.0, 0.5, 0.5, 0.0])
    ids, shares = route(config, weights, torch.ones(3, 20))
    assert ids.tolist() == [[1, 3]] * 3
    torch.testing.assert_close(shares, torch.full((3, 2), 2.5 / 2))


def test_router_chooses_within_the_best_groups() -> None:
    config = tiny_config(n_group=3, topk_group=1)
    weights = tiny_weights(config)
    weights["mlp.gate.weight"].zero_()
    # the best expert is alone in its group; the pair of the last group is worth more together
    weights["mlp.gate.e_score_correction_bias"][:] = torch.tensor([0.9, -0.9, 0.1, 0.1, 0.4, 0.4])
    assert route(config, weights, torch.ones(1, 20))[0].tolist() == [[4, 5]]
    # a tie of groups goes to the lowest
    weights["mlp.gate.e_score_correction_bias"].zero_()
    assert route(config, weights, torch.ones(1, 20))[0].tolist() == [[0, 1]]


def test_router_without_norm_keeps_the_sigmoid() -> None:
    config = tiny_config(norm_topk_prob=False)
    weights = tiny_weights(config)
    x = context_rows(config, 5)[1]
    ids, shares = route(config, weights, x)
    scores = (x @ weights["mlp.gate.weight"].T).sigmoid()
    torch.testing.assert_close(shares, scores.gather(1, ids) * 2.5)


def test_gate_is_clamped_from_above_only() -> None:
    config = tiny_config(swiglu_limit=1.0)
    moe = tiny_head(config).mlp
    gate, up = torch.tensor([[-50.0, 50.0, 0.5]]), torch.tensor([[-50.0, 50.0, 0.5]])
    got = moe._swiglu(gate, up, torch.eye(3))
    clamped = torch.nn.functional.silu(torch.tensor([[-50.0, 1.0, 0.5]])) * torch.tensor([[-1.0, 1.0, 0.5]])
    torch.testing.assert_close(got, clamped)
