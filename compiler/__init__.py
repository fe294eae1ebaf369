"""Circuit in, program out: the passes that specialise a circuit to a drafter's programs, and the proof of parity."""

from compiler.parity import Bound, EdgeDifference, bound_for, compare_edges, worst_edge
from compiler.passes import Feedback, chain, context, remove_dead_code, step

__all__ = [
    "Bound",
    "EdgeDifference",
    "Feedback",
    "bound_for",
    "chain",
    "compare_edges",
    "context",
    "remove_dead_code",
    "step",
    "worst_edge",
]
