"""The eager path over a cache that grows, is rewound and is shared: the cache is what a straight run would leave."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from drafts.batch import RowBatch
from drafts.cache import CachedSequence, DrafterCache
from drafts.config import DraftConfig
from drafts.eager_glm5_next import EagerPath
from tests.drafts.tiny_head import context_rows, join, rows_at, tiny_config, tiny_head

CLOSE = {"atol": 1e-6, "rtol": 1e-5}  # the number of rows in a product may change the order of its sums


def contents(cache: DrafterCache, state: CachedSequence) -> tuple[Tensor, Tensor]:
    """Valid latent rows and complete pool keys of a sequence."""
    latent = cache.latent[state.blocks].flatten(0, 1)[: cache.rows(state)]
    return latent, cache.index_keys[state.blocks].flatten(0, 1)[: cache.complete_pools(state)]


def write(
    path: EagerPath, cache: DrafterCache, state: CachedSequence, tokens: Tensor, hiddens: Tensor, end: int
) -> None:
    """Write rows from the sequence's end up to `end` and count them."""
    start = cache.rows(state)
    path.write_rows(rows_at(cache, state, tokens[start:end], hiddens[start:end], start), cache)
    cache.commit(state, end)


def straight(config: DraftConfig, path: EagerPath, tokens: Tensor, hiddens: Tensor) -> tuple[Tensor, Tensor]:
    cache = DrafterCache.for_rows(config, len(tokens))
    state = cache.allocate(rows=len(tokens))
    write(path, cache, state, tokens, hiddens, len(tokens))
    return contents(cache, state)


@pytest.mark.parametrize("kpool", [1, 3, 4])
@pytest.mark.parametrize("ends", [[1, 2, 3, 31], [4, 8, 31], [5, 6, 30, 31], list(range(1, 32))], ids=str)
def test_prefill_in_chunks_leaves_the_same_cache(kpool: int, ends: list[int]) -> None:
    config = tiny_config(index_kpool=kpool, index_topk=2 * kpool)
    path = EagerPath(tiny_head(config))
    tokens, hiddens = context_rows(config, 31)
    # the ring is as shallow as it may be, and one run is longer than it
    cache = DrafterCache(config, num_blocks=40, num_sequences=2, tail_depth=kpool)
    state = cache.allocate(rows=31)
    for end in ends:
        write(path, cache, state, tokens, hiddens, end)
    for got, expected in zip(contents(cache, state), straight(config, path, tokens, hiddens), strict=True):
        torch.testing.assert_close(got, expected, **CLOSE)


@pytest.mark.parametrize("asked", range(0, 24))
@pytest.mark.parametrize("depth", [4, 7, 20])
def test_cache_rebuilt_after_any_rewind_is_the_straight_one(asked: int, depth: int) -> None:
    config = tiny_config()
    path = EagerPath(tiny_head(config))
    tokens, hiddens = context_rows(config, 30)
    cache = DrafterCache(config, num_blocks=5, num_sequences=2, tail_depth=depth)
    state = cache.allocate(rows=40)
    write(path, cache, state, tokens, hiddens, 23)
    path.draft(rows_at(cache, state, tokens[:1], hiddens[:1], 23), cache, num_drafts=5)
    cache.commit(state, 28)
    kept = cache.rewind(state, asked)
    assert kept <= asked
    write(path, cache, state, tokens, hiddens, 30)
    for got, expected in zip(contents(cache, state), straight(config, path, tokens, hiddens), strict=True):
        torch.testing.assert_close(got, expected, **CLOSE)


def test_rounds_of_draft_and_rewind_end_in_the_straight_cache() -> None:
    config = tiny_config()
    path = EagerPath(tiny_head(config))
    tokens, hiddens = context_rows(config, 40)
    cache = DrafterCache.for_rows(config, 60, max_num_drafts=4)
    state = cache.allocate(rows=60)
    write(path, cache, state, tokens, hiddens, 3)
    for accepted in (0, 3, 1, 2, 0, 4, 4, 1, 3, 0, 2):
        start = cache.rows(state)
        path.draft(
            rows_at(cache, state, tokens[start : start + 1], hiddens[start : start + 1], start), cache, num_drafts=4
        )
        cache.commit(state, start + 4)
        assert cache.rewind(state, start + 1) == start + 1
        write(path, cache, state, tokens, hiddens, start + 1 + accepted)
    rows = cache.rows(state)
    for got, expected in zip(
        contents(cache, state), straight(config, path, tokens[:rows], hiddens[:rows]), strict=True
    ):
        torch.testing.assert_close(got, expected, **CLOSE)


def test_context_of_several_sequences_in_one_run_is_as_alone() -> None:
    config = tiny_config()
    path = EagerPath(tiny_head(config))
    cache = DrafterCache.for_rows(config, 30, num_sequences=3)
    states, texts, parts = [], [], []
    for count in (13, 1, 30):
        state, text = cache.allocate(rows=count), context_rows(config, count, seed=count)
        states.append(state)
        texts.append(text)
        parts.append(rows_at(cache, state, *text, 0))
    path.write_rows(join(*parts), cache)
    for state, text in zip(states, texts, strict=True):
        cache.commit(state, len(text[0]))
        for got, expected in zip(contents(cache, state), straight(config, path, *text), strict=True):
            torch.testing.assert_close(got, expected, **CLOSE)


