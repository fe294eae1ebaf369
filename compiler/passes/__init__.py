"""Passes: circuit to circuit, meaning kept. Each docstring shows a small circuit before and after."""

from compiler.passes.chain import chain
from compiler.passes.dead_code import remove_dead_code
from compiler.passes.specialise import Feedback, context, step

__all__ = ["Feedback", "chain", "context", "remove_dead_code", "step"]
