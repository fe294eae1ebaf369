"""What the draft-verify loop asks of a target: prefill once, then verify and roll back, one sequence at a time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from drafts.decisions import HiddenForm


@dataclass(frozen=True, slots=True)
class TargetRun:
    """What one forward of the target gave, in the model dtype and on the target's device.

    hiddens         [n, hidden]  last block's output before the final norm, one row per token that was run
    normed_hiddens  [n, hidden]  the same rows after the final norm
    logits          [m, vocab]   verify: m = n, row i decides the token after token i; prefill: m = 1, the last token's
    """

    hiddens: Tensor
    normed_hiddens: Tensor
    logits: Tensor

    def hidden_rows(self, form: HiddenForm) -> Tensor:
        """Return the rows [n, hidden] taken before ("pre_norm") or after ("post_norm") the final norm."""
        return self.hiddens if form == "pre_norm" else self.normed_hiddens


class TargetSequence(Protocol):
    """One sequence in the target: its tokens' states live here until the object is dropped."""

    @property
    def num_tokens(self) -> int:
        """Tokens the target holds states of."""
        ...

    def prefill(self, tokens: Sequence[int]) -> TargetRun:
        """Run the prompt on an empty sequence; hiddens for every token, logits [1, vocab] of the last."""
        ...

    def verify(self, tokens: Sequence[int]) -> TargetRun:
        """Run one or more tokens after those held, in one pass; hiddens and logits for each of them.

        The tokens stay until `rollback` takes some away; an exception leaves the sequence as it was.
        """
        ...

    def rollback(self, num_kept: int) -> None:
        """Keep the first `num_kept` tokens of the last verify and drop the rest, exactly; once per verify."""
        ...


class Target(Protocol):
    """A model that opens sequences."""

    @property
    def vocab_size(self) -> int:
        """Token ids are 0 .. vocab_size - 1."""
        ...

    @property
    def max_positions(self) -> int:
        """Most tokens one sequence can hold."""
        ...

    def open_sequence(self) -> TargetSequence:
        """Return a new, empty sequence."""
        ...
