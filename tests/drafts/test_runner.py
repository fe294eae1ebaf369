"""DraftRunner: chains and context rows over the cache, all or nothing, observed edge by edge."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from circuit import BindingError, LoweringError, Value
from drafts.batch import RowBatch
from drafts.binding import DraftBinding
from drafts.cache import DrafterCache
from drafts.proposer import DraftProposer
from drafts.proposer_state import ProposerState
from drafts.runner import DraftRunner
from tests.drafts.drafter_twin import CLOSE, Text, contents, make_proposer, make_text
from tests.drafts.tiny_head import join, rows_at


class Scene:
    """Sequences of 9 and 22 rows in one cache, and the next row of each."""

    def __init__(self, **options: int) -> None:
        self.proposer: DraftProposer = make_proposer("circuit", **options)
        binding = self.proposer.circuit_draft()
        assert binding is not None
        self.binding: DraftBinding = binding
        self.cache: DrafterCache = self.proposer.cache
        self.texts: list[Text] = [make_text(self.proposer, 50, seed=seed) for seed in (1, 2)]
        self.states: list[ProposerState] = [self.proposer.alloc_state() for _ in self.texts]
        self.lengths = (9, 22)
        for text, state, length in zip(self.texts, self.states, self.lengths, strict=True):
            text.prefill(self.proposer, state, length)

    def row(self, index: int, *, count: int = 1) -> RowBatch:
        text, start = self.texts[index], self.lengths[index]
        tokens, hiddens = text.tokens[start + 1 : start + 1 + count], text.hiddens[start : start + count]
        return rows_at(self.cache, self.states[index].sequence, tokens, hiddens, start)

    def tensors(self) -> list[Tensor]:
        return [tensor.clone() for tensor in (self.cache.latent, self.cache.index_keys, self.cache.tail)]


@pytest.fixture
def scene() -> Scene:
    return Scene()


def padding(scene: Scene, count: int) -> RowBatch:
    """Rows of the null sequence, full of NaN."""
    width = scene.proposer.config.hidden_size
    zeros = torch.zeros(count, dtype=torch.int64)
    table = torch.zeros(count, 6, dtype=torch.int64)
    return RowBatch(zeros, torch.full((count, width), float("nan")), zeros, zeros, table)


def test_unknown_backend_is_refused_and_the_known_are_named(scene: Scene) -> None:
    with pytest.raises(LoweringError, match="no backend 'cuda'; it has reference"):
        DraftRunner(scene.binding, backend="cuda")


def test_runner_says_what_it_is(scene: Scene) -> None:
    runner = DraftRunner(scene.binding)
    assert runner.name == "circuit:reference"
    assert runner.binding is scene.binding
    assert not runner.is_batch_invariant


def test_sequences_beside_one_another_draft_as_alone(scene: Scene) -> None:
    runner = DraftRunner(scene.binding)
    alone = [runner.draft(scene.row(index), scene.cache, num_drafts=4, has_confidence=True) for index in (0, 1)]
    held = scene.tensors()
    together = runner.draft(join(scene.row(0), scene.row(1)), scene.cache, num_drafts=4, has_confidence=True)
    for index in (0, 1):
        assert torch.equal(together.ids[index], alone[index].ids[0])
        assert together.confidences is not None
        torch.testing.assert_close(together.confidences[index], alone[index].confidences[0], **CLOSE)  # type: ignore[index]
    for one, two in zip(scene.tensors(), held, strict=True):
        torch.testing.assert_close(one, two, equal_nan=True, **CLOSE)


def test_padding_rows_of_nan_disturb_nobody(scene: Scene) -> None:
    runner = DraftRunner(scene.binding)
    alone = runner.draft(scene.row(0), scene.cache, num_drafts=4).ids
    live, beside = scene.states[0].sequence.blocks, scene.tensors()[0][scene.states[1].sequence.blocks]
    kept = scene.cache.latent[live].clone()
    padded = join(scene.row(0), padding(scene, 3))
    assert torch.equal(runner.draft(padded, scene.cache, num_drafts=4).ids[:1], alone)
    torch.testing.assert_close(scene.cache.latent[live], kept, equal_nan=True, **CLOSE)
    now = scene.cache.latent[scene.states[1].sequence.blocks]
    assert torch.equal(now.nan_to_num(7.0), beside.nan_to_num(7.0))
    # the null block is full of NaN by now, and the next run does not mind
    assert torch.equal(runner.draft(scene.row(0), scene.cache, num_drafts=4).ids, alone)


def test_observer_sees_every_edge_of_every_step(scene: Scene) -> None:
    seen: list[tuple[int, str]] = []

    def observe(step: int, value: Value, tensor: Tensor) -> None:
        seen.append((step, value.name))
        assert isinstance(tensor, Tensor)

    runner = DraftRunner(scene.binding, observe=observe)
    runner.draft(scene.row(0), scene.cache, num_drafts=3)
    for step in range(3):
        program = scene.binding.step(is_first=step == 0)
        names = [name for at, name in seen if at == step]
        assert sorted(names) == sorted(value.name for value in program.values)
        made = [value.name for call in program.calls for value in call.results]
        assert [name for name in names if name in made] == made


def test_chain_is_the_same_with_and_without_an_observer(scene: Scene) -> None:
    plain = DraftRunner(scene.binding).draft(scene.row(1), scene.cache, num_drafts=4).ids
    seen = DraftRunner(scene.binding, observe=lambda step, value, tensor: None)
    assert torch.equal(seen.draft(scene.row(1), scene.cache, num_drafts=4).ids, plain)


def test_context_of_no_rows_writes_nothing(scene: Scene) -> None:
    before = scene.tensors()
    row = scene.row(0)
    empty = RowBatch(row.token[:0], row.hidden[:0], row.position[:0], row.sequence[:0], row.block_table[:0])
    DraftRunner(scene.binding).write_rows(empty, scene.cache)
    for one, two in zip(scene.tensors(), before, strict=True):
        assert torch.equal(one.nan_to_num(7.0), two.nan_to_num(7.0))


def test_context_writes_rows_of_several_sequences_and_nothing_else(scene: Scene) -> None:
    runner = DraftRunner(scene.binding)
    runner.write_rows(join(scene.row(0, count=7), scene.row(1, count=3)), scene.cache)
    for state, end in zip(scene.states, (16, 25), strict=True):
        scene.cache.commit(state.sequence, end)
    other = Scene()
    for index, end in ((0, 16), (1, 25)):
        other.texts[index].append(other.proposer, other.states[index], end)
        got, expected = (contents(each.proposer, each.states[index]) for each in (scene, other))
        torch.testing.assert_close(got.latent, expected.latent, **CLOSE)
        torch.testing.assert_close(got.pool_keys, expected.pool_keys, **CLOSE)
        torch.testing.assert_close(got.raw, expected.raw, **CLOSE)


def test_cache_tensors_are_written_in_place(scene: Scene) -> None:
    pointers = [tensor.data_ptr() for tensor in (scene.cache.latent, scene.cache.index_keys, scene.cache.tail)]
    DraftRunner(scene.binding).draft(scene.row(0), scene.cache, num_drafts=2)
    now = [tensor.data_ptr() for tensor in (scene.cache.latent, scene.cache.index_keys, scene.cache.tail)]
    assert now == pointers


@pytest.mark.parametrize("num_drafts", [0, -1, 5])
def test_more_drafts_than_the_state_holds_or_none_are_refused(scene: Scene, num_drafts: int) -> None:
    with pytest.raises(ValueError, match=f"expected 1 to 4 drafts, got {num_drafts}"):
        DraftRunner(scene.binding).draft(scene.row(0), scene.cache, num_drafts=num_drafts)


def test_two_rows_of_one_sequence_are_refused_in_a_chain(scene: Scene) -> None:
    with pytest.raises(ValueError, match="one row per sequence"):
        DraftRunner(scene.binding).draft(scene.row(0, count=2), scene.cache, num_drafts=2)


@pytest.mark.parametrize(
    "field, change, message",
    [
        ("token", 61, "RowBatch.token"),
        ("token", -1, "RowBatch.token"),
        ("position", 94, "RowBatch.position"),
        ("position", -1, "RowBatch.position"),
        ("sequence", 3, "RowBatch.sequence"),
        ("block_table", 99, "RowBatch.block_table"),
        ("block_table", 0, "got the null block 0"),
    ],
)
def test_rows_outside_vocabulary_table_or_cache_are_refused(
    scene: Scene, field: str, change: int, message: str
) -> None:
    rows = replace(scene.row(0), **{field: torch.full_like(getattr(scene.row(0), field), change)})
    before = scene.tensors()
    with pytest.raises(ValueError, match=message):
        DraftRunner(scene.binding).draft(rows, scene.cache, num_drafts=4)
    for one, two in zip(scene.tensors(), before, strict=True):
        assert torch.equal(one.nan_to_num(7.0), two.nan_to_num(7.0))


@pytest.mark.parametrize("hidden", ["dtype", "width"])
def test_hidden_of_another_model_is_refused(scene: Scene, hidden: str) -> None:
    row = scene.row(0)
    wrong = row.hidden.double() if hidden == "dtype" else row.hidden[:, 1:]
    for run in (
        lambda rows: DraftRunner(scene.binding).write_rows(rows, scene.cache),
        lambda rows: DraftRunner(scene.binding).draft(rows, scene.cache, num_drafts=1),
    ):
        with pytest.raises((BindingError, ValueError), match="hidden"):
            run(replace(row, hidden=wrong))


@pytest.mark.parametrize("layout", [{"block_size": 8, "max_num_drafts": 4}, {"max_num_drafts": 3}], ids=str)
def test_cache_of_another_layout_is_refused(scene: Scene, layout: dict[str, int]) -> None:
    cache = DrafterCache.for_rows(scene.proposer.config, 40, **layout)
    state = cache.allocate(rows=20)
    rows = rows_at(cache, state, scene.texts[0].tokens[:1], scene.texts[0].hiddens[:1], 0)
    runner = DraftRunner(scene.binding)
    with pytest.raises(BindingError, match=r"expected a cache of block_size 16 with a tail 8 deep, got .* again"):
        runner.draft(rows, cache, num_drafts=1)
    with pytest.raises(BindingError, match=r"bind .*again"):
        runner.write_rows(rows, cache)


def test_grammar_and_confidence_are_per_run(scene: Scene) -> None:
    runner = DraftRunner(scene.binding)
    free = runner.draft(scene.row(0), scene.cache, num_drafts=3)
    assert free.confidences is None
    mask = torch.zeros(1, 2, 2, dtype=torch.int32)
    mask[0, 0, 0], mask[0, 1, 1] = 1 << 3, 1 << 5
    masked = runner.draft(scene.row(0), scene.cache, num_drafts=3, grammar=mask, has_confidence=True)
    assert masked.ids[0, :2].tolist() == [3, 37]
    assert masked.confidences is not None
    assert masked.confidences.shape == (1, 3)
    assert masked.confidences.dtype == torch.float32
    assert torch.equal(runner.draft(scene.row(0), scene.cache, num_drafts=3).ids, free.ids)


def test_what_is_no_binding_and_no_runner_is_refused_by_name() -> None:
    with pytest.raises(BindingError, match="expected a DraftBinding, got None"):
        DraftRunner(None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="expected a DraftRunner or None, got str"):
        make_proposer("eager").set_circuit_draft("x")  # type: ignore[arg-type]


def test_a_runner_of_another_drafter_is_refused() -> None:
    proposer, other = make_proposer("eager"), make_proposer("eager", decisions={"recycle": "block_output"})
    binding, foreign = proposer.circuit_draft(), other.circuit_draft()
    assert binding is not None
    assert foreign is not None
    with pytest.raises(BindingError, match="decisions are not this proposer's"):
        proposer.set_circuit_draft(DraftRunner(foreign))
    copied = replace(binding, weights={name: weight.clone() for name, weight in binding.weights.items()})
    with pytest.raises(BindingError, match="is another tensor"):
        proposer.set_circuit_draft(DraftRunner(copied))
    assert proposer.path.name == "eager"
    proposer.set_circuit_draft(DraftRunner(binding))
    assert proposer.path.name == "circuit:reference"
