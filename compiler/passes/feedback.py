"""Feedback: what a draft of a chain hands to the next."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Feedback:
    """One feedback edge of a chain: output `source` of a draft becomes the value `target` of the next."""

    source: str
    target: str
