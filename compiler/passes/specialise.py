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
from dataclasses import dataclass, field
from typing import Literal

from circuit import BindingError, Circuit, CircuitError
from compiler.passes.chain import chain
from compiler.passes.feedback import Feedback as Feedback
from compiler.passes.feedback import feedback_target
from compiler.passes.loop import loop_step
from compiler.passes.rebuild import rebuild


@dataclass(frozen=True, slots=True)
class Use:
    """What a declared circuit is compiled for.

    kind: `declared` as it stands; `step` the first draft; `next_step` drafts 2..K; `loop` one step that serves every
        draft of a chain; `chain` all `num_drafts` of them in one program; `context` the rows whose only purpose is the
        cache.
    feedback: the edges from one draft to the next, of `next_step`, `loop` and `chain`.
    bypassed, dropped_outputs: optional parts to leave out, see `step`.
    outputs: the step outputs that the caller of a chain reads, each as `name.i`.
    per_draft_inputs: inputs of a chain that differ per draft and are not fed back.
    """

    kind: Literal["declared", "step", "next_step", "loop", "chain", "context"] = "declared"
    num_drafts: int = 1
    feedback: tuple[Feedback, ...] = ()
    bypassed: Mapping[str, str] = field(default_factory=dict)
    dropped_outputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    per_draft_inputs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.num_drafts < 1 or (self.kind != "chain" and self.num_drafts != 1):
            raise BindingError(f"use {self.kind!r}: expected 1 draft, more for a chain only, got {self.num_drafts}")

    def __str__(self) -> str:
        return f"chain of {self.num_drafts}" if self.kind == "chain" else self.kind.replace("_", " ")


AS_DECLARED = Use()


def specialise(circuit: Circuit, use: Use) -> Circuit:
    """Return the circuit of one use. Raises what `step` and `chain` raise for edges and parts that are not there."""
    match use.kind:
        case "declared":
            return circuit
        case "context":
            return context(circuit)
        case "next_step":
            return _one_step(circuit, use, feedback=use.feedback)
        case "step":
            return _one_step(circuit, use, feedback=())
        case "loop":
            looped, _ = loop_step(_one_step(circuit, use, feedback=()), feedback=use.feedback)
            return looped
    following = _one_step(circuit, use, feedback=use.feedback)
    steps = [_one_step(circuit, use, feedback=()), *[following] * (use.num_drafts - 1)]
    return chain(steps, feedback=use.feedback, outputs=use.outputs, per_draft_inputs=use.per_draft_inputs)


def _one_step(circuit: Circuit, use: Use, *, feedback: Sequence[Feedback]) -> Circuit:
    return step(circuit, feedback=feedback, bypassed=use.bypassed, dropped_outputs=use.dropped_outputs)


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
        cuts.append(feedback_target(circuit, edge))
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
