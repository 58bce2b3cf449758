"""A collapsed pass and the sizes of its nodes → coordinates of every box and line."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from layerscope.query.across import Extent
from layerscope.query.blocks import BlockRole
from layerscope.query.collapse import Drawable, Edge, Hop
from layerscope.query.layout import Ordering, flows_of, order
from layerscope.query.place import place
from layerscope.query.placement import Frame, Placement, Point

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


def orderings(drawable: Drawable) -> dict[int, Ordering]:
    """The ordering of every open group, the innermost first."""
    hops: dict[int, list[Hop]] = defaultdict(list)
    for edge in drawable.edges:
        for hop in edge.hops:
            hops[hop.group].append(hop)
    blocks = drawable.nesting.blocks
    found: dict[int, Ordering] = {}
    entries: dict[tuple[int, int], float] = {}
    exits: dict[tuple[int, int], float] = {}
    for group in sorted(drawable.open, key=lambda at: len(drawable.nesting.chain(at)), reverse=True):
        children = blocks[group].children
        pinned = {child for child in children if blocks[child].role is BlockRole.INPUT}
        children = sorted(children, key=lambda child: child not in pinned)
        ordering = found[group] = order(children, flows_of(hops[group]), pinned, entries, exits)
        for ports, top in ((entries, True), (exits, False)):
            tensors = ordering.ports(top=top)
            for at, tensor in enumerate(tensors):
                ports[group, tensor] = (at + 0.5) / len(tensors) - 0.5
    return found


def arrange(drawable: Drawable, sizes: Sizes) -> Arrangement:
    """Coordinates of everything that is visible."""
    lane_labels, arrival_labels = _labels(drawable, sizes)
    extents = {block: Extent(*size) for block, size in sizes.nodes.items()}
    placed: dict[int, Placement] = {}
    for group, ordering in orderings(drawable).items():
        is_root = group == drawable.root
        frame = Frame(
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


def _boxes(drawable: Drawable, placed: Mapping[int, Placement], extents: Mapping[int, Extent]) -> dict[int, Box]:
    boxes = {drawable.root: Box(0.0, 0.0, placed[drawable.root].width, placed[drawable.root].height)}
    waiting = [drawable.root]
    while waiting:
        group = waiting.pop()
        around = boxes[group]
        for child in drawable.nesting.blocks[group].children:
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

    def of(self, edge: Edge) -> list[Point]:
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
