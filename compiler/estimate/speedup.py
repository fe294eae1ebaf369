"""What a drafter gains end to end, from how often its drafts stand and what drafting and verifying take.

The model, for K drafts a round:

    tokens a round  = 1 + a_1 + a_1 a_2 + .. + a_1 .. a_K       a_j: share of rounds that reached draft j and kept it
    a round's time  = draft(K) + verify(K + 1)
    gain            = tokens a round * verify(1) / a round's time

verify(1) is plain decoding's step. It leaves out prefill, sampling on the host and whatever a server adds to each
round, and it takes a_j for independent of K.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import mul


@dataclass(frozen=True, slots=True)
class RoundPrediction:
    """One K: tokens a round emits on average, the microseconds of its parts, and the gain over plain decoding."""

    num_drafts: int
    tokens: float
    draft_us: float
    verify_us: float
    speedup: float

    @property
    def round_us(self) -> float:
        """Microseconds of a round."""
        return self.draft_us + self.verify_us


@dataclass(frozen=True, slots=True)
class RoundModel:
    """Acceptance by position and the times of a round's parts.

    acceptance[j]: share of the rounds that reached draft j + 1 in which it stood. draft_us[k - 1]: a chain of k drafts,
    with the catching up after it. verify_us[m - 1]: a target pass over m tokens. Past its end a row of draft times
    goes on in its last step, one of a single number in proportion; verify times stay at the last.
    """

    acceptance: tuple[float, ...]
    draft_us: tuple[float, ...]
    verify_us: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.acceptance or not all(0 <= share <= 1 for share in self.acceptance):
            raise ValueError(f"acceptance: expected shares from 0 to 1, one a draft, got {list(self.acceptance)}")
        for name, times in (("draft_us", self.draft_us), ("verify_us", self.verify_us)):
            if not times or not all(0 < time < float("inf") for time in times):
                raise ValueError(f"{name}: expected times above 0 in microseconds, got {list(times)}")
        # a step that went down would be carried on below zero
        if any(after < before for before, after in pairwise(self.draft_us)):
            raise ValueError(f"draft_us: expected that a longer chain takes no less, got {list(self.draft_us)}")

    def predict(self, num_drafts: int) -> RoundPrediction:
        """Return what K drafts a round give; K from 1 to the positions whose acceptance is known."""
        if not 1 <= num_drafts <= len(self.acceptance):
            raise ValueError(f"num_drafts: expected 1 to {len(self.acceptance)}, got {num_drafts}")
        tokens = expected_tokens(self.acceptance[:num_drafts])
        draft_us, verify_us = self._draft(num_drafts), self._verify(num_drafts + 1)
        gain = tokens * self._verify(1) / (draft_us + verify_us)
        return RoundPrediction(num_drafts, tokens, draft_us, verify_us, gain)

    def predictions(self) -> tuple[RoundPrediction, ...]:
        """Return the prediction of every K whose acceptance is known."""
        return tuple(self.predict(count) for count in range(1, len(self.acceptance) + 1))

    def best(self) -> RoundPrediction:
        """Return the K with the largest gain, the smallest such K."""
        return max(self.predictions(), key=lambda prediction: (prediction.speedup, -prediction.num_drafts))

    def _draft(self, num_drafts: int) -> float:
        known = len(self.draft_us)
        if num_drafts <= known:
            return self.draft_us[num_drafts - 1]
        step = self.draft_us[-1] - (self.draft_us[-2] if known > 1 else 0.0)
        return self.draft_us[-1] + (num_drafts - known) * step

    def _verify(self, num_tokens: int) -> float:
        return self.verify_us[min(num_tokens, len(self.verify_us)) - 1]


def expected_tokens(acceptance: Sequence[float]) -> float:
    """Return the tokens that a round emits on average: the target's own and the drafts that stand before it."""
    return 1.0 + sum(accumulate(acceptance, mul))
