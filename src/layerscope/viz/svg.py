"""The graph of a pass as SVG text: no dependency, light and dark by the reader's setting."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from layerscope.query.placement import Point
from layerscope.viz import graph
from layerscope.viz.color import is_dark
from layerscope.viz.graph import EdgeStyle, EdgeView, GraphView, GroupView, NodeView
from layerscope.viz.legend import LEGEND_SIZE, legend
from layerscope.viz.lettering import shortened, text_width
from layerscope.viz.theme import stylesheet

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
    title = shortened(group.title, graph.LINE_SIZE, room, bold=True)
    used = text_width(title, graph.LINE_SIZE, bold=True) + 6.0
    detail = shortened(group.detail, graph.LINE_SIZE, room - used) if title == group.title else ""
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
    baseline = node.y + graph.TITLE_LINE
    title = shortened(node.title, graph.TITLE_SIZE, room, bold=True)
    parts.append(f'<text class="name" x="{_n(center)}" y="{_n(baseline)}">{escape(title)}</text>')
    for line in node.lines:
        baseline += graph.TEXT_LINE
        text = shortened(line, graph.LINE_SIZE, room)
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
