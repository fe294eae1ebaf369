"""Folders of the user's that commands write to."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """Where artifacts and measurements lie: draft-circuit in $XDG_CACHE_HOME, or in ~/.cache without it."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    # the base directory specification has relative paths ignored
    return (Path(named) if os.path.isabs(named) else Path.home() / ".cache") / "draft-circuit"
