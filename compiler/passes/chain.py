"""Chain: the steps of K drafts in one circuit, token, hidden and position fed back inside it.

before:  first: %d = Argmax()(..%token..)  output token = %d      feedback token -> token
after:   %d.1 = Argmax()(..%token..)   %d.2 = Argmax()(..%d.1..)   output token.1 = %d.1   output token.2 = %d.2

Every value of draft i is named `name.i`, every block stands under `draft i`. Inputs that drafts share (sequence, block
table) are declared once; those that differ per draft and are not fed back (a grammar's mask) once per draft.
"""

from collections.abc import Collection, Sequence

from circuit import BindingError, Circuit, TensorType, Value
from compiler.passes.feedback import Feedback


def chain(
    steps: Sequence[Circuit],
    *,
    feedback: Sequence[Feedback],
    outputs: Collection[str],
    per_draft_inputs: Collection[str] = (),
) -> Circuit:
    """Return the circuit of one chain whose draft i+1 is `steps[i]`.

    `outputs` are the step outputs that the caller reads, each as `name.i`. States thread through all steps.
    """
    if not steps:
        raise BindingError("chain: expected at least one step, got none")
    joined = Circuit(f"{steps[0].name}.chain{len(steps)}")
    states: dict[str, Value] = {
        name: joined.state(name, value.type)  # type: ignore[arg-type]
        for name, value in steps[0].states.items()
    }
    fed: dict[str, Value] = {}
    for number, step in enumerate(steps, start=1):
        copied: dict[Value, Value] = {step.states[name]: value for name, value in states.items()}
        for name, value in step.inputs.items():
            copied[value] = fed[name] if name in fed else _input(joined, name, value, per_draft_inputs, number)
        for name, value in step.weights.items():
            copied[value] = joined.weights[name] if name in joined.weights else joined.weight(name, _tensor(value))
        for call in step.calls:
            results = joined.add_call(
                call.node,
                [copied[arg] for arg in call.args],
                names=[f"{value.name}.{number}" for value in call.results],
                block=f"draft {number}/{call.block}" if call.block else f"draft {number}",
            )
            copied.update(zip(call.results, results, strict=True))
        states = {name: copied[value] for name, value in step.state_outputs.items()}
        fed = {edge.target: copied[step.outputs[edge.source]] for edge in feedback}
        for name in outputs:
            joined.output(f"{name}.{number}", copied[step.outputs[name]])
    for name, value in states.items():
        joined.state_output(name, value)
    return joined


def _input(joined: Circuit, name: str, value: Value, per_draft_inputs: Collection[str], number: int) -> Value:
    own_name = f"{name}.{number}" if name in per_draft_inputs else name
    return joined.inputs[own_name] if own_name in joined.inputs else joined.input(own_name, _tensor(value))


def _tensor(value: Value) -> TensorType:
    assert isinstance(value.type, TensorType)
    return value.type
