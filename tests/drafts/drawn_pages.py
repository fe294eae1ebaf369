"""What a drawn page holds, read back."""

import json
from pathlib import Path
from typing import Any


def written(folder: Path, record: Any, name: str = "overlay.json") -> Path:
    """Write a record, or text as it is, into a file of a folder."""
    path = folder / name
    path.write_text(record if isinstance(record, str) else json.dumps(record))
    return path


def views(page: Path) -> list[dict[str, Any]]:
    """Return the views that a page holds."""
    text = page.read_text()
    start = text.index("var circuitViews = ") + len("var circuitViews = ")
    return json.JSONDecoder().raw_decode(text[start:])[0]


def overlays(page: Path, view: int = -1) -> dict[str, dict[str, Any]]:
    """Return the overlays of a page's view by name."""
    return {one["name"]: one for one in views(page)[view]["drawing"]["overlays"]}
