"""What one rank of a split drafter does in a test; every rank runs the same function, in a process of its own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from circuit import CircuitError
from drafts.config import DraftConfig
from drafts.decisions import Decisions
from drafts.levers import ModelLevers
from drafts.parallel import ParallelPlan, split_weights, weight_splits
from drafts.proposer import DraftProposer
from drafts.ranks import LoggedExchange, join_ranks
from drafts.runner import DraftRunner
from tests.drafts.drafter_twin import Text, contents, make_text
from tests.drafts.tiny_head import tiny_config, tiny_weights

# 4 heads, 7 experts and 60 tokens: experts that do not divide by 2 or 4, a vocabulary that does
SIZES = {"num_attention_heads": 4, "n_routed_experts": 7, "vocab_size": 60}
MAX_NUM_DRAFTS = 4
PROMPT_ROWS = 18


@dataclass(frozen=True)
class Case:
    """A drafter to split: sizes and decisions over the tiny ones, and what its weights are changed by.

    favoured: experts that the router chooses on every row. tied_rows: rows of lm_head that are made equal, and
    so are the others.
    """

    plan: tuple[int, int]  # tp, ep
    path: str = "circuit"
    sizes: tuple[tuple[str, Any], ...] = ()
    decisions: tuple[tuple[str, str], ...] = ()
    favoured: tuple[int, ...] = ()
    tied_rows: tuple[int, ...] = ()
    dtype: torch.dtype = torch.float32
    has_lever: bool = True
    max_seq_len: int = 96
    draft_vocab: tuple[int, ...] | None = None

    @property
    def config(self) -> DraftConfig:
        return tiny_config(dtype=self.dtype, **{**SIZES, **dict(self.sizes)})

    @property
    def num_ranks(self) -> int:
        return max(self.plan)

    def weights(self) -> dict[str, Tensor]:
        """The whole drafter's."""
        weights = tiny_weights(self.config)
        if self.favoured:
            weights["mlp.gate.e_score_correction_bias"][[*self.favoured]] += 10
        if self.tied_rows:
            # one entry a row, so that equal rows give equal logits whatever the order of a sum
            weights["lm_head"].zero_()
            weights["lm_head"][[*self.tied_rows], 0] = 8.0
        return weights


@dataclass(frozen=True)
class Outcome:
    """What a rank saw: drafts or the error of each call, its cache, its exchanges, and facts of the proposer."""

    drafts: list[Any]
    cache: tuple[Tensor, Tensor, Tensor]
    log: list[LoggedExchange]
    needs_comm: bool
    edges: dict[str, Tensor]


def make_rank(case: Case) -> tuple[DraftProposer, list[LoggedExchange], dict[str, Tensor]]:
    """This rank's proposer, the log of its exchanges, and the edges of the last circuit run."""
    log: list[LoggedExchange] = []
    ranks = join_ranks(ParallelPlan(tp=case.plan[0], ep=case.plan[1]), log=log)
    weights = case.weights()
    levers = ModelLevers(mtp_ep_propose=case.has_lever, draft_vocab=case.draft_vocab)
    if ranks is not None and case.has_lever:
        splits = weight_splits(case.config, ranks.plan, ranks.rank, draft_head=levers.head)
        weights = split_weights(weights, splits)
    proposer = DraftProposer(
        case.config,
        weights,
        Decisions(**({"supplied_hidden": "post_norm"} | dict(case.decisions))),
        max_seq_len=case.max_seq_len,
        max_num_drafts=MAX_NUM_DRAFTS,
        num_sequences=2,
        levers=levers,
        ranks=ranks,
    )
    edges: dict[str, Tensor] = {}
    if case.path == "circuit":
        binding = proposer.circuit_draft()
        assert binding is not None
        proposer.set_circuit_draft(
            DraftRunner(binding, observe=lambda step, value, tensor: edges.update({f"{value.name}.{step}": tensor}))
        )
    return proposer, log, edges


def outcome_of(proposer: DraftProposer, state: Any, drafts: Iterable[Any], log: Any, edges: Any) -> Outcome:
    held = contents(proposer, state)
    kept = {name: edges[name].clone() for name in edges if name.split(".")[0] in ("block_out", "experts_out", "draft")}
    return Outcome([*drafts], (held.latent, held.pool_keys, held.raw), log, proposer.needs_comm, kept)


