"""The legend of a graph: what its colors and lines mean. Only what is in the picture."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from layerscope.query.blocks import BlockRole
from layerscope.viz.color import STOPS, ColorBar
from layerscope.viz.graph import EdgeStyle, GraphView
from layerscope.viz.lettering import text_width

LEGEND_SIZE = 11.0
ROW, SWATCH, BETWEEN = 18.0, 22.0, 16.0
BAR_WIDTH, BAR_HEIGHT = 160.0, 10.0

ROLES = {
    BlockRole.INPUT: "input",
    BlockRole.OUTPUT: "output",
    BlockRole.CONSTANT: "constant",
    BlockRole.PARAMETER: "operation with parameters",
    BlockRole.OPERATION: "operation",
    BlockRole.MODULE: "closed module",
    BlockRole.SECTION: "section of many operations",
}


def legend(view: GraphView, width: float) -> tuple[str, float]:
    """SVG of the legend, broken into rows of at most this width, and its height."""
    parts, x, row = [], 0.0, 0
    for swatch, text in _entries(view):
        needed = SWATCH + 6.0 + text_width(text, LEGEND_SIZE)
        if x and x + needed > width:
            x, row = 0.0, row + 1
        shape = f'<g transform="translate({x:.1f} {row * ROW:.1f})">{swatch}'
        parts.append(f'{shape}<text class="key" x="{SWATCH + 6:.0f}" y="11.5">{escape(text)}</text></g>')
        x += needed + BETWEEN
    height = (row + 1) * ROW if parts else 0.0
    if view.color_bar:
        parts.append(f'<g transform="translate(0 {height:.1f})">{_bar(view.color_bar)}</g>')
        height += BAR_HEIGHT + 34.0
    return "".join(parts), height


def _entries(view: GraphView) -> Iterator[tuple[str, str]]:
    """Swatch and meaning of everything that is in the picture."""
    box = f'<rect x="0.5" y="2" width="{SWATCH - 1:.0f}" height="11"'
    if view.color_bar is None:
        roles = {node.role for node in view.nodes}
        for role, text in ROLES.items():
            if role in roles:
                radius = 5.5 if role in (BlockRole.INPUT, BlockRole.OUTPUT) else 2.5
                yield f'<g class="node {role.value}">{box} rx="{radius}"/></g>', text
    elif any(node.color is None for node in view.nodes):
        yield f'<g class="node operation">{box} rx="2.5"/></g>', "no value"
    if any(node.branches for node in view.nodes):
        yield f'<circle class="branch" cx="{SWATCH / 2:.0f}" cy="7.5" r="3"/>', "used more than once"
    styles = {edge.style for edge in view.edges}
    for style, text in ((EdgeStyle.BACK, "next pass of a loop"), (EdgeStyle.GRADIENT, "way of the gradient")):
        if style in styles:
            yield f'<path class="line {style.value}" d="M1 7.5H{SWATCH - 1:.0f}" {_head(style)}/>', text


def _head(style: EdgeStyle) -> str:
    return f'marker-end="url(#head-{style.value})"'


def _bar(bar: ColorBar) -> str:
    stops = "".join(
        f'<stop offset="{at / (len(STOPS) - 1):.3f}" stop-color="{stop}"/>' for at, stop in enumerate(STOPS)
    )
    scale = ", logarithmic" if bar.logarithmic else ""
    return (
        f'<linearGradient id="scale">{stops}</linearGradient>'
        f'<text class="key" x="0" y="11">{escape(bar.label)}{scale}</text>'
        f'<rect x="0" y="16" width="{BAR_WIDTH:.0f}" height="{BAR_HEIGHT:.0f}" fill="url(#scale)"/>'
        f'<text class="key" x="0" y="37">{bar.low:.4g}</text>'
        f'<text class="key" x="{BAR_WIDTH:.0f}" y="37" text-anchor="end">{bar.high:.4g}</text>'
    )
