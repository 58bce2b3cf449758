"""The graph of a trace as SVG, PNG or DOT: text, or a file."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from layerscope.errors import ArgumentError, MissingError
from layerscope.graph.blocks import BlockRole
from layerscope.graph.edge_routes import Point
from layerscope.graph.layers import Naming
from layerscope.model.text import number_text
from layerscope.model.trace_record import TraceRecord
from layerscope.views.draw import picture
from layerscope.views.draw.picture import DrawOptions, EdgeStyle, EdgeView, GraphView, GroupView, NodeView, graph_view
from layerscope.views.draw.text_width import shortened, text_width
from layerscope.views.scales import STOPS, ColorBar, is_dark

FONT = "Helvetica,Arial,'Liberation Sans','DejaVu Sans',sans-serif"


@dataclass(frozen=True, slots=True)
class Theme:
    """Fill and outline of everything."""

    page: str
    ink: str
    faint: str
    group: tuple[str, str]  # fills of nested boxes in turn
    border: str
    line: str
    back: str
    gradient: str
    roles: dict[str, tuple[str, str]]


LIGHT = Theme(
    page="#ffffff",
    ink="#1c2430",
    faint="#5b6675",
    group=("#eef1f5", "#f7f9fb"),
    border="#b9c2cf",
    line="#5b6675",
    back="#a8590a",
    gradient="#0068b3",
    roles={
        "input": ("#d3e8f8", "#0072b2"),
        "output": ("#fbdccb", "#d55e00"),
        "constant": ("#fdf6cf", "#a8920a"),
        "parameter": ("#d3efe4", "#00845f"),
        "operation": ("#ffffff", "#7b8696"),
        "module": ("#f1dfea", "#a65788"),
        "section": ("#e6e4f5", "#6a61ae"),
    },
)
DARK = Theme(
    page="#12161c",
    ink="#e8ecf2",
    faint="#9aa6b5",
    group=("#1f2630", "#181e26"),
    border="#46515f",
    line="#94a1b2",
    back="#f0a04b",
    gradient="#56b4e9",
    roles={
        "input": ("#12354d", "#56b4e9"),
        "output": ("#4d2712", "#f0834a"),
        "constant": ("#403a10", "#e0cf4f"),
        "parameter": ("#0f3d31", "#2fc99d"),
        "operation": ("#262e39", "#8694a6"),
        "module": ("#432a3b", "#e08fc0"),
        "section": ("#2d2a4a", "#a79fe8"),
    },
)


def stylesheet(*, dark: bool | None = None) -> str:
    """The style sheet: light, with dark for readers who prefer it; or one of the two for everybody."""
    shape = (
        f"text{{font-family:{FONT}}}.head{{font-size:16px;font-weight:bold}}.sub,.key{{font-size:11px}}"
        ".node text,.group text{font-size:10.5px}.node text{text-anchor:middle}.node text.name{font-size:12px}"
        ".name{font-weight:bold}.passes{font-size:10px}.line{fill:none;stroke-width:1.3}"
        ".line.back{stroke-dasharray:5 3}.line.gradient{stroke-width:2.2}.tip{stroke:none}"
        ".node rect{stroke-width:1.2}.node rect.inner{fill:none;stroke-width:.8}"
        ".node.constant rect{stroke-dasharray:3 2}"
        ".node.parameter rect{stroke-width:1.8}.on-dark text,.on-dark .name{fill:#fff}.on-light text{fill:#000}"
    )
    if dark is not None:
        return _colors(DARK if dark else LIGHT) + shape
    return f"{_colors(LIGHT)}{shape}@media (prefers-color-scheme:dark){{{_colors(DARK)}}}"


def _colors(theme: Theme) -> str:
    parts = [
        f".page{{fill:{theme.page}}}text{{fill:{theme.ink}}}.sub,.key,.group text{{fill:{theme.faint}}}",
        f".group .name{{fill:{theme.ink}}}.group rect{{stroke:{theme.border}}}.branch{{fill:{theme.line}}}",
        *(f".level{at} rect{{fill:{fill}}}" for at, fill in enumerate(theme.group)),
        *(
            f".line.{name}{{stroke:{color}}}.tip.{name}{{fill:{color}}}"
            for name, color in (("flow", theme.line), ("back", theme.back), ("gradient", theme.gradient))
        ),
        f".passes{{fill:{theme.back};stroke:{theme.page};stroke-width:3px;paint-order:stroke}}",
        *(f".{role} rect{{fill:{fill};stroke:{stroke}}}" for role, (fill, stroke) in theme.roles.items()),
    ]
    return "".join(parts)


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
        f'<text class="key" x="0" y="37">{number_text(bar.low)}</text>'
        f'<text class="key" x="{BAR_WIDTH:.0f}" y="37" text-anchor="end">{number_text(bar.high)}</text>'
    )


MARGIN, HEADER = 16.0, 40.0
CORNER = 7.0  # radius where a line turns
ORDER = tuple(EdgeStyle)  # what is drawn over what


def svg(view: GraphView, *, dark: bool | None = None) -> str:
    """The picture as SVG text; `dark` fixes the theme that is otherwise the reader's."""
    title_width = text_width(view.title, 16.0, bold=True)
    width = max(view.width, title_width, text_width(view.subtitle, LEGEND_SIZE), 320.0) + 2 * MARGIN
    key, key_height = legend(view, width - 2 * MARGIN)
    top = MARGIN + HEADER + key_height + (8.0 if key else 0.0)
    height = top + view.height + MARGIN
    left = (width - view.width) / 2
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="layerscope" width="{_n(width)}" height="{_n(height)}" '
        f'viewBox="0 0 {_n(width)} {_n(height)}" role="img" aria-label="{_quoted(_spoken(view))}">',
        f"<style>{stylesheet(dark=dark)}</style>",
        f"<defs>{''.join(_arrow_head(style.value) for style in ORDER)}</defs>",
        '<rect class="page" width="100%" height="100%"/>',
        f'<text class="head" x="{_n(MARGIN)}" y="{_n(MARGIN + 14)}">{escape(view.title)}</text>',
        f'<text class="sub" x="{_n(MARGIN)}" y="{_n(MARGIN + 30)}">{escape(view.subtitle)}</text>',
        f'<g transform="translate({_n(MARGIN)} {_n(MARGIN + HEADER)})">{key}</g>',
        f'<g transform="translate({_n(left)} {_n(top)})">',
        *(_group(each) for each in view.groups),
        *_lines(view.edges),
        *(_node(each) for each in view.nodes),
        *(_label(each) for each in view.edges if each.label),
        "</g></svg>\n",
    ]
    return "\n".join(parts)


