"""The one textual form of a circuit: stable, complete, used by errors, golden tests and `circuit show`.

circuit 'tiny'
  input  %x: f32[n, 8]
  weight %gain: f32[8]
  %y: f32[n, 8] = RmsNorm(eps=1e-05)(%x, %gain)
  output y = %y
"""

import json
import re

from circuit.graph import Call, Circuit, Value

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*\Z")


def to_text(circuit: Circuit) -> str:
    """Return the text form; two circuits with the same text are the same circuit."""
    lines = [f"circuit {quoted(circuit.name)}"]
    for kind, sources in (("input", circuit.inputs), ("weight", circuit.weights), ("state", circuit.states)):
        lines += [f"  {kind:<6} {_declared(value)}" for value in sources.values()]
    block = ""
    for call in circuit.calls:
        if call.block != block:
            block = call.block
            lines.append(f"  [{block}]")
        lines += [f"  {line}" for line in call_lines(call)]
    lines += [f"  output {quoted(name)} = {value_text(value)}" for name, value in circuit.outputs.items()]
    lines += [f"  state  {quoted(name)} = {value_text(value)}" for name, value in circuit.state_outputs.items()]
    return "\n".join(lines) + "\n"


def call_lines(call: Call) -> list[str]:
    """Return the lines of a call: its own, and indented under it the circuit that its node stands for, if any."""
    inner = call.node.inner_circuit()
    return [call_text(call), *([] if inner is None else [f"  | {line}" for line in to_text(inner).splitlines()])]


def call_text(call: Call) -> str:
    """Return `%y: f32[n, 8] = RmsNorm(eps=1e-05)(%x, %gain)`, without the circuit that a node may stand for."""
    made = ", ".join(_declared(value) for value in call.results)
    # attributes that hold a whole circuit are told by its lines
    hidden = () if call.node.inner_circuit() is None else ("body",)
    attributes = ", ".join(
        f"{name}={json.dumps(value)}" for name, value in call.node.attributes().items() if name not in hidden
    )
    args = ", ".join(value_text(value) for value in call.args)
    return f"{made} = {type(call.node).__name__}({attributes})({args})"


def value_text(value: Value) -> str:
    """Return `%name`, the name quoted as JSON where it is not a plain identifier."""
    return f"%{quoted(value.name)}"


def quoted(name: str) -> str:
    """Return a name as it stands in the text form."""
    return name if _PLAIN.match(name) else json.dumps(name, ensure_ascii=False)


def _declared(value: Value) -> str:
    return f"{value_text(value)}: {value.type}"
