"""Drafters, their state, their place in a server.

The public names load on first use, so that `circuit --help` answers before torch is imported.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from drafts.batch import RowBatch
    from drafts.binding import DraftBinding, bind_head
    from drafts.config import DraftConfig, read_config
    from drafts.decisions import Decisions, default_decisions
    from drafts.glm5_next import mtp_head
    from drafts.levers import ModelLevers
    from drafts.parallel import ParallelPlan
    from drafts.proposer import DraftProposer
    from drafts.proposer_state import ProposerState
    from drafts.ranks import join_ranks
    from drafts.runner import DraftRunner
    from drafts.sampling import Sampling
    from drafts.speculate import generate

_MODULES = {
    "Decisions": "drafts.decisions",
    "DraftBinding": "drafts.binding",
    "DraftConfig": "drafts.config",
    "DraftProposer": "drafts.proposer",
    "DraftRunner": "drafts.runner",
    "ModelLevers": "drafts.levers",
    "ParallelPlan": "drafts.parallel",
    "ProposerState": "drafts.proposer_state",
    "RowBatch": "drafts.batch",
    "Sampling": "drafts.sampling",
    "bind_head": "drafts.binding",
    "default_decisions": "drafts.decisions",
    "generate": "drafts.speculate",
    "join_ranks": "drafts.ranks",
    "mtp_head": "drafts.glm5_next",
    "read_config": "drafts.config",
}

__all__ = [
    "Decisions",
    "DraftBinding",
    "DraftConfig",
    "DraftProposer",
    "DraftRunner",
    "ModelLevers",
    "ParallelPlan",
    "ProposerState",
    "RowBatch",
    "Sampling",
    "bind_head",
    "default_decisions",
    "generate",
    "join_ranks",
    "mtp_head",
    "read_config",
]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'drafts' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
