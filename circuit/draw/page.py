"""The interactive page: one file that holds drawings, the layout library and everything it shows; it loads nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from circuit.draw.assets import asset_text
from circuit.draw.drawing import Drawing
from circuit.draw.records import drawing_json, script_json

SCRIPTS = ("layout.js", "paint.js", "panel.js", "viewport.js", "page.js")
# nothing may be fetched, whatever a name in a circuit looks like
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; worker-src blob:; img-src data:"


@dataclass(frozen=True, slots=True)
class View:
    """One drawing of a page, and the title it is chosen by; `is_folded` starts with its outer groups collapsed."""

    title: str
    drawing: Drawing
    is_folded: bool = False


def to_page(views: Sequence[View]) -> str:
    """Return the page over these views, the first one shown; ValueError for none."""
    if not views:
        raise ValueError("to_page: expected at least one view, got none")
    parts = [
        f'{{"title":{script_json(view.title)},"folded":{"true" if view.is_folded else "false"},'
        f'"drawing":{drawing_json(view.drawing)}}}'
        for view in views
    ]
    scripts = "\n".join(asset_text(name) for name in SCRIPTS)
    filled = {
        "@TITLE@": escape(views[0].drawing.name),
        "@POLICY@": _POLICY,
        "@STYLE@": asset_text("page.css"),
        "@ELK@": asset_text("elk.bundled.js"),
        "@LICENCE@": "ELK (elkjs), Eclipse Public License 2.0, https://github.com/kieler/elkjs",
        "@VIEWS@": f"[{','.join(parts)}]",
        "@SCRIPTS@": scripts,
    }
    page = asset_text("page.html")
    # split once, so that no filling is searched for another's place
    pieces = page.split("@")
    return "".join(filled.get(f"@{piece}@", piece) if index % 2 else piece for index, piece in enumerate(pieces))