def test_sequences_continued_within_a_pool_in_one_run_are_as_alone() -> None:
    config = tiny_config()
    path = EagerPath(tiny_head(config))
    cache = DrafterCache.for_rows(config, 20, num_sequences=4)
    texts = [context_rows(config, 20, seed=seed) for seed in range(4)]
    states = [cache.allocate(rows=20) for _ in texts]
    starts, ends = (2, 7, 6, 9), (5, 8, 20, 13)
    for state, text, start in zip(states, texts, starts, strict=True):
        write(path, cache, state, *text, start)
    parts = [
        rows_at(cache, state, text[0][start:end], text[1][start:end], start)
        for state, text, start, end in zip(states, texts, starts, ends, strict=True)
    ]
    path.write_rows(join(*parts), cache)
    for state, (tokens, hiddens), end in zip(states, texts, ends, strict=True):
        cache.commit(state, end)
        expected = straight(config, path, tokens[:end], hiddens[:end])
        for got, alone in zip(contents(cache, state), expected, strict=True):
            torch.testing.assert_close(got, alone, **CLOSE)


def test_run_longer_than_the_ring_writes_each_place_once_with_its_newest_row() -> None:
    config = tiny_config()
    head = tiny_head(config)
    cache = DrafterCache(config, num_blocks=8, num_sequences=3, tail_depth=5)
    parts = []
    for start, count in ((3, 13), (1, 4)):
        state = cache.allocate(rows=20)
        parts.append(rows_at(cache, state, *context_rows(config, count), start))
    write = head.context(join(*parts), cache.latent, cache.tail)
    places = list(zip(write.raw_slot.tolist(), write.raw_place.tolist(), strict=True))
    assert places == [(1, position % 5) for position in range(11, 16)] + [(2, position) for position in range(1, 5)]


@pytest.mark.parametrize("failing_step", [0, 1, 3])
@pytest.mark.parametrize("fault", [RuntimeError, KeyboardInterrupt])
def test_failed_draft_leaves_the_cache_as_it_was(
    failing_step: int, fault: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config()
    head = tiny_head(config)
    path = EagerPath(head)
    tokens, hiddens = context_rows(config, 23)
    cache = DrafterCache.for_rows(config, 40)
    state = cache.allocate(rows=40)
    write(path, cache, state, tokens, hiddens, 22)
    before = [tensor.clone() for tensor in (cache.latent, cache.index_keys, cache.tail)]
    calls, run = [], head.mlp.forward

    def fail(x: Tensor, edges: dict[str, Tensor]) -> Tensor:
        calls.append(x)
        if len(calls) > failing_step:
            raise fault("stopped")
        return run(x, edges)

    monkeypatch.setattr(head.mlp, "forward", fail)
    with pytest.raises(fault):
        path.draft(rows_at(cache, state, tokens[22:], hiddens[22:], 22), cache, num_drafts=4)
    for tensor, old in zip((cache.latent, cache.index_keys, cache.tail), before, strict=True):
        assert torch.equal(tensor.nan_to_num(7.0), old.nan_to_num(7.0))


def refused(rows: RowBatch, cache: DrafterCache, path: EagerPath, *, num_drafts: int) -> str:
    before = [tensor.clone() for tensor in (cache.latent, cache.index_keys, cache.tail)]
    with pytest.raises(ValueError, match="expected") as caught:
        path.draft(rows, cache, num_drafts=num_drafts)
    for tensor, old in zip((cache.latent, cache.index_keys, cache.tail), before, strict=True):
        assert torch.equal(tensor.nan_to_num(7.0), old.nan_to_num(7.0))
    return str(caught.value)


def test_bad_calls_are_refused_before_anything_is_written() -> None:
    config = tiny_config()
    path = EagerPath(tiny_head(config))
    cache = DrafterCache.for_rows(config, 16)
    state = cache.allocate(rows=16)
    tokens, hiddens = context_rows(config, 2)
    rows = rows_at(cache, state, tokens[:1], hiddens[:1], 14)
    assert "position" in refused(rows, cache, path, num_drafts=3)
    assert "num_drafts" in refused(rows, cache, path, num_drafts=0)
    assert "one row a sequence" in refused(rows_at(cache, state, tokens, hiddens, 3), cache, path, num_drafts=2)
    assert "token" in refused(rows_at(cache, state, tokens[:1] + 61, hiddens[:1], 3), cache, path, num_drafts=2)
    assert "hidden" in refused(rows_at(cache, state, tokens[:1], hiddens[:1].double(), 3), cache, path, num_drafts=2)
    assert "hidden" in refused(rows_at(cache, state, tokens[:1], hiddens[:1, 1:], 3), cache, path, num_drafts=2)
    assert path.draft(rows, cache, num_drafts=2).ids.shape == (1, 2)


def test_chain_is_its_steps_fed_by_hand() -> None:
    config = tiny_config()
    for recycle, edge in (("post_norm", "head_normed"), ("block_output", "block_out")):
        path = EagerPath(tiny_head(config, recycle=recycle), record_edges=True)
        cache = DrafterCache.for_rows(config, 40)
        state = cache.allocate(rows=40)
        write(path, cache, state, *context_rows(config, 9), 9)
        rows = rows_at(cache, state, *context_rows(config, 1, seed=4), 9)
        drafts = path.draft(rows, cache, num_drafts=4).ids
        chained = [step.edges for step in path.last_steps]
        for index in range(1, 4):
            previous = chained[index - 1]
            single = path.draft(
                rows_at(cache, state, previous["token"], previous[edge], 9 + index), cache, num_drafts=1
            )
            assert single.ids.tolist() == [[int(drafts[0, index])]]
            assert torch.equal(path.last_steps[0].logits, chained[index]["logits"])
