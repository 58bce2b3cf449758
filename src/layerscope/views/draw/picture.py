"""A collapsed pass and the sizes of its nodes → coordinates of every box and line."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from enum import Enum
from itertools import pairwise

from layerscope.graph.blocks import BlockRole, Hop
from layerscope.graph.collapse import Drawable, Opening, VisibleEdge, collapse
from layerscope.graph.edge_routes import GroupFrame, Placement, Point
from layerscope.graph.layers import Naming
from layerscope.graph.layout_x import SpanX
from layerscope.graph.order import NO_TENSOR, GroupOrderings, Ordering
from layerscope.graph.place import place
from layerscope.graph.trace_blocks import TraceBlock
from layerscope.model.trace_record import TraceRecord
from layerscope.views.draw.text_width import text_width
from layerscope.views.scales import ColorBar, color_scale
from layerscope.views.wording import TraceWording

GROUP_PADDING, TITLE_HEIGHT = 14.0, 20.0

_Widths = dict[tuple[int, int], float]  # tensor and target → width


@dataclass(frozen=True, slots=True)
class Box:
    """Where a block is drawn; the title of an open one begins at `title_x` and has `title_width` of room."""

    x: float
    y: float
    width: float
    height: float
    title_x: float = 0.0
    title_width: float = 0.0


@dataclass(frozen=True, slots=True)
class Arrangement:
    """All boxes by block, from the outside in, and one line for each edge."""

    width: float
    height: float
    boxes: dict[int, Box]
    lines: list[list[Point]]


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is known before placing: sizes of nodes, widths of group titles and of the labels on edges."""

    nodes: Mapping[int, tuple[float, float]]
    titles: Mapping[int, float]
    labels: Mapping[int, float]  # number of the edge → width


class _VisibleFlows:
    """The edges of what is visible; only an open block has an inside."""

    def __init__(self, drawable: Drawable) -> None:
        self._open = drawable.open
        self._hops: dict[int, list[Hop]] = defaultdict(list)
        for edge in drawable.edges:
            for hop in edge.hops:
                self._hops[hop.group].append(hop)

    def hops(self, group: int) -> list[Hop]:
        return self._hops[group]

    def inside(self, child: int, tensor: int, *, top: bool) -> int:
        return tensor if child in self._open else NO_TENSOR


def orderings(drawable: Drawable) -> dict[int, Ordering]:
    """The ordering of every open group, the innermost first."""
    orders = GroupOrderings(drawable.tree.blocks, _VisibleFlows(drawable))
    innermost_first = sorted(drawable.open, key=lambda at: len(drawable.tree.chain(at)), reverse=True)
    return {group: orders.of(group).ordering for group in innermost_first}


def arrange(drawable: Drawable, sizes: Sizes) -> Arrangement:
    """Coordinates of everything that is visible."""
    lane_labels, arrival_labels = _labels(drawable, sizes)
    extents = {block: SpanX(*size) for block, size in sizes.nodes.items()}
    placed: dict[int, Placement] = {}
    for group, ordering in orderings(drawable).items():
        is_root = group == drawable.root
        frame = GroupFrame(
            padding=GROUP_PADDING,
            title_height=0.0 if is_root else TITLE_HEIGHT,
            title_width=0.0 if is_root else sizes.titles[group],
            lane_labels=lane_labels[group],
            arrival_labels=arrival_labels[group],
        )
        placed[group] = place(ordering, extents, frame)
        extents[group] = placed[group].extent()
    boxes = _boxes(drawable, placed, extents)
    lines = _Lines(placed, boxes)
    whole = placed[drawable.root]
    return Arrangement(whole.width, whole.height, boxes, [lines.of(edge) for edge in drawable.edges])


def _labels(drawable: Drawable, sizes: Sizes) -> tuple[dict[int, _Widths], dict[int, _Widths]]:
    """Widths of the labels beside ways back, and of those where lines arrive, by group."""
    lanes: dict[int, _Widths] = defaultdict(dict)
    arrivals: dict[int, _Widths] = defaultdict(dict)
    for number, width in sizes.labels.items():
        edge = drawable.edges[number]
        hop = next(hop for hop in edge.hops if hop.back) if edge.back else edge.hops[-1]
        if hop.target is not None:
            known = (lanes if edge.back else arrivals)[hop.group]
            known[hop.tensor, hop.target] = max(known.get((hop.tensor, hop.target), 0.0), width)
    return lanes, arrivals


def _boxes(drawable: Drawable, placed: Mapping[int, Placement], extents: Mapping[int, SpanX]) -> dict[int, Box]:
    boxes = {drawable.root: Box(0.0, 0.0, placed[drawable.root].width, placed[drawable.root].height)}
    waiting = [drawable.root]
    while waiting:
        group = waiting.pop()
        around = boxes[group]
        for child in drawable.tree.blocks[group].children:
            x, y = placed[group].corner(child)
            title_x, title_width = placed[child].title if child in placed else (0.0, 0.0)
            extent = extents[child]
            boxes[child] = Box(
                around.x + x, around.y + y, extent.width, extent.height, around.x + x + title_x, title_width
            )
            if child in placed:
                waiting.append(child)
    return boxes


