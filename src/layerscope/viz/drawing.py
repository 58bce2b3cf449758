"""The graph of a pass, drawn into a file or given as SVG text."""

from __future__ import annotations

from pathlib import Path

from layerscope.errors import SelectError
from layerscope.operations import PassRecord
from layerscope.query.layers import Naming
from layerscope.viz.graph import DrawOptions, graph_view
from layerscope.viz.svg import svg

FORMATS = (".svg", ".png", ".dot")


def draw_pass(record: PassRecord, naming: Naming, path: Path | None, options: DrawOptions) -> str:
    """The graph as SVG text; with a path also written there, in the format its ending names."""
    if path is not None and path.suffix not in FORMATS:
        raise SelectError(
            f"A graph is drawn as {', '.join(FORMATS)}, not as {path.suffix or 'a file without ending'!r}."
        )
    view = graph_view(record, naming, options)
    drawn = svg(view)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".png":
            from layerscope.viz.png import png

            path.write_bytes(png(view))
        elif path.suffix == ".dot":
            from layerscope.viz.dot import dot

            path.write_text(dot(view), encoding="utf-8")
        else:
            path.write_text(drawn, encoding="utf-8")
    return drawn
