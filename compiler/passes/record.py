"""What a pass did: for every rule where it fired, or the reason why not."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RuleRecord:
    """One rule of a pass over one circuit.

    fired: per time it fired, the name of the first result it made.
    reasons: why it did not fire; with `fired` not empty, why not in further places.
    """

    rule: str
    fired: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()

    @property
    def why_not(self) -> str:
        """Return the reason that it never fired, empty when it did."""
        return "" if self.fired else "; ".join(self.reasons)


@dataclass(frozen=True, slots=True)
class PassRecord:
    """One pass over one circuit: its name, what it did in a phrase, and its rules."""

    name: str
    summary: str
    rules: tuple[RuleRecord, ...] = ()
