"""Circuit in, program out: the passes that specialise a circuit to the programs a drafter runs."""

from compiler.passes import Feedback, context, next_step, remove_dead_code

__all__ = ["Feedback", "context", "next_step", "remove_dead_code"]