def draft_rounds(rank: int, case: Case) -> Outcome:
    """Prefill, then three rounds with a verify between them, a rewind among them, then a batch with confidences."""
    proposer, log, edges = make_rank(case)
    text = make_text(proposer, 60)
    state, other = proposer.alloc_state_for(60), proposer.alloc_state_for(30)
    text.prefill(proposer, state, PROMPT_ROWS)
    assert not log, "context rows exchange nothing"
    drafts: list[Any] = []
    for position, num_drafts, accepted in ((18, 3, 1), (20, 4, 0), (19, 1, 1)):
        if proposer.drafter_rows(state) < position:
            text.append(proposer, state, position)
        drafts.append(text.propose(proposer, state, position, num_drafts))
        proposer.after_verify(accepted, state)
    # four rows that nothing has judged, three of them of the drafter's own hiddens
    drafts.append(text.propose(proposer, state, 20, 4))
    outcome = outcome_of(proposer, state, drafts, list(log), edges)
    proposer.after_verify(0, state)
    text.prefill(proposer, other, 5)
    confidences: list[list[float]] = []
    rows = proposer.drafter_rows(state)
    made = proposer.propose_batch(
        [int(text.tokens[rows + 1]), int(text.tokens[6])],
        text.hiddens[[rows, 5]],
        [rows, 5],
        2,
        [state, other],
        grammar_bitmasks=[None, all_but(made_of=drafts, vocab=case.config.vocab_size)],
        confidences=confidences,
    )
    return Outcome([*outcome.drafts, made, confidences], outcome.cache, log, outcome.needs_comm, outcome.edges)


def all_but(*, made_of: list[Any], vocab: int) -> Tensor:
    """A mask that allows every token but those drafted so far."""
    words = torch.full((1, -(-vocab // 32)), -1, dtype=torch.int64)
    for token in {draft for drafts in made_of for draft in drafts}:
        words[0, token // 32] &= ~(1 << (token % 32))
    return words.to(torch.int32)


def propose_once(rank: int, case: Case, faults: dict[int, dict[str, Any]]) -> Outcome:
    """One propose that goes wrong on the ranks that `faults` names, and one after it that is right on all.

    faults: by rank, what is other there: num_drafts, position, token, rows (fewer are written), budget, path,
    raise_at (value and step at which the circuit raises), hidden.
    """
    mine = faults.get(rank, {})
    path = mine.get("path", case.path)
    proposer, log, edges = make_rank(Case(**{**vars(case), "path": path}))
    text = make_text(proposer, 60)
    state = proposer.alloc_state_for(mine.get("budget", 40))
    text.prefill(proposer, state, mine.get("rows", PROMPT_ROWS))
    before = contents(proposer, state)
    if "raise_at" in mine:
        runner = proposer.path
        assert isinstance(runner, DraftRunner)
        value_name, step_number = mine["raise_at"]

        def fail(step: int, value: Any, tensor: Tensor) -> None:
            if (value.name, step) == (value_name, step_number):
                raise ArithmeticError(f"a fault of the test at {value.name}, step {step}")

        runner.observe = fail
    position = mine.get("position", PROMPT_ROWS)
    token = mine.get("token", int(text.tokens[PROMPT_ROWS + 1]))
    hidden = text.hiddens[PROMPT_ROWS] + mine.get("hidden", 0.0)
    drafts: list[Any] = []
    try:
        drafts.append(proposer.propose(token, hidden, position, mine.get("num_drafts", 3), state))
    except (CircuitError, ValueError, ArithmeticError) as error:
        drafts.append((type(error).__name__, str(error)))
        after = contents(proposer, state)
        assert proposer.drafter_rows(state) == mine.get("rows", PROMPT_ROWS)
        for held, kept in zip(
            (after.latent, after.pool_keys, after.raw), (before.latent, before.pool_keys, before.raw), strict=True
        ):
            assert torch.equal(held, kept), "a call that failed left its mark on the cache"
    drafts.append(_recovered(proposer, text, mine, case))
    return outcome_of(proposer, state, drafts, log, edges)


def _recovered(proposer: DraftProposer, text: Text, mine: dict[str, Any], case: Case) -> list[int]:
    """The next call, on a fresh sequence and one path, drafts on all ranks as if nothing had been."""
    if proposer.path.name != f"{case.path}:reference" or "raise_at" in mine:
        binding = proposer.circuit_draft()
        assert binding is not None
        proposer.set_circuit_draft(DraftRunner(binding) if case.path == "circuit" else None)
    state = proposer.alloc_state_for(40)
    text.prefill(proposer, state, 7)
    return text.propose(proposer, state, 7, 2)
