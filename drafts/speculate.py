"""The draft-verify loop: a drafter guesses K tokens, the target checks them in one pass.

What comes out does not depend on the drafter: greedy output equals plain decoding token for token, sampled output has
the target's distribution. Only the number of rounds depends on it.

A round, with committed tokens t_0 .. t_{m-1} of which the target holds all but the last, position = m-2:

    propose    drafts d_1 .. d_K from t_{m-1} and the target's hidden of t_{m-2}; first drafter row written: position
    verify     the target runs [t_{m-1}, d_1 .. d_K] in one pass; row i decides the token after d_i
    decide     a drafts stand; the target's own token follows them
    roll back  the target keeps t_{m-1}, d_1 .. d_a
    settle     the drafter keeps its true rows and gets the rows it lacks: row r pairs token r+1 with the hidden of r
"""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from time import perf_counter

import torch
from torch import Tensor

from drafts.decisions import HiddenForm
from drafts.generation import FinishReason, Generation, SpeculationMetrics
from drafts.sampling import Acceptance, Sampling, accept_greedy, accept_sampled, target_probabilities
from drafts.sequence_drafter import Proposer, SequenceDrafter, State
from drafts.targets import Target


def generate(
    target: Target,
    proposer: Proposer[State] | None,
    *,
    prompt_tokens: Sequence[int],
    max_new_tokens: int,
    num_drafts: int = 3,
    sampling: Sampling | None = None,
    stop_tokens: Collection[int] = (),
    mtp_kv_exact: bool = True,
    supplied_hidden: HiddenForm = "pre_norm",
    on_token: Callable[[int], None] | None = None,
) -> Generation:
    """Generate up to `max_new_tokens` tokens after a prompt, speculatively; without a proposer, plainly.

    sampling         None or temperature 0: greedy
    stop_tokens      generation ends with the first of these; it is emitted, and nothing after it is
    mtp_kv_exact     after a verify, rewrite the accepted drafts' drafter rows from the target's own hiddens; off: keep
                     the rows that recycled the drafter's own hiddens
    supplied_hidden  what the proposer is handed: before or after the target's final norm
    on_token         called with each token as it is emitted; an exception from it ends the generation

    Every round asks for `num_drafts` drafts, also where fewer tokens remain, so that a drafter sees one size and rounds
    compare; only the end of the target's positions lowers it. The drafter may return fewer, or none. The proposer's
    state is freed whatever happens; exceptions of target, proposer and callback pass through.

    Raises ValueError for an empty prompt, token ids outside the vocabulary (the drafter's too), more drafts than asked
    for, counts out of range, or a generation that cannot fit the target's positions; StateError when the drafter's row
    counts contradict its contract.
    """
    _check_arguments(target, prompt_tokens, max_new_tokens=max_new_tokens, num_drafts=num_drafts)
    decider = _Decider(sampling or Sampling())
    emitter = _Emitter(max_new_tokens, frozenset(stop_tokens), on_token)
    if proposer is None or num_drafts == 0:
        plain = _Loop(target, None, decider=decider, emitter=emitter, num_drafts=0, supplied_hidden=supplied_hidden)
        return plain.run(prompt_tokens)
    state = proposer.alloc_state_for(len(prompt_tokens) + max_new_tokens + num_drafts)
    try:
        drafter = SequenceDrafter(proposer, state, vocab_size=target.vocab_size, mtp_kv_exact=mtp_kv_exact)
        loop = _Loop(
            target, drafter, decider=decider, emitter=emitter, num_drafts=num_drafts, supplied_hidden=supplied_hidden
        )
        return loop.run(prompt_tokens)
    finally:
        proposer.free_state(state)


