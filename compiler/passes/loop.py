"""Loop: one step that serves every draft of a chain, so that a chain is one program run over and over.

before:  %h = RmsNorm(..)(%target_hidden, %target_norm)   %y = Linear()(%h, %w)          feedback hidden -> h
after:   %h = RmsNorm(..)(%target_hidden, %target_norm)
         %h.taken = Choose()(%is_first, %h, %h.fed)       %y = Linear()(%h.taken, %w)    feedback hidden -> h.fed

An edge that ends at an input needs nothing. A value that the first draft computes and later ones are fed is computed in
every step and chosen by `is_first`: right at any cost, worth it where little is computed, as with the target's norm.
"""

from collections.abc import Sequence

import torch

from circuit import Circuit, TensorType, Value
from compiler.passes.dead_code import remove_dead_code
from compiler.passes.feedback import Feedback, feedback_target
from nodes import Choose

IS_FIRST = "is_first"
FED = ".fed"  # ends the name of an input that no caller gives: what a later draft is fed in place of a computed value


def loop_step(circuit: Circuit, *, feedback: Sequence[Feedback]) -> tuple[Circuit, tuple[Feedback, ...]]:
    """Return the step and its feedback edges, each from an output to an input.

    The step has the circuit's inputs, an input `is_first` bool[n] where a choice is made, and only the outputs that
    `feedback` names. Raises BindingError for an edge whose ends are missing or of two types.
    """
    looped = Circuit(f"{circuit.name}.loop")
    copied: dict[Value, Value] = {}
    for name, value in circuit.inputs.items():
        copied[value] = looped.input(name, _tensor(value))
    for name, value in circuit.weights.items():
        copied[value] = looped.weight(name, _tensor(value))
    for name, value in circuit.states.items():
        copied[value] = looped.state(name, value.type)  # type: ignore[arg-type]
    edges: list[Feedback] = []
    fed: dict[Value, Value] = {}
    for edge in feedback:
        target = feedback_target(circuit, edge)
        if target.kind == "input":
            edges.append(edge)
        else:
            edges.append(Feedback(edge.source, f"{edge.target}{FED}"))
            fed[target] = looped.input(f"{edge.target}{FED}", _tensor(target))
    is_first = looped.input(IS_FIRST, TensorType.of(torch.bool, _rows(circuit))) if fed else None
    for call in circuit.calls:
        results = looped.copy_call(call, *(copied[arg] for arg in call.args))
        for old, new in zip(call.results, results, strict=True):
            copied[old] = new
            if old in fed and is_first is not None:
                (copied[old],) = looped.add_call(
                    Choose(), [is_first, new, fed[old]], names=[f"{old.name}.taken"], block=call.block
                )
    for name in dict.fromkeys(edge.source for edge in feedback):
        looped.output(name, copied[circuit.outputs[name]])
    for name, value in circuit.state_outputs.items():
        looped.state_output(name, copied[value])
    return remove_dead_code(looped), tuple(edges)


def _rows(circuit: Circuit) -> object:
    """The dim that counts rows: every input of a step starts with it."""
    return _tensor(next(iter(circuit.inputs.values()))).shape[0]


def _tensor(value: Value) -> TensorType:
    assert isinstance(value.type, TensorType)
    return value.type
