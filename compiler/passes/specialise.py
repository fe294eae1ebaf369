"""Specialise: one declared circuit becomes the programs that a drafter runs.

- first step: the circuit as declared, for the draft that takes the target's hidden;
- next step: the same with each feedback edge's target cut into an input, for drafts 2..K. What only the first draft
  needs (the target's norm, an indexer whose selection is shared) is gone;
- context: pruned to the state outputs, for rows whose only purpose is the cache.

before:  %h = RmsNorm(..)(%target_hidden, %target_norm)   %y = Linear()(%h, %w)   output hidden = %y
next:    input %h                                         %y = Linear()(%h, %w)   output hidden = %y

A step takes along only the optional parts it is asked for: an optional value that is left out is replaced by the one
it refines (masked logits by logits), an optional output is dropped, and what only they needed is gone.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from circuit import BindingError, Circuit, CircuitError
from compiler.passes.rebuild import rebuild


@dataclass(frozen=True, slots=True)
class Feedback:
    """One feedback edge of a chain: output `source` of a draft becomes the value `target` of the next."""

    source: str
    target: str


def step(
    circuit: Circuit,
    *,
    feedback: Sequence[Feedback] = (),
    bypassed: Mapping[str, str] | None = None,
    dropped_outputs: Collection[str] = (),
) -> Circuit:
    """Return one draft's circuit: with `feedback` that of drafts 2..K, without it the first.

    `bypassed` maps a value to the one read in its place. Raises BindingError for an edge whose ends are missing or of
    two types, CircuitError for a value or an output to drop that is not there.
    """
    if missing := [name for name in dropped_outputs if name not in circuit.outputs]:
        raise CircuitError(f"circuit {circuit.name!r}: no output {missing[0]!r} to drop; it has {[*circuit.outputs]}")
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
    return rebuild(
        circuit,
        f"{circuit.name}.next" if feedback else circuit.name,
        outputs={name: value for name, value in circuit.outputs.items() if name not in dropped_outputs},
        cuts=tuple(cuts),
        replaced={circuit.value(old): circuit.value(new) for old, new in (bypassed or {}).items()},
    )


def context(circuit: Circuit) -> Circuit:
    """Return the circuit of context rows: what the state outputs need, and nothing else."""
    return rebuild(circuit, f"{circuit.name}.context", outputs={})