def _spoken(view: GraphView) -> str:
    return f"Graph of {view.title}: {view.subtitle}"


def _arrow_head(name: str) -> str:
    return (
        f'<marker id="head-{name}" viewBox="0 0 8 8" refX="7.5" refY="4" markerWidth="8" markerHeight="8" '
        f'markerUnits="userSpaceOnUse" orient="auto"><path class="tip {name}" d="M0 0.8L8 4L0 7.2L1.6 4Z"/></marker>'
    )


def _group(group: GroupView) -> str:
    room = group.title_width - 12.0
    title = shortened(group.title, picture.LINE_SIZE, room, bold=True)
    used = text_width(title, picture.LINE_SIZE, bold=True) + 6.0
    detail = shortened(group.detail, picture.LINE_SIZE, room - used) if title == group.title else ""
    # Half a class name says nothing: it is in the tooltip.
    beside = f'<tspan dx="6">{escape(detail)}</tspan>' if detail and detail == group.detail else ""
    return (
        f'<g class="group level{group.level % 2}"><title>{escape(group.tooltip)}</title>'
        f'<rect x="{_n(group.x)}" y="{_n(group.y)}" width="{_n(group.width)}" height="{_n(group.height)}" rx="8"/>'
        f'<text x="{_n(group.title_x + 8)}" y="{_n(group.y + 14.5)}"><tspan class="name">{escape(title)}</tspan>'
        f"{beside}</text></g>"
    )


