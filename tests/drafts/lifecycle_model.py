"""What the life cycle machine holds a drafter to: pairs of rows, and chains drafted on a fresh prefill of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from hypothesis import assume
from torch import Tensor

from drafts.carry import DrafterKv
from drafts.eager_draft_head import allowed_logits
from drafts.eager_glm5_next import EagerGlm5NextHead
from drafts.proposer import DraftProposer
from drafts.proposer_state import ProposerState

TIE = 1e-4  # logits closer than this may be drafted in either order; rounding differs with the rows of a run


@dataclass
class Rows:
    """The pairs that rows must hold, and the first row whose raw (key, gate) the ring has not lost."""

    tokens: list[int] = field(default_factory=list)
    hiddens: list[Tensor] = field(default_factory=list)
    raw_from: int = 0

    def __len__(self) -> int:
        return len(self.tokens)

    def copy(self) -> Rows:
        return Rows(list(self.tokens), list(self.hiddens), self.raw_from)

    def rewound_to(self, rows: int, kpool: int) -> int:
        """Rows that a rewind keeps: those asked for where the pool they end in can be made again, else its start."""
        if rows >= len(self):
            return len(self)
        start = rows - rows % kpool
        return rows if self.raw_from <= start else start

    def rewind(self, kept: int) -> None:
        if kept < len(self):
            del self.tokens[kept:], self.hiddens[kept:]
            self.raw_from = min(self.raw_from, kept)

    def append(self, tokens: Sequence[int], hiddens: Sequence[Tensor], depth: int) -> None:
        self.tokens += tokens
        self.hiddens += hiddens
        self.raw_from = max(self.raw_from, len(self) - depth)


@dataclass(eq=False)
class Live:
    """A sequence of the drafter and what it must hold."""

    state: ProposerState
    max_rows: int
    rows: Rows = field(default_factory=Rows)
    drafted_from: int = 0
    num_drafted: int = 0

    def rewind(self, kept: int) -> None:
        self.rows.rewind(kept)
        self.num_drafted = min(self.num_drafted, max(0, kept - self.drafted_from))


@dataclass(eq=False)
class Carried:
    kv: DrafterKv
    rows: Rows


@dataclass(frozen=True)
class Chain:
    """One propose: after `token`, fed `hidden`, from row `position` on; masks bool [m, vocab] where a grammar is."""

    live: Live
    token: int
    hidden: Tensor
    position: int
    num_drafts: int
    bitmask: Tensor | None = None

    @property
    def num_fitting(self) -> int:
        """Drafts that fit the sequence."""
        return max(0, min(self.num_drafts, self.live.max_rows - self.position))

    def is_possible(self, kpool: int) -> bool:
        rows = self.live.rows
        return self.position <= len(rows) and rows.rewound_to(self.position, kpool) == self.position


@dataclass(frozen=True)
class Twin:
    """A drafter that never drafts, and the eager head; what a drafter must hold is prefilled here, in one call."""

    proposer: DraftProposer
    head: EagerGlm5NextHead

    def prefilled(self, rows: Rows, count: int) -> ProposerState:
        """A state with the first `count` rows."""
        state = self.proposer.alloc_state()
        if count:
            tokens, hiddens = rows.tokens[:count], torch.stack(rows.hiddens[:count])
            assert self.proposer.catchup_drafter(tokens, hiddens, 0, 0, state) == count
        return state

    def expected_pairs(self, chain: Chain, ids: list[int]) -> list[tuple[int, Tensor]]:
        """Pairs of the chain's rows, each id held to be the best within rounding; each step is fed the ids given."""
        state, pairs = self.prefilled(chain.live.rows, chain.position), []
        token, hidden, first = chain.token, chain.hidden[None], None
        memory, where = self.proposer.cache, torch.tensor([state.sequence.slot])
        for index, draft in enumerate(ids):
            shares = first is not None and self.proposer.decisions.index_share != "off"
            step = self.head.step(
                torch.tensor([token]),
                hidden,
                torch.tensor([chain.position + index]),
                where,
                memory.block_table([state.sequence]),
                memory.latent,
                memory.index_keys,
                memory.tail,
                recycled=index > 0,
                selected=first.selected if first is not None and shares else None,
                selected_at=torch.tensor([chain.position]) if shares else None,
                record_edges=True,
            )
            first = first or step
            self.assume_no_tie(step.edges)
            logits = step.logits
            if chain.bitmask is not None and index < len(chain.bitmask):
                logits = allowed_logits(logits, chain.bitmask[index : index + 1])
            assert float(logits[0, draft]) >= float(logits.max()) - TIE
            pairs.append((token, hidden[0]))
            token, hidden = draft, step.hidden_out
        self.proposer.free_state(state)
        return pairs

    def assume_no_tie(self, edges: dict[str, Tensor]) -> None:
        """Give up an example where rounding decides which pools or experts are chosen; equal zeros are no tie of it."""
        config = self.proposer.config
        if "index_scores" in edges:
            scores = edges["index_scores"][0].sort(descending=True).values
            budget = config.index_topk_pools
            if len(scores) > budget:
                last, next_one = float(scores[budget - 1]), float(scores[budget])
                assume(last == next_one == 0.0 or last - next_one > 1e-5)
        router = edges["router_logits"][0].sigmoid() + self.proposer.weights["mlp.gate.e_score_correction_bias"]
        best = router.sort(descending=True).values
        chosen = config.num_experts_per_tok
        assume(float(best[chosen - 1] - best[chosen]) > 1e-5)
