"""Targets a draft-verify loop can check drafts with; importing this package alone does not import transformers."""

from drafts.targets.target import Target, TargetRun, TargetSequence

__all__ = ["Target", "TargetRun", "TargetSequence"]
