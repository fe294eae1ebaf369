"""A target and drafters in plain torch whose every value is known: for tests of the loop alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from drafts.targets import TargetRun

NORMED = 1000.0  # what a normed hidden has over the plain one


class ScriptedTarget:
    """Next-token logits depend on the last two tokens through a table; a hidden is [position, token]."""

    def __init__(self, *, vocab_size: int = 12, max_positions: int = 400, seed: int = 0, spread: float = 2.0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.table = torch.randn(vocab_size, vocab_size, vocab_size, generator=generator) * spread
        self.vocab_size, self.max_positions = vocab_size, max_positions
        self.longest = 0  # most tokens any sequence held

    def logits_after(self, tokens: Sequence[int]) -> Tensor:
        return self.table[tokens[-2] if len(tokens) > 1 else 0, tokens[-1]]

    def continuation(self, tokens: Sequence[int], length: int) -> list[int]:
        """The greedy tokens after `tokens`."""
        context = list(tokens)
        for _ in range(length):
            context.append(int(self.logits_after(context).argmax()))
        return context[len(tokens) :]

    def open_sequence(self) -> ScriptedSequence:
        return ScriptedSequence(self)


class ScriptedSequence:
    def __init__(self, target: ScriptedTarget) -> None:
        self.target, self.tokens, self.num_run = target, [], 0

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    def prefill(self, tokens: Sequence[int]) -> TargetRun:
        assert not self.tokens
        run = self._run(tokens)
        return TargetRun(run.hiddens, run.normed_hiddens, run.logits[-1:])

    def verify(self, tokens: Sequence[int]) -> TargetRun:
        assert self.tokens
        self.num_run = len(tokens)
        return self._run(tokens)

    def rollback(self, num_kept: int) -> None:
        assert 1 <= num_kept <= self.num_run, "one rollback per verify, the committed token always kept"
        del self.tokens[len(self.tokens) - (self.num_run - num_kept) :]
        self.num_run = 0

    def _run(self, tokens: Sequence[int]) -> TargetRun:
        hiddens, logits = [], []
        for token in tokens:
            hiddens.append([float(len(self.tokens)), float(token)])
            self.tokens.append(token)
            logits.append(self.target.logits_after(self.tokens))
        assert len(self.tokens) <= self.target.max_positions
        self.target.longest = max(self.target.longest, len(self.tokens))
        rows = torch.tensor(hiddens)
        return TargetRun(rows, rows + NORMED, torch.stack(logits))


@dataclass
class DrafterState:
    rows: list[tuple[int, Tensor | None]] = field(default_factory=list)  # (token, true hidden or None: recycled)
    base: int = 0
    num_last: int = 0
    is_freed: bool = False


class ScriptedDrafter:
    """Drafts by a rule and keeps its rows as the contract says, checking what it is given.

    rule(tokens, num_drafts): the drafts after `tokens`, all that is known to be committed.
    """

    def __init__(self, rule: Callable[[list[int], int], list[int]], prompt_tokens: Sequence[int]) -> None:
        self.rule, self.first_token = rule, prompt_tokens[0]
        self.states: list[DrafterState] = []
        self.rows_at_propose: list[list[tuple[int, Tensor | None]]] = []
        self.num_asked: list[int] = []

    def alloc_state_for(self, budget_tokens: int | None) -> DrafterState:
        self.states.append(DrafterState())
        return self.states[-1]

    def free_state(self, state: DrafterState) -> None:
        state.is_freed = True

    def drafter_rows(self, state: DrafterState) -> int:
        return len(state.rows)

    def prefill_drafter(self, prompt_tokens: Sequence[int], hiddens: Tensor, state: DrafterState) -> int:
        assert not state.rows
        assert hiddens.shape[0] == len(prompt_tokens)
        state.rows.extend(zip(prompt_tokens[1:], hiddens[:-1], strict=True))
        return len(prompt_tokens) - 1

    def catchup_drafter(
        self, tokens: Sequence[int], hiddens: Tensor, row_base: int, pos_base: int, state: DrafterState
    ) -> int:
        assert pos_base == row_base
        if row_base != len(state.rows):
            return 0
        state.rows.extend(zip(tokens, hiddens, strict=True))
        return len(tokens)

    def propose(
        self, last_token: int, target_hidden: Tensor, position: int, num_drafts: int, state: DrafterState
    ) -> list[int]:
        assert not state.is_freed
        assert position == len(state.rows), f"position {position} with {len(state.rows)} rows"
        self.rows_at_propose.append(list(state.rows))
        self.num_asked.append(num_drafts)
        drafts = self.rule([self.first_token, *(token for token, _ in state.rows), last_token], num_drafts)
        if drafts:
            state.rows.append((last_token, target_hidden))
            state.rows.extend((draft, None) for draft in drafts[:-1])
        state.base, state.num_last = position, len(drafts)
        return drafts

    def after_verify(self, num_accepted: int, state: DrafterState) -> int:
        num_kept = min(state.num_last, num_accepted + 1)
        del state.rows[state.base + num_kept :]
        return num_kept

    def rewind(self, rows: int, state: DrafterState) -> int:
        del state.rows[rows:]
        return len(state.rows)