def _check_arguments(target: Target, prompt_tokens: Sequence[int], *, max_new_tokens: int, num_drafts: int) -> None:
    if not prompt_tokens:
        raise ValueError("generate.prompt_tokens: expected at least one token, got none")
    for token in prompt_tokens:
        if not isinstance(token, int) or not 0 <= token < target.vocab_size:
            raise ValueError(f"generate.prompt_tokens: expected ids in 0 .. {target.vocab_size - 1}, got {token!r}")
    if max_new_tokens < 1:
        raise ValueError(f"generate.max_new_tokens: expected at least 1, got {max_new_tokens}")
    if num_drafts < 0:
        raise ValueError(f"generate.num_drafts: expected at least 0, got {num_drafts}")
    # the last token emitted is never run, so it needs no position
    if len(prompt_tokens) + max_new_tokens - 1 > target.max_positions:
        raise ValueError(
            f"generate: expected prompt and new tokens to fit {target.max_positions} positions, got "
            f"{len(prompt_tokens)} + {max_new_tokens}; shorten the prompt or lower max_new_tokens"
        )


class _Emitter:
    """Collects the tokens that leave the loop and knows when they end."""

    def __init__(
        self, max_new_tokens: int, stop_tokens: frozenset[int], on_token: Callable[[int], None] | None
    ) -> None:
        self.tokens: list[int] = []
        self.margins: list[float] = []
        self.finish_reason: FinishReason | None = None
        self._max_new_tokens, self._stop_tokens, self._on_token = max_new_tokens, stop_tokens, on_token

    def emit(self, tokens: Sequence[int], logits: Tensor) -> None:
        """Emit tokens until the sequence ends; logits [n, vocab] are the rows that decided them."""
        for token, margin in zip(tokens, _margins(logits), strict=True):
            if self.finish_reason is not None:
                return
            self.tokens.append(token)
            self.margins.append(margin)
            if token in self._stop_tokens:
                self.finish_reason = "stop"
            elif len(self.tokens) == self._max_new_tokens:
                self.finish_reason = "length"
            if self._on_token is not None:
                self._on_token(token)


class _Decider:
    """Judges drafts by the target's logits, greedily or by rejection with one generator per sequence."""

    def __init__(self, sampling: Sampling) -> None:
        self._sampling, self._generator = sampling, sampling.generator()

    def decide(self, logits: Tensor, drafts: Sequence[int]) -> Acceptance:
        """Return how many drafts stand and the target's token after them; logits [K + 1, vocab]."""
        if self._sampling.is_greedy:
            return accept_greedy(logits, drafts)
        return accept_sampled(target_probabilities(logits, self._sampling), drafts, generator=self._generator)


@dataclass(frozen=True, slots=True)
class _RoundStart:
    """The last committed token, which the target has not run, and the hidden and position of the token before it."""

    token: int
    hidden: Tensor
    position: int


@dataclass(slots=True)
class _Tally:
    """Counts and times that grow round by round; see SpeculationMetrics."""

    num_rounds: int = 0
    offered: Counter[int] = field(default_factory=Counter)
    reached: Counter[int] = field(default_factory=Counter)
    accepted: Counter[int] = field(default_factory=Counter)
    target_prefill_s: float = 0.0
    drafter_prefill_s: float = 0.0
    target_s: float = 0.0
    drafter_s: float = 0.0
    decode_s: float = 0.0

    def add_round(self, num_offered: int, num_accepted: int) -> None:
        self.num_rounds += 1
        self.offered.update(range(num_offered))
        self.reached.update(range(min(num_offered, num_accepted + 1)))
        self.accepted.update(range(num_accepted))

    def metrics(self, *, num_tokens: int) -> SpeculationMetrics:
        columns = range(len(self.offered))
        return SpeculationMetrics(
            num_tokens=num_tokens,
            num_rounds=self.num_rounds,
            offered=tuple(self.offered[column] for column in columns),
            reached=tuple(self.reached[column] for column in columns),
            accepted=tuple(self.accepted[column] for column in columns),
            target_prefill_s=self.target_prefill_s,
            drafter_prefill_s=self.drafter_prefill_s,
            target_s=self.target_s,
            drafter_s=self.drafter_s,
            decode_s=self.decode_s,
        )


