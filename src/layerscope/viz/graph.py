"""The graph of a pass as a picture: boxes, lines and text with their places. Plain data, for SVG, DOT and PNG."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise

from layerscope.operations import PassRecord
from layerscope.query.arrange import Arrangement, Box, Sizes, arrange
from layerscope.query.blocks import Block, BlockRole
from layerscope.query.collapse import Drawable, Edge, Opening, collapse
from layerscope.query.layers import Naming
from layerscope.query.placement import Point
from layerscope.viz.color import ColorBar, color_scale
from layerscope.viz.lettering import text_width
from layerscope.viz.wording import Wording

TITLE_SIZE, LINE_SIZE, LABEL_SIZE = 12.0, 10.5, 10.0
TITLE_LINE, TEXT_LINE, TEXT_MARGIN = 16.0, 13.5, 9.0
NARROWEST, WIDEST = 76.0, 250.0
PER_LINE, WIDEST_FOR_LINES = 12.0, 600.0  # a node is made wider for the lines that arrive
SHORTEST_TITLE = 130.0  # a group is made at least this wide for its title, or as wide as the title


class EdgeStyle(str, Enum):
    """What a line stands for."""

    FLOW = "flow"
    BACK = "back"  # into the next pass of a loop
    GRADIENT = "gradient"  # the way of a backward pass


@dataclass(frozen=True, slots=True)
class DrawOptions:
    """What to draw and how."""

    depth: int | None = None  # None: as deep as can be read
    rolled: bool = True  # passes of a layer are one node
    focus: str | None = None  # one module: "encoder.0", or "encoder.0#2" for its second call
    color_by: str | Mapping[int, float] | None = None  # a numeric field of operations, or a number for each
    gradient: Collection[int] = ()  # operations that a backward pass reached
    expanded: Collection[str] = ()  # modules that are open whatever the depth


@dataclass(frozen=True, slots=True)
class NodeView:
    """One node: an operation, or a closed module."""

    id: int
    role: BlockRole
    x: float
    y: float
    width: float
    height: float
    title: str
    lines: tuple[str, ...]
    tooltip: str
    branches: bool  # used by more than one
    operations: tuple[int, ...]
    value: float | None = None  # of the field the picture is colored by
    color: str | None = None


@dataclass(frozen=True, slots=True)
class GroupView:
    """The box of an open module."""

    id: int
    level: int
    x: float
    y: float
    width: float
    height: float
    title: str
    detail: str  # class and passes, drawn where there is room
    tooltip: str
    title_x: float
    title_width: float


@dataclass(frozen=True, slots=True)
class EdgeView:
    """One line. Between points that share an x or y it is straight, otherwise an S with vertical ends."""

    source: int
    target: int
    style: EdgeStyle
    points: tuple[Point, ...]
    tensors: int
    label: str
    label_x: float
    label_y: float


@dataclass(frozen=True, slots=True)
class GraphView:
    """The graph of a pass, placed."""

    title: str
    subtitle: str
    width: float
    height: float
    nodes: tuple[NodeView, ...]
    groups: tuple[GroupView, ...]  # from the outside in
    edges: tuple[EdgeView, ...]
    color_bar: ColorBar | None
    parents: Mapping[int, int]  # node or group → the group it is drawn in; absent at the outermost level


def graph_view(record: PassRecord, naming: Naming, options: DrawOptions | None = None) -> GraphView:
    """The picture of a pass, placed and ready to be written."""
    options = options or DrawOptions()
    drawable = collapse(record, naming, Opening(options.depth, options.rolled, options.focus, options.expanded))
    wording = Wording(drawable)
    arranged = arrange(drawable, _sizes(drawable, wording))
    nodes, bar = _nodes(drawable, wording, arranged, options)
    blocks = drawable.nesting.blocks
    groups = [_group(blocks[block], arranged.boxes[block], wording)
              for block in arranged.boxes if block in drawable.open and block != drawable.root]  # fmt: skip
    edges = _once([_edge(edge, line) for edge, line in zip(drawable.edges, arranged.lines, strict=True)])
    drawn = [block for block in arranged.boxes if blocks[block].parent != drawable.root and block != drawable.root]
    return GraphView(
        title=wording.picture_title(options.focus),
        subtitle=wording.picture_detail(len(nodes)),
        width=arranged.width,
        height=arranged.height,
        nodes=tuple(nodes),
        groups=tuple(groups),
        edges=(*edges, *_gradient(drawable, arranged, frozenset(options.gradient))),
        color_bar=bar,
        parents={block: blocks[block].parent for block in drawn},
    )


def _sizes(drawable: Drawable, wording: Wording) -> Sizes:
    nodes = {}
    labels = {at: text_width(edge.passes, LABEL_SIZE) + 9.0 for at, edge in enumerate(drawable.edges) if edge.passes}
    arriving: Counter[int] = Counter()  # the room lines and their labels need
    for at, edge in enumerate(drawable.edges):
        arriving[edge.target] += round(labels.get(at, PER_LINE) if not edge.back else PER_LINE)
    for block in drawable.visible():
        widths = [text_width(line, LINE_SIZE) for line in wording.lines(block)]
        width = max(text_width(wording.title(block), TITLE_SIZE, bold=True), *widths, 0.0) + 2 * TEXT_MARGIN
        height = TITLE_LINE + TEXT_LINE * len(widths) + TEXT_MARGIN
        room = min(arriving[block.index] + PER_LINE, WIDEST_FOR_LINES)
        nodes[block.index] = (round(max(min(width, WIDEST), NARROWEST, room)), round(height))
    blocks = drawable.nesting.blocks
    titles = {
        group: min(SHORTEST_TITLE, text_width(wording.title(blocks[group]), LINE_SIZE, bold=True) + 16.0)
        for group in drawable.open - {drawable.root}
    }
    return Sizes(nodes, titles, labels)


def _nodes(
    drawable: Drawable, wording: Wording, arranged: Arrangement, options: DrawOptions
) -> tuple[list[NodeView], ColorBar | None]:
    visible = drawable.visible()
    users: dict[int, set[int]] = {}
    for edge in drawable.edges:
        users.setdefault(edge.source, set()).add(edge.target)
    scale = color_scale(drawable.nesting.record, visible, options.color_by)
    nodes = []
    for block in visible:
        box = arranged.boxes[block.index]
        value, color = scale.of(block) if scale else (None, None)
        nodes.append(
            NodeView(
                id=block.index,
                role=block.role,
                x=box.x,
                y=box.y,
                width=box.width,
                height=box.height,
                title=wording.title(block),
                lines=wording.lines(block),
                tooltip=wording.tooltip(block),
                branches=len(users.get(block.index, ())) > 1,
                operations=tuple(block.operations),
                value=value,
                color=color,
            )
        )
    return nodes, scale.bar if scale else None


def _group(block: Block, box: Box, wording: Wording) -> GroupView:
    return GroupView(
        id=block.index,
        level=block.level,
        x=box.x,
        y=box.y,
        width=box.width,
        height=box.height,
        title=wording.title(block),
        detail=wording.detail(block),
        tooltip=wording.tooltip(block),
        title_x=box.title_x,
        title_width=box.title_width,
    )


def _edge(edge: Edge, line: list[Point]) -> EdgeView:
    """One line, with its label beside its end."""
    x, y = line[-1][0] + 5.0, line[-1][1] - 9.0
    if edge.back:  # beside the longest upward part
        rising = max(pairwise(line), key=lambda part: part[0][1] - part[1][1])
        x, y = rising[0][0] + 5.0, (rising[0][1] + rising[1][1]) / 2 + 3.0
    style = EdgeStyle.BACK if edge.back else EdgeStyle.FLOW
    return EdgeView(edge.source, edge.target, style, tuple(line), len(edge.pairs), edge.passes, x, y)


def _once(edges: list[EdgeView]) -> list[EdgeView]:
    """The edges with one label, the longest, where several share a way back."""
    longest: dict[Point, str] = {}
    for edge in edges:
        at = (edge.label_x, edge.label_y)
        longest[at] = max(longest.get(at, ""), edge.label, key=len)
    return [replace(edge, label=longest.pop((edge.label_x, edge.label_y), "")) for edge in edges]


def _gradient(drawable: Drawable, arranged: Arrangement, reached: frozenset[int]) -> list[EdgeView]:
    """The edges a backward pass went along, drawn against the flow."""
    return [
        EdgeView(edge.target, edge.source, EdgeStyle.GRADIENT, tuple(reversed(line)), len(edge.pairs), "", 0.0, 0.0)
        for edge, line in zip(drawable.edges, arranged.lines, strict=True)
        if any(source in reached and target in reached for source, target in edge.pairs)
    ]


__all__ = ["BlockRole", "DrawOptions", "EdgeStyle", "EdgeView", "GraphView", "GroupView", "NodeView", "graph_view"]
