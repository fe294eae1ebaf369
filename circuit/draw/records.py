"""A drawing as JSON for the scripts that lay it out and paint it."""

import json
import math
from dataclasses import asdict
from typing import Any

from circuit.draw.drawing import Drawing


def drawing_json(drawing: Drawing) -> str:
    """Return the drawing as JSON that may stand inside a script element; an infinite number becomes null."""
    record = asdict(drawing)
    for overlay in record["overlays"]:
        for part in ("nodes", "edges", "groups"):
            overlay[part] = [(key, value if math.isfinite(value) else None) for key, value in overlay[part]]
    return script_json(record)


def script_json(record: Any) -> str:
    """Return JSON in which no text can end the script element around it or start a comment."""
    text = json.dumps(record, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
