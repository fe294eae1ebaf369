"""Dead code: drop what no output and no state output needs.

before:  %a = Linear()(%x, %w)   %b = Linear()(%x, %v)   output y = %a
after:   %a = Linear()(%x, %w)                           output y = %a
"""

from circuit import Circuit
from compiler.passes.rebuild import rebuild


def remove_dead_code(circuit: Circuit) -> Circuit:
    """Return the circuit without unreachable calls, weights and inputs; every state write stays. Changes no value."""
    return rebuild(circuit, circuit.name, outputs=circuit.outputs)
