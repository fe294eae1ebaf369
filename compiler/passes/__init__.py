"""Passes: circuit to circuit, meaning kept. Each docstring shows a small circuit before and after."""

from compiler.passes.bind_dims import bind_dims
from compiler.passes.certify_products import certify_products
from compiler.passes.chain import chain
from compiler.passes.dead_code import remove_dead_code
from compiler.passes.feedback import Feedback
from compiler.passes.fold_weights import FOLD_PROJECTIONS, SPLIT_KV_B
from compiler.passes.loop import FED, IS_FIRST, loop_step
from compiler.passes.place_collectives import Split, collectives, place_collectives
from compiler.passes.plan_memory import MemoryPlan, plan_memory
from compiler.passes.record import PassRecord, RuleRecord
from compiler.passes.specialise import Use, context, specialise, step

__all__ = [
    "FED",
    "FOLD_PROJECTIONS",
    "IS_FIRST",
    "SPLIT_KV_B",
    "Feedback",
    "MemoryPlan",
    "PassRecord",
    "RuleRecord",
    "Split",
    "Use",
    "bind_dims",
    "certify_products",
    "chain",
    "collectives",
    "context",
    "loop_step",
    "place_collectives",
    "plan_memory",
    "remove_dead_code",
    "specialise",
    "step",
]
