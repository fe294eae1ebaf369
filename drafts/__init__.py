"""Drafters, their state, their place in a server.

The public names load on first use, so that `circuit --help` answers before torch is imported.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from drafts.batch import RowBatch
    from drafts.config import DraftConfig, read_config

_MODULES = {
    "DraftConfig": "drafts.config",
    "RowBatch": "drafts.batch",
    "read_config": "drafts.config",
}

__all__ = ["DraftConfig", "RowBatch", "read_config"]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'drafts' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
