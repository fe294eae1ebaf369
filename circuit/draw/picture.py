"""A drawing as a picture: laid out and painted by the same scripts as the page, run by V8 inside this process.

Laying out is ELK's work, which is JavaScript; the package mini-racer brings the engine as a wheel, so nothing has to
be installed beside Python. resvg-py makes pixels of the SVG with a font that is shipped, so that they are the same
on every machine. Both are the extra `draw`.
"""

import json

from circuit.draw.assets import asset_path, asset_text
from circuit.draw.drawing import Drawing
from circuit.draw.records import drawing_json
from circuit.errors import CircuitError

try:
    import py_mini_racer
except ImportError:
    py_mini_racer = None  # type: ignore[assignment]

try:
    import resvg_py
except ImportError:
    resvg_py = None  # type: ignore[assignment]

_ADVICE = "pip install 'draft-circuit[draw]', or write .html, which needs nothing"
# pages have timers and a window, the bare engine has neither
_SETTING = """
var window = globalThis, self = globalThis, due = [], made = {};
function setTimeout(call) { due.push(call); return due.length; }
function clearTimeout() {}
function runDue() { const calls = due; due = []; calls.forEach((call) => call()); return calls.length; }
0
"""
_DRAW = """
(function () {
  const drawing = %s, options = %s;
  options.overlay = drawing.overlays[0] || null;
  const index = circuitLayout.indexed(drawing);
  circuitLayout.layOut(new ELK(), index, new Set()).then(
    (scene) => { made.svg = circuitPaint.picture(scene, index, options); },
    (error) => { made.error = String(error); });
})();
0
"""
MAX_PIXELS = 120_000_000
MAX_SIDE = 16_000  # what viewers still open


def to_svg(drawing: Drawing, *, theme: str = "light") -> str:
    """Return an SVG document, everything expanded, the first overlay laid on; `theme` is light or dark.

    Raises CircuitError when the package mini-racer is missing.
    """
    if py_mini_racer is None:
        raise CircuitError(f"draw: expected the package mini-racer for a picture, got none; {_ADVICE}")
    engine = py_mini_racer.MiniRacer()
    for script in (_SETTING, *(asset_text(name) + "\n;0" for name in ("elk.bundled.js", "layout.js", "paint.js"))):
        engine.eval(script)
    engine.eval(_DRAW % (drawing_json(drawing), json.dumps({"theme": theme})))
    # each turn runs the timers that are due, and the engine runs what promises wait for in between
    while engine.eval("runDue()"):
        pass
    if error := engine.eval("made.error || ''"):
        raise CircuitError(f"draw {drawing.name!r}: the layout failed: {error}; a fault of ours, please report it")
    return str(engine.eval("made.svg"))


def to_png(drawing: Drawing, *, theme: str = "light", zoom: float = 2.0) -> bytes:
    """Return the picture of `to_svg` as PNG, `zoom` pixels a unit, less for a drawing that would be too large.

    Characters that DejaVu Sans lacks are taken from the machine's fonts.
    """
    if resvg_py is None:
        raise CircuitError(f"draw: expected the package resvg-py for a PNG, got none; {_ADVICE}")
    svg = to_svg(drawing, theme=theme)
    width, height = (float(svg.split(f'{side}="', 1)[1].split('"', 1)[0]) for side in ("width", "height"))
    return bytes(
        resvg_py.svg_to_bytes(
            svg_string=svg,
            font_files=[str(asset_path("DejaVuSans.ttf"))],
            font_family="DejaVu Sans",
            sans_serif_family="DejaVu Sans",
            zoom=min(zoom, (MAX_PIXELS / (width * height)) ** 0.5, MAX_SIDE / max(width, height)),
        )
    )