@dataclass(slots=True)
class _Clock:
    """Seconds since the last reading."""

    last: float = field(default_factory=perf_counter)

    def lap(self) -> float:
        now = perf_counter()
        elapsed, self.last = now - self.last, now
        return elapsed


class _Loop:
    """One generation: what is committed, what the next round starts from, and what was counted."""

    def __init__(
        self,
        target: Target,
        drafter: SequenceDrafter[State] | None,
        *,
        decider: _Decider,
        emitter: _Emitter,
        num_drafts: int,
        supplied_hidden: HiddenForm,
    ) -> None:
        self._sequence, self._max_positions = target.open_sequence(), target.max_positions
        self._drafter, self._decider, self._emitter = drafter, decider, emitter
        self._num_drafts, self._supplied_hidden = num_drafts, supplied_hidden
        self._tally = _Tally()

    def run(self, prompt_tokens: Sequence[int]) -> Generation:
        """Prefill, then run rounds until the sequence ends."""
        start = self._prefill(prompt_tokens)
        clock = _Clock()
        while self._emitter.finish_reason is None:
            start = self._round(start)
        self._tally.decode_s = clock.lap()
        metrics = self._tally.metrics(num_tokens=len(self._emitter.tokens))
        tokens, margins = tuple(self._emitter.tokens), tuple(self._emitter.margins)
        return Generation(tokens, margins, self._emitter.finish_reason, metrics)

    def _prefill(self, prompt_tokens: Sequence[int]) -> _RoundStart:
        clock = _Clock()
        run = self._sequence.prefill(prompt_tokens)
        token = self._decider.decide(run.logits, ()).token
        self._tally.target_prefill_s = clock.lap()
        self._emitter.emit([token], run.logits)
        hiddens = run.hidden_rows(self._supplied_hidden)
        if self._drafter is not None and self._emitter.finish_reason is None:
            clock.lap()
            self._drafter.prefill(prompt_tokens, hiddens)
            self._tally.drafter_prefill_s = clock.lap()
        return _RoundStart(token, hiddens[-1], len(prompt_tokens) - 1)

    def _round(self, start: _RoundStart) -> _RoundStart:
        tally, drafter, clock = self._tally, self._drafter, _Clock()
        # position + 2 tokens are committed; they and the drafts have to fit the target
        num_wanted = min(self._num_drafts, self._max_positions - start.position - 2)
        if num_wanted == 0:
            drafter = None
        drafts: list[int] = []
        if drafter is not None:
            drafts = drafter.propose(start.token, start.hidden, position=start.position, num_drafts=num_wanted)
            tally.drafter_s += clock.lap()
        run = self._sequence.verify([start.token, *drafts])
        acceptance = self._decider.decide(run.logits, drafts)
        num_accepted = acceptance.num_accepted
        self._sequence.rollback(num_accepted + 1)
        tally.target_s += clock.lap()
        tally.add_round(len(drafts), num_accepted)
        self._emitter.emit([*drafts[:num_accepted], acceptance.token], run.logits[: num_accepted + 1])
        hiddens = run.hidden_rows(self._supplied_hidden)
        if drafter is not None and self._emitter.finish_reason is None:
            clock.lap()
            tokens = [start.token, *drafts[:num_accepted]]
            known = torch.cat([start.hidden.unsqueeze(0), hiddens[:num_accepted]])
            drafter.settle(tokens, known, position=start.position, num_accepted=num_accepted)
            tally.drafter_s += clock.lap()
        return _RoundStart(acceptance.token, hiddens[num_accepted], start.position + num_accepted + 1)


def _margins(logits: Tensor) -> list[float]:
    if logits.shape[-1] < 2:
        return [float("inf")] * logits.shape[0]
    # the two values alone: which ids they belong to differs between topk and argmax where logits tie
    largest = logits.float().topk(2, dim=-1).values
    return (largest[:, 0] - largest[:, 1]).tolist()