def _node(node: NodeView) -> str:
    center, room = node.x + node.width / 2, node.width - 12.0
    radius = node.height / 2 if node.role.value in ("input", "output") else 5.0
    style = f' style="fill:{node.color}"' if node.color else ""
    ink = "" if node.color is None else " on-dark" if is_dark(node.color) else " on-light"
    parts = [
        f'<g class="node {node.role.value}{ink}"><title>{escape(node.tooltip)}</title>',
        f'<rect x="{_n(node.x)}" y="{_n(node.y)}" width="{_n(node.width)}" height="{_n(node.height)}" '
        f'rx="{_n(min(radius, 16.0))}"{style}/>',
    ]
    if node.role.value in ("module", "section"):
        parts.append(
            f'<rect class="inner" x="{_n(node.x + 3)}" y="{_n(node.y + 3)}" width="{_n(node.width - 6)}" '
            f'height="{_n(node.height - 6)}" rx="3"/>'
        )
    if node.branches:
        parts.append(f'<circle class="branch" cx="{_n(center)}" cy="{_n(node.y + node.height)}" r="3"/>')
    baseline = node.y + picture.TITLE_LINE
    title = shortened(node.title, picture.TITLE_SIZE, room, bold=True)
    parts.append(f'<text class="name" x="{_n(center)}" y="{_n(baseline)}">{escape(title)}</text>')
    for line in node.lines:
        baseline += picture.TEXT_LINE
        text = shortened(line, picture.LINE_SIZE, room)
        parts.append(f'<text x="{_n(center)}" y="{_n(baseline)}">{escape(text)}</text>')
    return "".join((*parts, "</g>"))


def _lines(edges: Sequence[EdgeView]) -> Iterator[str]:
    """All lines; what several of them share is drawn once, so that it is no darker than the rest."""
    drawn: dict[Point, list[Point]] = {}
    for edge in sorted(edges, key=lambda edge: ORDER.index(edge.style)):
        name = edge.style.value
        points = _fresh(edge.points, drawn) if edge.style is EdgeStyle.FLOW else edge.points
        yield f'<path class="line {name}" d="{_path(points)}" marker-end="url(#head-{name})"/>'


def _fresh(points: Sequence[Point], drawn: dict[Point, list[Point]]) -> Sequence[Point]:
    """The line without the part at its start that is drawn already."""
    start = 0
    for at in range(len(points) - 2):
        if not any(_covers(points[at], end, points[at + 1]) for end in drawn.get(points[at], ())):
            break
        start = at + 1
    while start and _turns(*points[start - 1 : start + 2]):  # a round corner is not left half drawn
        start -= 1
    for at in range(start, len(points) - 1):
        drawn.setdefault(points[at], []).append(points[at + 1])
    return points[start:]


def _covers(start: Point, end: Point, other: Point) -> bool:
    """Whether the part of a line from start to end holds the one from start to the other point."""
    return end == other or (start[0] == end[0] == other[0] and start[1] < other[1] < end[1])


def _label(edge: EdgeView) -> str:
    return f'<text class="passes" x="{_n(edge.label_x)}" y="{_n(edge.label_y)}">{escape(edge.label)}</text>'


def _path(points: Sequence[Point]) -> str:
    """Path data: straight lines with round corners, and an S wherever a line moves sideways between layers."""
    return "".join((f"M{_n(points[0][0])} {_n(points[0][1])}", *_segments(points)))


def _segments(points: Sequence[Point]) -> Iterator[str]:
    for at in range(1, len(points)):
        (x0, y0), (x, y) = points[at - 1], points[at]
        if abs(x - x0) > 0.01 and abs(y - y0) > 0.01:
            middle = _n((y0 + y) / 2)
            yield f"C{_n(x0)} {middle} {_n(x)} {middle} {_n(x)} {_n(y)}"
        elif at + 1 < len(points) and _turns(points[at - 1], points[at], points[at + 1]):
            before = _towards((x, y), points[at - 1])
            after = _towards((x, y), points[at + 1])
            yield f"L{_n(before[0])} {_n(before[1])}Q{_n(x)} {_n(y)} {_n(after[0])} {_n(after[1])}"
        else:
            yield f"L{_n(x)} {_n(y)}"


def _turns(a: Point, b: Point, c: Point) -> bool:
    """Whether a line turns from upright to level or back at its middle point."""
    upright = abs(a[0] - b[0]) < 0.01 and abs(b[1] - c[1]) < 0.01
    level = abs(a[1] - b[1]) < 0.01 and abs(b[0] - c[0]) < 0.01
    return upright or level


