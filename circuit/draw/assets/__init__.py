"""Files that drawings are made with: our scripts and style, the built ELK library, a font, and licences."""

from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).parent


def asset_path(name: str) -> Path:
    """Return the path of a shipped file."""
    return _FOLDER / name


@cache
def asset_text(name: str) -> str:
    """Return the text of a shipped file."""
    return asset_path(name).read_text(encoding="utf-8")
