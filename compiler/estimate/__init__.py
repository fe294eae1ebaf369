"""What a program can cost at best on a device, does it fit, and what a drafter gains: from the nodes' costs alone."""

from compiler.estimate.cuts import Cut, rank_cuts
from compiler.estimate.launches import LaunchCost, group_launches, launch_of_call, split_launch, total_cost
from compiler.estimate.memory import MemoryNeed
from compiler.estimate.roofline import Roofline, roofline_of
from compiler.estimate.speedup import RoundModel, RoundPrediction, expected_tokens

__all__ = [
    "Cut",
    "LaunchCost",
    "MemoryNeed",
    "Roofline",
    "RoundModel",
    "RoundPrediction",
    "expected_tokens",
    "group_launches",
    "launch_of_call",
    "rank_cuts",
    "roofline_of",
    "split_launch",
    "total_cost",
]
