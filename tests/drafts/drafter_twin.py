"""Proposers over either path, a twin that never drafts, and what there is to compare of their caches.

A pair is what a cache row holds: a token, and the hidden it came with. Row r of a text pairs token r+1 with hidden r.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from drafts.decisions import Decisions
from drafts.levers import ModelLevers
from drafts.proposer import DraftProposer
from drafts.proposer_state import ProposerState
from drafts.runner import DraftRunner
from tests.drafts.tiny_head import context_rows, tiny_config, tiny_weights

# sums in another order where the number of rows of a product differs; values are of order 1
CLOSE = {"atol": 1e-6, "rtol": 1e-5}

both_paths = pytest.mark.parametrize("path", ["eager", "circuit"])


def make_proposer(
    path: str = "eager",
    *,
    max_seq_len: int = 96,
    max_num_drafts: int = 4,
    num_sequences: int = 2,
    levers: ModelLevers | None = None,
    decisions: dict[str, str] | None = None,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    device: torch.device | None = None,
    **config: Any,
) -> DraftProposer:
    """A proposer of the tiny head on the path of that name; what it frees turns into NaN."""
    made = tiny_config(dtype=dtype, **config)
    proposer = DraftProposer(
        made,
        {name: weight.to(device) for name, weight in tiny_weights(made, seed=seed).items()},
        Decisions(**({"supplied_hidden": "post_norm"} | (decisions or {}))),
        max_seq_len=max_seq_len,
        max_num_drafts=max_num_drafts,
        num_sequences=num_sequences,
        levers=levers,
    )
    proposer.cache.poison_freed = True
    if path == "circuit":
        swap_in(proposer)
    return proposer


def swap_in(proposer: DraftProposer) -> DraftRunner:
    binding = proposer.circuit_draft()
    assert binding is not None
    runner = DraftRunner(binding)
    proposer.set_circuit_draft(runner)
    return runner


@dataclass(frozen=True)
class Text:
    """A text that a target has run: tokens [P] and hiddens [P, hidden_size]."""

    tokens: Tensor
    hiddens: Tensor

    def prefill(self, proposer: DraftProposer, state: ProposerState, num_rows: int) -> None:
        """Write the first rows of the text to a state that has none."""
        tokens, hiddens = self.tokens[: num_rows + 1], self.hiddens[: num_rows + 1]
        assert proposer.prefill_drafter(tokens, hiddens, state) == num_rows

    def append(self, proposer: DraftProposer, state: ProposerState, end: int) -> None:
        """Write the rows from the state's end up to `end`."""
        start = proposer.drafter_rows(state)
        written = proposer.catchup_drafter(
            self.tokens[start + 1 : end + 1], self.hiddens[start:end], start, start, state
        )
        assert written == end - start

    def propose(self, proposer: DraftProposer, state: ProposerState, position: int, num_drafts: int) -> list[int]:
        """Draft after token position + 1."""
        token, hidden = int(self.tokens[position + 1]), self.hiddens[position]
        return proposer.propose(token, hidden, position, num_drafts, state)


def make_text(proposer: DraftProposer, length: int, *, seed: int = 1) -> Text:
    return Text(*context_rows(proposer.config, length, seed=seed))


@dataclass(frozen=True)
class Contents:
    """The live cache of a sequence: latent rows, keys of complete pools, and the raw rows that its tail still holds."""

    latent: Tensor  # [rows, kv_lora_rank]
    pool_keys: Tensor  # [complete pools, index_head_dim]
    raw: Tensor  # [rows - raw_from, 2, index_head_dim]


def contents(proposer: DraftProposer, state: ProposerState) -> Contents:
    cache, sequence = proposer.cache, state.sequence
    rows = proposer.drafter_rows(state)
    latent = cache.latent[sequence.blocks].flatten(0, 1)[:rows]
    keys = cache.index_keys[sequence.blocks].flatten(0, 1)[: cache.complete_pools(sequence)]
    held = torch.arange(sequence.raw_from, rows) % cache.tail_depth
    return Contents(latent, keys, cache.tail[sequence.slot][held])