class _Lines:
    """Lines of edges, put together from their parts in each open group."""

    def __init__(self, placed: Mapping[int, Placement], boxes: Mapping[int, Box]) -> None:
        self._placed, self._boxes = placed, boxes
        self._flows: dict[tuple[int, int, int | None], int] = {}
        for group, placement in placed.items():
            for number, flow in enumerate(placement.ordering.flows):
                self._flows[group, flow.tensor, flow.source] = number

    def of(self, edge: VisibleEdge) -> list[Point]:
        line: list[Point] = []
        for hop in edge.hops:
            box, placement = self._boxes[hop.group], self._placed[hop.group]
            line += [(box.x + x, box.y + y) for x, y in self._part(placement, hop)]
        return _simplified(line)

    def _part(self, placement: Placement, hop: Hop) -> list[Point]:
        flow = self._flows[hop.group, hop.tensor, hop.source]
        if not hop.back:
            return placement.route(flow, hop.target)
        lanes = placement.ordering.lanes
        return placement.way_back(next(x for x in lanes if x.flow == flow and x.target == hop.target))


def _simplified(line: list[Point]) -> list[Point]:
    """The line without points in the middle of a straight part."""
    kept: list[Point] = []
    for point in line:
        if kept and abs(point[0] - kept[-1][0]) < 0.01 and abs(point[1] - kept[-1][1]) < 0.01:
            continue
        while len(kept) > 1 and _is_straight(kept[-2], kept[-1], point):
            kept.pop()
        kept.append(point)
    return kept


def _is_straight(a: Point, b: Point, c: Point) -> bool:
    if abs(a[0] - b[0]) < 0.01 and abs(b[0] - c[0]) < 0.01:
        return (b[1] - a[1]) * (c[1] - b[1]) >= 0
    return abs(a[1] - b[1]) < 0.01 and abs(b[1] - c[1]) < 0.01 and (b[0] - a[0]) * (c[0] - b[0]) >= 0


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


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView(Box):
    """One node: an operation, or a closed module."""

    id: int
    role: BlockRole
    title: str
    lines: tuple[str, ...]
    tooltip: str
    branches: bool  # used by more than one
    operations: tuple[int, ...]
    value: float | None = None  # of the field the picture is colored by
    color: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView(Box):
    """The box of an open module."""

    id: int
    level: int
    title: str
    detail: str  # class and passes, drawn where there is room
    tooltip: str


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


def graph_view(record: TraceRecord, naming: Naming, options: DrawOptions | None = None) -> GraphView:
    """The picture of a pass, placed and ready to be written."""
    options = options or DrawOptions()
    drawable = collapse(record, naming, Opening(options.depth, options.rolled, options.focus, options.expanded))
    wording = TraceWording(drawable.tree)
    arranged = arrange(drawable, _sizes(drawable, wording))
    nodes, bar = _nodes(drawable, wording, arranged, options)
    blocks = drawable.tree.blocks
    count = len(blocks[drawable.root].operations)
    groups = [_group(blocks[block], arranged.boxes[block], wording)
              for block in arranged.boxes if block in drawable.open and block != drawable.root]  # fmt: skip
    edges = _once([_edge(edge, line) for edge, line in zip(drawable.edges, arranged.lines, strict=True)])
    drawn = [block for block in arranged.boxes if blocks[block].parent != drawable.root and block != drawable.root]
    return GraphView(
        title=record.model if options.focus is None else f"{record.model} · {options.focus}",
        subtitle=f"{count:,} operations{f', drawn as {len(nodes)} nodes' if len(nodes) < count else ''}",
        width=arranged.width,
        height=arranged.height,
        nodes=tuple(nodes),
        groups=tuple(groups),
        edges=(*edges, *_gradient(drawable, arranged, frozenset(options.gradient))),
        color_bar=bar,
        parents={block: blocks[block].parent for block in drawn},
    )


def _sizes(drawable: Drawable, wording: TraceWording) -> Sizes:
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
    blocks = drawable.tree.blocks
    titles = {
        group: min(SHORTEST_TITLE, text_width(wording.title(blocks[group]), LINE_SIZE, bold=True) + 16.0)
        for group in drawable.open - {drawable.root}
    }
    return Sizes(nodes, titles, labels)


def _nodes(
    drawable: Drawable, wording: TraceWording, arranged: Arrangement, options: DrawOptions
) -> tuple[list[NodeView], ColorBar | None]:
    visible = drawable.visible()
    users: dict[int, set[int]] = {}
    for edge in drawable.edges:
        users.setdefault(edge.source, set()).add(edge.target)
    scale = color_scale(drawable.tree.record, visible, options.color_by)
    nodes = []
    for block in visible:
        value, color = scale.of(block) if scale else (None, None)
        nodes.append(
            NodeView(
                id=block.index,
                role=block.role,
                **asdict(arranged.boxes[block.index]),
                title=wording.title(block),
                lines=wording.lines(block),
                tooltip=_tooltip(block, wording),
                branches=len(users.get(block.index, ())) > 1,
                operations=tuple(block.operations),
                value=value,
                color=color,
            )
        )
    return nodes, scale.bar if scale else None


def _group(block: TraceBlock, box: Box, wording: TraceWording) -> GroupView:
    return GroupView(
        id=block.index,
        level=block.level,
        **asdict(box),
        title=wording.title(block),
        detail=wording.class_name(block),
        tooltip=_tooltip(block, wording),
    )


def _tooltip(block: TraceBlock, wording: TraceWording) -> str:
    return "\n".join((wording.title(block), *(f"{name}: {text}" for name, text in wording.facts(block))))


def _edge(edge: VisibleEdge, line: list[Point]) -> EdgeView:
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
