"""What a generation gave, what it measured, and how two of them compare."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class SpeculationMetrics:
    """Counts and times of one generation, or of several added up by `combine_metrics`.

    A round is one verify. Each round counts whole, as the target judged it: one whose tokens were cut by a stop token
    or by max_new_tokens counts the drafts the target accepted, emitted or not. Times are seconds of wall clock
    (perf_counter); on an asynchronous device they are settled by the token ids that each part reads back.
    """

    num_generations: int = 1
    num_tokens: int = 0  # emitted, the one from the prefill included
    num_rounds: int = 0
    offered: tuple[int, ...] = ()  # [j]: rounds in which the drafter gave a draft j
    reached: tuple[int, ...] = ()  # [j]: of those, rounds in which every draft before j stood
    accepted: tuple[int, ...] = ()  # [j]: of those, rounds in which draft j stood
    target_prefill_s: float = 0.0
    drafter_prefill_s: float = 0.0
    target_s: float = 0.0  # verify, decision, rollback
    drafter_s: float = 0.0  # propose, after_verify, rewind, catch-up
    decode_s: float = 0.0  # all rounds, callbacks included

    @property
    def mean_accepted_length(self) -> float:
        """Accepted drafts + 1 per verify; 1.0 is plain decoding; 0.0 without a round."""
        return (sum(self.accepted) + self.num_rounds) / self.num_rounds if self.num_rounds else 0.0

    @property
    def cumulative_acceptance(self) -> tuple[float, ...]:
        """Per position j: share of all rounds in which draft j stood."""
        return tuple(count / self.num_rounds for count in self.accepted)

    @property
    def conditional_acceptance(self) -> tuple[float, ...]:
        """Per position j: share of the rounds that reached draft j in which it stood."""
        return tuple(
            count / reached if reached else 0.0 for count, reached in zip(self.accepted, self.reached, strict=True)
        )

    @property
    def tokens_per_second(self) -> float:
        """Tokens emitted by rounds per second of `decode_s`; the prefill and the token it gives are left out."""
        return (self.num_tokens - self.num_generations) / self.decode_s if self.decode_s > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Generation:
    """The tokens that followed a prompt; a stop token is among them, as the last one."""

    tokens: tuple[int, ...]
    margins: tuple[float, ...]  # per token: the gap between the two largest logits of the row that decided it
    finish_reason: FinishReason
    metrics: SpeculationMetrics


@dataclass(frozen=True, slots=True)
class Comparison:
    """Whether two greedy generations are the same tokens, and where they part if not."""

    is_identical: bool
    position: int | None = None  # of the first differing token; the shorter length when one is a prefix of the other
    margin: float | None = None  # plain decoding's logit gap there; None where it has no token
    token: int | None = None
    plain_token: int | None = None


def combine_metrics(parts: Iterable[SpeculationMetrics]) -> SpeculationMetrics:
    """Add counts and times up, so that the ratios of the result weigh every round equally."""
    metrics = list(parts)
    return SpeculationMetrics(
        num_generations=sum(part.num_generations for part in metrics),
        num_tokens=sum(part.num_tokens for part in metrics),
        num_rounds=sum(part.num_rounds for part in metrics),
        offered=_add_columns([part.offered for part in metrics]),
        reached=_add_columns([part.reached for part in metrics]),
        accepted=_add_columns([part.accepted for part in metrics]),
        target_prefill_s=sum(part.target_prefill_s for part in metrics),
        drafter_prefill_s=sum(part.drafter_prefill_s for part in metrics),
        target_s=sum(part.target_s for part in metrics),
        drafter_s=sum(part.drafter_s for part in metrics),
        decode_s=sum(part.decode_s for part in metrics),
    )


def compare_to_plain(generation: Generation, plain: Generation) -> Comparison:
    """Compare a greedy generation with plain decoding of the same prompt.

    A mismatch whose margin is of the order of the dtype's rounding is a near-tie: a pass over several tokens sums in
    another order than a pass over one. A mismatch with a wide margin is an error, most likely in the target's rollback.
    """
    if generation.tokens == plain.tokens:
        return Comparison(is_identical=True)
    pairs = zip(generation.tokens, plain.tokens, strict=False)
    shorter = min(len(generation.tokens), len(plain.tokens))
    position = next((index for index, (token, other) in enumerate(pairs) if token != other), shorter)
    return Comparison(
        is_identical=False,
        position=position,
        margin=plain.margins[position] if position < len(plain.margins) else None,
        token=generation.tokens[position] if position < len(generation.tokens) else None,
        plain_token=plain.tokens[position] if position < len(plain.tokens) else None,
    )


def _add_columns(rows: Sequence[Sequence[int]]) -> tuple[int, ...]:
    width = max((len(row) for row in rows), default=0)
    return tuple(sum(row[column] for row in rows if column < len(row)) for column in range(width))
