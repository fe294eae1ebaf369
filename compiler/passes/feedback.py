"""Feedback: what a draft of a chain hands to the next."""

from dataclasses import dataclass

from circuit import BindingError, Circuit, Value


@dataclass(frozen=True, slots=True)
class Feedback:
    """One feedback edge of a chain: output `source` of a draft becomes the value `target` of the next."""

    source: str
    target: str


def feedback_target(circuit: Circuit, edge: Feedback) -> Value:
    """Return the value that an edge ends at; BindingError for an end that is missing, or two of different types."""
    if edge.source not in circuit.outputs:
        raise BindingError(
            f"feedback {edge.source} -> {edge.target}: circuit {circuit.name!r} has no output {edge.source!r}; it has "
            f"{', '.join(circuit.outputs)}"
        )
    source, target = circuit.outputs[edge.source], circuit.value(edge.target)
    if source.type != target.type:
        raise BindingError(f"feedback {edge.source} -> {edge.target}: {source!r} cannot feed {target!r}")
    return target
