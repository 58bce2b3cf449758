"""The graph of a pass as a PNG, drawn by resvg: one small wheel, no system library, no font needed."""

from __future__ import annotations

import math
from pathlib import Path

from layerscope.errors import MissingError
from layerscope.viz.graph import GraphView
from layerscope.viz.svg import svg

MOST_PIXELS = 80_000_000  # a picture of 2,000 nodes is made smaller rather than exhausting the memory
FONTS = sorted(Path(__file__).with_name("fonts").glob("*.ttf"))


def png(view: GraphView, *, scale: float = 2.0, dark: bool = False) -> bytes:
    """The picture as PNG, `scale` pixels for each unit of the SVG where that is not too many."""
    try:
        import resvg_py  # type: ignore[import-not-found, unused-ignore]  # optional, and ships no types
    except ImportError as error:
        raise MissingError(
            "A PNG is drawn by the package resvg-py, which is not installed: pip install 'layerscope[png]'. "
            "SVG and DOT need nothing."
        ) from error
    most = math.sqrt(MOST_PIXELS / max(1.0, view.width * view.height))
    drawn = resvg_py.svg_to_bytes(
        svg_string=svg(view, dark=dark), zoom=min(scale, most), font_files=[str(font) for font in FONTS]
    )
    return bytes(drawn)