def fresh_twin(proposer: DraftProposer, tokens: Tensor, hiddens: Tensor) -> tuple[DraftProposer, ProposerState]:
    """A drafter of the same head, on the eager path, that was only ever given these pairs; it never drafted."""
    twin = DraftProposer(
        proposer.config,
        proposer.weights,
        proposer.decisions,
        max_seq_len=proposer.max_seq_len,
        max_num_drafts=proposer.max_num_drafts,
    )
    state = twin.alloc_state()
    assert twin.catchup_drafter(tokens, hiddens, 0, 0, state) == len(tokens)
    return twin, state


def assert_same_contents(got: Contents, expected: Contents, **closeness: float) -> None:
    """Compare latent rows, pool keys and the raw rows that both still hold, counted from the newest."""
    tolerance = closeness or CLOSE
    torch.testing.assert_close(got.latent, expected.latent, **tolerance)
    torch.testing.assert_close(got.pool_keys, expected.pool_keys, **tolerance)
    held = min(len(got.raw), len(expected.raw))
    torch.testing.assert_close(got.raw[len(got.raw) - held :], expected.raw[len(expected.raw) - held :], **tolerance)


def assert_holds(proposer: DraftProposer, state: ProposerState, text: Text, **closeness: float) -> None:
    """The state's rows are the text's first ones, as a drafter has them that was prefilled with them at once."""
    rows = proposer.drafter_rows(state)
    twin, twin_state = fresh_twin(proposer, text.tokens[1 : rows + 1], text.hiddens[:rows])
    assert proposer.last_pair_key(state) == twin.last_pair_key(twin_state)
    assert_same_contents(contents(proposer, state), contents(twin, twin_state), **closeness)


def poison_dead(proposer: DraftProposer, *states: ProposerState) -> None:
    """Write NaN over all that must not matter: rows and pool keys beyond each end, lost raw rows, the null places."""
    cache, config = proposer.cache, proposer.config
    cache.latent[0] = cache.index_keys[0] = cache.tail[0] = math.nan
    for state in states:
        sequence, rows = state.sequence, proposer.drafter_rows(state)
        table = torch.tensor([0, *sequence.blocks])[1:]
        keys_a_block = cache.block_size // config.index_kpool
        row = torch.arange(rows, cache.capacity(sequence))
        cache.latent[table[row // cache.block_size], row % cache.block_size] = math.nan
        pool = torch.arange(rows // config.index_kpool, len(table) * keys_a_block)
        cache.index_keys[table[pool // keys_a_block], pool % keys_a_block] = math.nan
        is_lost = torch.ones(cache.tail_depth, dtype=torch.bool)
        is_lost[torch.arange(sequence.raw_from, rows) % cache.tail_depth] = False
        cache.tail[sequence.slot, is_lost] = math.nan


class InjectedFault(Exception):
    """Raised by `FailingOps`; nothing in the tree catches it by name."""


class FailingOps(TorchDispatchMode):
    """Counts tensor operations, and raises in place of number `fail_at` (from 0)."""

    def __init__(self, fail_at: int | None = None) -> None:
        super().__init__()
        self.fail_at = fail_at
        self.num_ops = 0

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        index, self.num_ops = self.num_ops, self.num_ops + 1
        if index == self.fail_at:
            raise InjectedFault(f"operation {index}, {func}")
        return func(*args, **(kwargs or {}))


def snapshot(proposer: DraftProposer, *states: ProposerState) -> list[object]:
    """Everything of these states that a failed call must leave as it was, comparable, bit for bit."""
    parts: list[object] = [proposer.cache.num_free_blocks, proposer.cache.num_free_sequences]
    for state in states:
        held = contents(proposer, state)
        parts += [proposer.drafter_rows(state), state.sequence.raw_from, state.drafted_from, state.num_drafted]
        parts += [part.numpy().tobytes() for part in (held.latent, held.pool_keys, held.raw)]
    return parts
