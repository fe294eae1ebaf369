"""Every exception of the project.

`CircuitError` and its children are for people: each message says where, what was expected, what came, and what to do
next. The layer that knows more adds a line with `error.add_note(...)`; it does not wrap. A bad argument of a call
(token id, shape, negative count) is a plain `ValueError`; `assert` is for what only a bug of ours can break.
"""

import difflib
from collections.abc import Iterable


class CircuitError(Exception):
    """Base of everything the project raises about circuits, documents, checkpoints and state."""

    def report(self) -> str:
        """Return the message and the notes that outer layers added, one a line."""
        return "\n".join([str(self), *getattr(self, "__notes__", [])])


class TypeRuleError(CircuitError):
    """A value's type does not fit the port it is wired to."""


class VerifyError(CircuitError):
    """A circuit breaks an invariant: order, state threading, names, outputs.

    Attributes:
        at: name of the value, state or output where it breaks, for tools that know more of the place; None if unknown.
    """

    def __init__(self, message: str, *, at: str | None = None) -> None:
        super().__init__(message)
        self.at = at


class BindingError(CircuitError):
    """Weights, dims or decisions do not fit the circuit they are bound to."""


class LoweringError(CircuitError):
    """A backend cannot run a node or a region; names it and says why."""


class StateError(CircuitError):
    """A sequence's state is used after free, out of order or beyond its capacity."""


class CaptureError(CircuitError):
    """A captured graph is stale or could not be captured."""


class RankError(CircuitError):
    """The ranks that share a split drafter are out of step, or another one of them failed."""


class DocumentError(CircuitError):
    """A circuit document is malformed; carries file and line."""


class ConfigError(CircuitError):
    """A checkpoint's config.json lacks a key, or asks for what the drafter does not model."""


class CheckpointError(CircuitError):
    """A checkpoint's tensors are missing, misshapen, of another dtype, or unreadable."""


def close_names(name: str, names: Iterable[str]) -> str:
    """Return `did you mean 'x'?` for an error that met an unknown `name`, or the list when no name comes close."""
    known = list(names)
    if close := difflib.get_close_matches(name, known, n=3, cutoff=0.6):
        return f"did you mean {' or '.join(repr(other) for other in close)}?"
    if not known:
        return "there is none"
    listed = ", ".join(repr(other) for other in known[:20])
    return f"expected one of {listed}{', ...' if len(known) > 20 else ''}"