def _towards(corner: Point, other: Point) -> Point:
    """The point where the rounding of a corner begins."""
    length = abs(other[0] - corner[0]) + abs(other[1] - corner[1])
    share = min(CORNER, length / 2) / length if length else 0.0
    return corner[0] + (other[0] - corner[0]) * share, corner[1] + (other[1] - corner[1]) * share


def _n(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")


def _quoted(text: str) -> str:
    return escape(text, quote=True)


FORMATS = (".svg", ".png", ".dot")


def draw_trace(record: TraceRecord, naming: Naming, path: Path | None, options: DrawOptions) -> str:
    """The graph as SVG text; with a path also written there, in the format its ending names."""
    if path is not None and path.suffix not in FORMATS:
        raise ArgumentError(
            f"A graph is drawn as {', '.join(FORMATS)}, not as {path.suffix or 'a file without ending'!r}."
        )
    view = graph_view(record, naming, options)
    drawn = svg(view)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".png":
            path.write_bytes(png(view))
        elif path.suffix == ".dot":
            path.write_text(dot(view), encoding="utf-8")
        else:
            path.write_text(drawn, encoding="utf-8")
    return drawn


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


SHAPES = {BlockRole.INPUT: "ellipse", BlockRole.OUTPUT: "ellipse", BlockRole.MODULE: "box, peripheries=2"}


def dot(view: GraphView) -> str:
    """The same nodes, groups and edges for Graphviz to place."""
    inside: defaultdict[int | None, list[NodeView | GroupView]] = defaultdict(list)
    drawn: list[NodeView | GroupView] = [*view.nodes, *view.groups]
    for each in drawn:
        inside[view.parents.get(each.id)].append(each)
    lines = [
        f"digraph {_dot_quoted(view.title)} {{",
        f"  graph [label={_dot_quoted(view.title)}, labelloc=t, rankdir=TB,"
        f' fontname="Helvetica", bgcolor="{LIGHT.page}"];',
        '  node [shape=box, style="rounded,filled", fontname="Helvetica", fontsize=11];',
        f'  edge [color="{LIGHT.line}", fontname="Helvetica", fontsize=9];',
        *_inside(inside, None, "  "),
        *(f"  {_edge(edge)}" for edge in view.edges),
        "}",
    ]
    return "\n".join(lines) + "\n"


def _inside(
    inside: defaultdict[int | None, list[NodeView | GroupView]], group: int | None, indent: str
) -> Iterator[str]:
    for each in inside[group]:
        if isinstance(each, NodeView):
            yield indent + _dot_node(each)
            continue
        label = f"{each.title}  {each.detail}".strip()
        yield f"{indent}subgraph cluster_{each.id} {{"
        yield f'{indent}  graph [label={_dot_quoted(label)}, labeljust=l, style="rounded", color="{LIGHT.border}"];'
        yield from _inside(inside, each.id, indent + "  ")
        yield f"{indent}}}"


def _dot_node(node: NodeView) -> str:
    fill, outline = LIGHT.roles[node.role.value]
    ink = "#ffffff" if node.color and is_dark(node.color) else LIGHT.ink
    label = _dot_quoted("\n".join((node.title, *node.lines)))
    shape = SHAPES.get(node.role, "box")
    return (
        f"n{node.id} [label={label}, tooltip={_dot_quoted(node.tooltip)}, shape={shape}, "
        f'fillcolor="{node.color or fill}", color="{outline}", fontcolor="{ink}"];'
    )


def _edge(edge: EdgeView) -> str:
    label = f"label={_dot_quoted(edge.label)}" if edge.label else ""
    if edge.style is EdgeStyle.BACK:
        look = f'style=dashed, color="{LIGHT.back}", constraint=false'
    elif edge.style is EdgeStyle.GRADIENT:
        look = f'color="{LIGHT.gradient}", penwidth=2, constraint=false'
    else:
        look = ""
    attributes = ", ".join(part for part in (label, look) if part)
    return f"n{edge.source} -> n{edge.target}{f' [{attributes}]' if attributes else ''};"


def _dot_quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
