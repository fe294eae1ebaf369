"""A proposer at work on one sequence, held to its contract by the draft-verify loop."""

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from torch import Tensor

from circuit.errors import StateError

State = TypeVar("State")


class Proposer(Protocol[State]):
    """The part of the drafter contract that the loop calls; `DraftProposer` fulfils it."""

    def alloc_state_for(self, budget_tokens: int | None, /) -> State:
        """Return the state of a new sequence that may grow to prompt + new tokens + look-ahead."""
        ...

    def free_state(self, state: State, /) -> None:
        """Release the state; a second call does nothing."""
        ...

    def drafter_rows(self, state: State, /) -> int:
        """Return how many dense rows the drafter holds."""
        ...

    def prefill_drafter(self, prompt_tokens: Sequence[int], hiddens: Tensor, state: State, /) -> int:
        """Write row r = (token r+1, hidden r) for all but the last prompt token; return the rows written."""
        ...

    def catchup_drafter(
        self, tokens: Sequence[int], hiddens: Tensor, row_base: int, pos_base: int, state: State, /
    ) -> int:
        """Append row row_base + i = (tokens[i], hiddens[i]); return the rows written, 0 when row_base does not fit."""
        ...

    def propose(
        self, last_token: int, target_hidden: Tensor, position: int, num_drafts: int, state: State, /
    ) -> list[int]:
        """Return up to num_drafts ids that may follow last_token; target_hidden is that of the token before it."""
        ...

    def after_verify(self, num_accepted: int, state: State, /) -> int:
        """Keep min(rows of the last propose, num_accepted + 1) of its rows; return the rows kept."""
        ...

    def rewind(self, rows: int, state: State, /) -> int:
        """Keep the first `rows` rows; return the rows kept."""
        ...


class SequenceDrafter(Generic[State]):
    """A proposer with the state of this sequence, held to its contract."""

    def __init__(self, proposer: Proposer[State], state: State, *, vocab_size: int, mtp_kv_exact: bool) -> None:
        self._proposer, self._state = proposer, state
        self._vocab_size, self._mtp_kv_exact = vocab_size, mtp_kv_exact

    def prefill(self, prompt_tokens: Sequence[int], hiddens: Tensor) -> None:
        """Write the prompt's rows; hiddens [P, hidden]."""
        num_written = self._proposer.prefill_drafter(prompt_tokens, hiddens, self._state)
        if num_written != len(prompt_tokens) - 1:
            raise StateError(f"prefill_drafter: expected {len(prompt_tokens) - 1} rows written, got {num_written}")

    def propose(self, last_token: int, hidden: Tensor, *, position: int, num_drafts: int) -> list[int]:
        """Return the drafts after checking their count and ids."""
        drafts = self._proposer.propose(last_token, hidden, position, num_drafts, self._state)
        if len(drafts) > num_drafts:
            raise ValueError(f"propose: expected at most {num_drafts} drafts, got {len(drafts)}")
        for draft in drafts:
            if not isinstance(draft, int) or not 0 <= draft < self._vocab_size:
                raise ValueError(f"propose: expected draft ids in 0 .. {self._vocab_size - 1}, got {draft!r}")
        return drafts

    def settle(self, tokens: Sequence[int], hiddens: Tensor, *, position: int, num_accepted: int) -> None:
        """Leave the drafter with the rows of every committed token but the target's newest.

        Row position + i pairs tokens[i] with hiddens[i]: [t_{m-1}, d_1 .. d_a] with [h_{m-2}, h_{m-1} .. h_{m-2+a}].
        Rows the drafter does not hold are appended from these; there are some when all drafts stood (a chain of K
        drafts writes K rows) or when fewer than K came back. Raises StateError for row counts that cannot be.
        """
        proposer, state = self._proposer, self._state
        proposer.after_verify(num_accepted, state)
        rows = proposer.drafter_rows(state)
        if self._mtp_kv_exact and rows > position + 1:
            rows = proposer.rewind(position + 1, state)
        wanted = position + len(tokens)
        if not position <= rows <= wanted:
            raise StateError(f"after_verify: expected the drafter to hold {position} .. {wanted} rows, got {rows}")
        if rows == wanted:
            return
        num_written = proposer.catchup_drafter(tokens[rows - position :], hiddens[rows - position :], rows, rows, state)
        if num_written != wanted - rows:
            raise StateError(f"catchup_drafter: expected {wanted - rows} rows written at {rows}, got {num_written}")
