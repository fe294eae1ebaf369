"""Every exception of the project.

`CircuitError` and its children are for people: each message says where, what was expected, what came, and what to do
next. The layer that knows more adds a line with `error.add_note(...)`; it does not wrap. A bad argument of a call
(token id, shape, negative count) is a plain `ValueError`; `assert` is for what only a bug of ours can break.
"""


class CircuitError(Exception):
    """Base of everything the project raises about circuits, documents, checkpoints and state."""

    def report(self) -> str:
        """Return the message and the notes that outer layers added, one a line."""
        return "\n".join([str(self), *getattr(self, "__notes__", [])])


class TypeRuleError(CircuitError):
    """A value's type does not fit the port it is wired to."""


class VerifyError(CircuitError):
    """A circuit breaks an invariant: order, state threading, names, outputs."""


class BindingError(CircuitError):
    """Weights, dims or decisions do not fit the circuit they are bound to."""


class LoweringError(CircuitError):
    """A backend cannot run a node or a region; names it and says why."""


class StateError(CircuitError):
    """A sequence's state is used after free, out of order or beyond its capacity."""


class CaptureError(CircuitError):
    """A captured graph is stale or could not be captured."""


class DocumentError(CircuitError):
    """A circuit document is malformed; carries file and line."""


class ConfigError(CircuitError):
    """A checkpoint's config.json lacks a key, or asks for what the drafter does not model."""


class CheckpointError(CircuitError):
    """A checkpoint's tensors are missing, misshapen, of another dtype, or unreadable."""
