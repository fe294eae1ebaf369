"""Plays golden cases over any head: load a case, build its cache, play its operations, hand back what came out.

A head under test is an object with `step` and `context` (HeadUnderTest), built by a HeadFactory from a case's config,
weights and decisions. The chain is closed here, by feeding `head_normed` or `block_out` back, so that a head's own
recycling cannot hide in it. Nothing is asserted here but row counts; tests compare.
Format: tests/golden/vectors/README.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import load_file
from torch import Tensor

from drafts.batch import RowBatch
from drafts.cache import CachedSequence, DrafterCache
from drafts.config import DraftConfig, read_config
from drafts.decisions import Decisions
from drafts.weights import head_weight_specs, load_weights

Edges = Mapping[str, Tensor]
CacheTensors = tuple[Tensor, Tensor, Tensor]  # latent, index_keys, tail

# what a golden prefill row records
CONTEXT_EDGES = ("eh_out", "latent", "idx_k", "idx_gate")


class HeadUnderTest(Protocol):
    """One draft step, and context rows; cache tensors go in and come out, the same objects or new ones."""

    def step(
        self,
        rows: RowBatch,
        tensors: CacheTensors,
        *,
        recycled: bool,
        selected: Tensor | None,
        selected_at: Tensor | None,
    ) -> tuple[Edges, CacheTensors]: ...

    def context(self, rows: RowBatch, tensors: CacheTensors) -> tuple[Edges, CacheTensors]: ...


class DraftPath(Protocol):
    """The contract of every way to run the head."""

    def write_rows(self, rows: RowBatch, cache: DrafterCache) -> None: ...

    def draft(self, rows: RowBatch, cache: DrafterCache, *, num_drafts: int) -> Tensor: ...


HeadFactory = Callable[[DraftConfig, dict[str, Tensor], Decisions], HeadUnderTest]


@dataclass(frozen=True, eq=False)
class GoldenCase:
    """One case of a cases.json, with its checkpoint and vectors beside it."""

    folder: Path
    document: dict[str, Any]

    @property
    def name(self) -> str:
        return self.document["name"]

    @property
    def sequences(self) -> list[dict[str, Any]]:
        return self.document["sequences"]

    @property
    def variants(self) -> dict[str, list[list[list[int]]]]:
        """Drafts by variant, [sequence][propose][draft]."""
        return self.document["variants"]

    @property
    def is_float32(self) -> bool:
        return self.document["dtype"] == "float32"

    @property
    def vectors(self) -> dict[str, Tensor]:
        return _vectors(self.folder / self.document["vectors"])

    def config(self, *, dtype: torch.dtype | None = None) -> DraftConfig:
        return read_config(self.folder / self.document["checkpoint"], dtype=dtype)

    def weights(self, config: DraftConfig) -> dict[str, Tensor]:
        return _weights(self.folder / self.document["checkpoint"], config)

    def drafts(self, index: int) -> list[list[int]]:
        """The golden drafts of each propose of sequence `index`."""
        return [op["drafts"] for _, op in self.proposes(index)]

    def proposes(self, index: int) -> list[tuple[int, dict[str, Any]]]:
        """(op number, op) of each propose of sequence `index`."""
        return [(number, op) for number, op in enumerate(self.sequences[index]["ops"]) if op["op"] == "propose"]


@dataclass
class StepPlay:
    """One played step beside what the vectors say of it; `key` is seq{s}/op{j}/step{i}."""

    key: str
    expected: dict[str, Any]  # the step's JSON: selected, margins
    edges: Edges
    sequence: int
    position: int
    propose: int  # number among the sequence's proposes
    index: int  # number of the step in its propose


@dataclass
class SequencePlay:
    """One played sequence: prefill edges by op key, steps, drafts of each propose, and the cache at the end."""

    cache: DrafterCache
    state: CachedSequence
    context: dict[str, Edges] = field(default_factory=dict)
    steps: list[StepPlay] = field(default_factory=list)
    drafts: list[list[int]] = field(default_factory=list)


def load_cases(folder: Path) -> list[GoldenCase]:
    """Every case of `folder`; a folder without cases is an error, never no tests."""
    file = folder / "cases.json"
    if not file.is_file():
        raise FileNotFoundError(f"{file}: expected golden cases, got no such file; name a folder of golden vectors")
    cases = json.loads(file.read_text())["cases"]
    if not cases:
        raise ValueError(f"{file}: expected golden cases, got an empty list")
    return [GoldenCase(folder=folder, document=case) for case in cases]


def play_sequence(
    case: GoldenCase,
    index: int,
    factory: HeadFactory,
    *,
    recycle: str = "post_norm",
    index_share: str = "off",
    dtype: torch.dtype | None = None,
    is_teacher_forced: bool = False,
) -> SequencePlay:
    """Play sequence `index` of the case from an empty cache.

    `is_teacher_forced`: steps 2..K take the vectors' own previous token and hidden instead of what came out (bf16).
    `dtype` computes in another dtype than the checkpoint's.
    """
    config = case.config(dtype=dtype)
    decisions = Decisions(supplied_hidden="post_norm", recycle=recycle, index_share=index_share)
    head = factory(config, case.weights(config), decisions)
    longest = max(op.get("rows_after", 0) for op in case.sequences[index]["ops"])
    # odd neighbours: the sequence under test lies in neither the first block nor the first slot
    memory = DrafterCache.for_rows(config, longest + 64, num_sequences=2)
    memory.allocate(rows=1)
    player = _Player(case, index, head, SequencePlay(memory, memory.allocate()), decisions, is_teacher_forced)
    for number, op in enumerate(case.sequences[index]["ops"]):
        {"prefill": player.prefill, "propose": player.propose, "after_verify": player.after_verify}[op["op"]](
            number, op
        )
        assert memory.rows(player.play.state) == op["rows_after"], f"{case.name} seq{index}/op{number}"
    return player.play


@dataclass
class _Player:
    case: GoldenCase
    index: int
    head: HeadUnderTest
    play: SequencePlay
    decisions: Decisions
    is_teacher_forced: bool

    @property
    def hiddens(self) -> Tensor:
        name = self.case.sequences[self.index]["hiddens"]
        return self.case.vectors[name].to(self.play.cache.latent.dtype)

    def prefill(self, number: int, op: dict[str, Any]) -> None:
        self._feed(number, op["tokens"], op["hiddens"][0], op["rows_written"])

    def propose(self, number: int, op: dict[str, Any]) -> None:
        cache, state = self.play.cache, self.play.state
        assert cache.rows(state) == op["position"] == op["rows_before"]
        cache.ensure_capacity(state, op["position"] + op["k"])
        token, hidden = torch.tensor([op["last_token"]]), self.hiddens[op["hidden_row"]][None]
        drafts: list[int] = []
        selected = selected_at = None
        for step in range(op["k"]):
            key = f"seq{self.index}/op{number}/step{step}"
            rows = self._rows(token, hidden, op["position"] + step)
            edges, tensors = self.head.step(
                rows, self._tensors(), recycled=step > 0, selected=selected, selected_at=selected_at
            )
            self._keep(tensors)
            expected = op["steps"][step]
            self.play.steps.append(
                StepPlay(key, expected, edges, self.index, op["position"] + step, len(self.play.drafts), step)
            )
            if self.decisions.index_share != "off" and step == 0:
                selected, selected_at = edges["selected"], rows.position
            token = edges["logits"].argmax(-1)
            drafts.append(int(token))
            recycled_edge = "head_normed" if self.decisions.recycle == "post_norm" else "block_out"
            hidden = edges[recycled_edge]
            if self.is_teacher_forced:
                token = torch.tensor([op["drafts"][step]])
                hidden = self.case.vectors[f"{key}/{recycled_edge}"].to(hidden.dtype)
        self.play.drafts.append(drafts)
        cache.commit(state, op["position"] + op["k"])

    def after_verify(self, number: int, op: dict[str, Any]) -> None:
        kept = self.play.cache.rewind(self.play.state, op["rows_after_rewind"])
        assert kept == op["rows_after_rewind"], "the ring is deep enough for every golden rewind"
        if op.get("catchup_tokens"):
            assert op["row_base"] == kept
            self._feed(number, op["catchup_tokens"], op["catchup_hiddens"][0], op["rows_written"])

    def _feed(self, number: int, tokens: list[int], first_hidden: int, num_rows: int) -> None:
        """Row i of the fed rows pairs tokens[i + 1] with hiddens[first_hidden + i]."""
        cache, state = self.play.cache, self.play.state
        assert num_rows == len(tokens) - 1
        if num_rows == 0:
            return
        start = cache.rows(state)
        cache.ensure_capacity(state, start + num_rows)
        hidden = self.hiddens[first_hidden : first_hidden + num_rows]
        edges, tensors = self.head.context(self._rows(torch.tensor(tokens[1:]), hidden, start), self._tensors())
        self._keep(tensors)
        cache.commit(state, start + num_rows)
        self.play.context[f"seq{self.index}/op{number}"] = edges

    def _rows(self, token: Tensor, hidden: Tensor, start: int) -> RowBatch:
        return rows_of(self.play.cache, self.play.state, token, hidden, start)

    def _tensors(self) -> CacheTensors:
        return self.play.cache.latent, self.play.cache.index_keys, self.play.cache.tail

    def _keep(self, tensors: CacheTensors) -> None:
        for ours, theirs in zip(self._tensors(), tensors, strict=True):
            if theirs is not ours:
                ours.copy_(theirs)


def play_path(case: GoldenCase, index: int, path: DraftPath) -> SequencePlay:
    """Play sequence `index` over a draft path, a whole chain a propose; drafts and the cache come back, no edges."""
    config, sequence = case.config(), case.sequences[index]
    longest = max(op.get("rows_after", 0) for op in sequence["ops"])
    memory = DrafterCache.for_rows(config, longest)
    play = SequencePlay(memory, memory.allocate(rows=longest))
    state, hiddens = play.state, case.vectors[sequence["hiddens"]]
    for number, op in enumerate(sequence["ops"]):
        if op["op"] == "propose":
            token, hidden = torch.tensor([op["last_token"]]), hiddens[op["hidden_row"]][None]
            rows = rows_of(memory, state, token, hidden, op["position"])
            play.drafts += path.draft(rows, memory, num_drafts=op["k"]).ids.tolist()
            memory.commit(state, op["position"] + op["k"])
        else:
            if op["op"] == "after_verify":
                memory.rewind(state, op["rows_after_rewind"])
            tokens, first = (
                op.get("tokens", op.get("catchup_tokens", [0])),
                op.get("hiddens", op.get("catchup_hiddens")),
            )
            if len(tokens) > 1:
                start, hidden = memory.rows(state), hiddens[first[0] : first[0] + len(tokens) - 1]
                path.write_rows(rows_of(memory, state, torch.tensor(tokens[1:]), hidden, start), memory)
                memory.commit(state, start + len(tokens) - 1)
        assert memory.rows(state) == op["rows_after"], f"{case.name} seq{index}/op{number}"
    return play


def rows_of(memory: DrafterCache, state: CachedSequence, token: Tensor, hidden: Tensor, start: int) -> RowBatch:
    """Rows of one sequence from position `start` on."""
    count = token.shape[0]
    return RowBatch(
        token=token,
        hidden=hidden,
        position=torch.arange(start, start + count),
        sequence=torch.full((count,), state.slot),
        block_table=memory.block_table([state]).expand(count, -1).contiguous(),
    )


def cache_contents(memory: DrafterCache, state: CachedSequence) -> dict[str, Tensor]:
    """What counts of a sequence's cache: latent rows, keys of complete pools, raw rows that the ring still holds.

    The raw rows start at `raw_from`, and are given as idx_k and idx_gate.
    """
    blocks = state.blocks
    rows, raw = memory.rows(state), torch.arange(state.raw_from, memory.rows(state))
    ring = memory.tail[state.slot, raw % memory.tail_depth]
    return {
        "latent": memory.latent[blocks].flatten(0, 1)[:rows],
        "pool_keys": memory.index_keys[blocks].flatten(0, 1)[: memory.complete_pools(state)],
        "idx_k": ring[:, 0],
        "idx_gate": ring[:, 1],
    }


@cache
def _vectors(file: Path) -> dict[str, Tensor]:
    return load_file(file)


@cache
def _weights(checkpoint: Path, config: DraftConfig) -> dict[str, Tensor]:
    return load_weights(checkpoint, head_weight_specs(config))
