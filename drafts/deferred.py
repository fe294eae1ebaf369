"""Drafts that a propose left on the device, until they are read or the next propose."""

from torch import Tensor

from circuit import StateError
from drafts.proposer_state import ProposerState


class DeferredDrafts:
    """The ids of the last propose that deferred any, and whose they are."""

    def __init__(self) -> None:
        self._held: tuple[ProposerState, Tensor] | None = None

    def keep(self, state: ProposerState, ids: Tensor) -> None:
        """Keep ids [K]; none are kept where there are none."""
        self._held = (state, ids) if ids.numel() else None

    def forget(self, state: ProposerState | None = None) -> None:
        """Forget what is kept, or only what is kept of `state`."""
        if state is None or (self._held is not None and self._held[0] is state):
            self._held = None

    def read(self) -> list[int]:
        """Return the ids; StateError when there are none."""
        if self._held is None:
            raise StateError("read_deferred_draft_tokens: the last propose deferred none; give it draft_embed_target")
        return [int(draft) for draft in self._held[1].tolist()]

    def read_one(self) -> int:
        """Return the one id; StateError when there is none, or several."""
        drafts = self.read()
        if len(drafts) != 1:
            raise StateError(f"read_deferred_draft_token: {len(drafts)} were deferred; call read_deferred_draft_tokens")
        return drafts[0]
