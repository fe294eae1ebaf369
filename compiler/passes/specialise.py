"""Specialise: one declared circuit becomes the programs that a drafter runs.

- first step: the circuit as declared, for the draft that takes the target's hidden;
- next step: the same with each feedback edge's target cut into an input, for drafts 2..K. What only the first draft
  needs (the target's norm, an indexer whose selection is shared) is gone;
- context: pruned to the state outputs, for rows whose only purpose is the cache.

before:  %h = RmsNorm(..)(%target_hidden, %target_norm)   %y = Linear()(%h, %w)   output hidden = %y
next:    input %h                                         %y = Linear()(%h, %w)   output hidden = %y
"""

from collections.abc import Sequence
from dataclasses import dataclass

from circuit import BindingError, Circuit
from compiler.passes.rebuild import rebuild


@dataclass(frozen=True, slots=True)
class Feedback:
    """One feedback edge of a chain: output `source` of a draft becomes the value `target` of the next."""

    source: str
    target: str


def next_step(circuit: Circuit, feedback: Sequence[Feedback]) -> Circuit:
    """Return the circuit of drafts 2..K; `BindingError` for an edge whose ends are missing or of two types."""
    cuts = []
    for edge in feedback:
        if edge.source not in circuit.outputs:
            raise BindingError(
                f"feedback {edge.source} -> {edge.target}: circuit {circuit.name!r} has no output {edge.source!r}; "
                f"it has {', '.join(circuit.outputs)}"
            )
        source, target = circuit.outputs[edge.source], circuit.value(edge.target)
        if source.type != target.type:
            raise BindingError(f"feedback {edge.source} -> {edge.target}: {source!r} cannot feed {target!r}")
        cuts.append(target)
    return rebuild(circuit, f"{circuit.name}.next", outputs=circuit.outputs, cuts=tuple(cuts))


def context(circuit: Circuit) -> Circuit:
    """Return the circuit of context rows: what the state outputs need, and nothing else."""
    return rebuild(circuit, f"{circuit.name}.context", outputs={})
