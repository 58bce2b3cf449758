"""What was named in one iteration, and what it depends on: boxes that keep their places, and lines between them."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from layerscope.graph.edge_routes import GroupFrame, Placement
from layerscope.graph.layout_x import SpanX
from layerscope.graph.order import LayoutFlow, order
from layerscope.graph.place import place
from layerscope.model.records import Dependencies, Floats, NamedNode, TensorType
from layerscope.model.text import shape_text
from layerscope.views.draw.text_width import shortened, text_width

NAME_SIZE, DETAIL_SIZE = 12.0, 10.5
WIDEST, PADDING = 250.0, 10.0
SIZES = (38.0, 84.0, 11.0), (32.0, 44.0, 5.0)  # height, least width and margin of boxes, usual and narrow ones
ABSENT, EARLIER = "absent", "earlier"  # parts of boxes that are no tensor of this iteration

Key = tuple[str, int]  # a name, and how many iterations before the one that is drawn


@dataclass(frozen=True, slots=True)
class DependencyView:
    """The graph of one iteration. Columns of nodes and of links; a node stands where it stands in every iteration."""

    width: float
    height: float
    names: tuple[str, ...]
    labels: tuple[str, ...]  # names as they fit into their boxes
    seconds: tuple[str, ...]  # second lines of the boxes: details, or in narrow graphs the rest of the names
    details: tuple[str, ...]
    types: tuple[str, ...]  # of the user's network; "earlier" for a source of an earlier iteration, "absent" for none
    back: tuple[int, ...]  # iterations ago
    boxes: Floats  # x, y, width, height of each node
    has_parents: tuple[bool, ...]
    has_children: tuple[bool, ...]
    sources: tuple[int, ...]  # of each link, by the number of the node
    targets: tuple[int, ...]
    thin: tuple[bool, ...]  # the selected node has the link only by another role than the selected one
    ways: Floats  # x and y of the points of all links
    way_sizes: tuple[int, ...]  # points of each link


class NodePositions:
    """Where every name of a project stands, whichever of its graphs is drawn: laid out from all of them together.

    In a narrow graph a name takes both lines of its box.
    """

    def __init__(self, graphs: Iterable[Dependencies], *, narrow: bool = False) -> None:
        self._narrow = narrow
        self._height, self._least, self._margin = SIZES[narrow]
        self._keys: dict[Key, int] = {}
        self._widths: list[float] = []
        parents: dict[int, dict[int, None]] = {}
        for graph in graphs:
            nodes = {node.name: node for node in graph.nodes}
            for node in graph.nodes:
                self._add((node.name, 0), nodes)
            for link in graph.links:
                source, target = self._add((link.source, link.back), nodes), self._add((link.target, 0), nodes)
                if source != target:
                    parents.setdefault(target, {})[source] = None
        self._placed = self._lay_out(_in_order(len(self._keys), parents), parents)
        self.width, self.height = self._placed.height, self._placed.width  # layers go from left to right here

    def __contains__(self, key: Key) -> bool:
        return key in self._keys

    def box(self, key: Key) -> tuple[float, float, float, float]:
        """x, y, width and height of a node."""
        across, down = self._placed.corner(self._keys[key])
        return down, across, self._widths[self._keys[key]], self._height

    def lines(self, name: str, detail: str, width: float = WIDEST) -> tuple[str, str]:
        """What is written into a box."""
        room = width - 2 * self._margin
        first, second = halves(name) if self._narrow else (name, detail)
        short = shortened(first, NAME_SIZE, room, bold=True)
        return short, shortened(second, NAME_SIZE, room, bold=True) if self._narrow else second

    def way(self, source: Key, target: Key) -> list[tuple[float, float]]:
        """The points of the line from one node to another."""
        start, end = self._keys[source], self._keys[target]
        flow = next(at for at, one in enumerate(self._placed.ordering.flows) if one.source == start)
        lane = next((x for x in self._placed.ordering.lanes if (x.flow, x.target) == (flow, end)), None)
        way = self._placed.route(flow, end) if lane is None else self._placed.way_back(lane)
        return [(down, across) for across, down in way]

    def _add(self, key: Key, nodes: Mapping[str, NamedNode]) -> int:
        if key not in self._keys:
            self._keys[key] = len(self._keys)
            first, second = self.lines(key[0], detail_of(key, nodes.get(key[0])))
            size = NAME_SIZE if self._narrow else DETAIL_SIZE
            text = max(text_width(first, NAME_SIZE, bold=True), text_width(second, size, bold=self._narrow))
            self._widths.append(min(max(math.ceil(text) + 2 * self._margin, self._least), WIDEST))
        return self._keys[key]

    def _lay_out(self, children: Sequence[int], parents: Mapping[int, Mapping[int, None]]) -> Placement:
        at = {child: number for number, child in enumerate(children)}
        ahead: dict[int, list[int]] = {}
        behind: dict[int, list[int]] = {}
        for target in children:
            for source in parents.get(target, ()):
                (ahead if at[source] < at[target] else behind).setdefault(source, []).append(target)
        flows = [
            LayoutFlow(child, child, tuple(ahead.get(child, ())), back=tuple(behind.get(child, ())))
            for child in children
            if child in ahead or child in behind
        ]
        extents = {child: SpanX(self._height, width) for child, width in enumerate(self._widths)}
        ordering = order(children, flows, (), {}, {})
        return place(ordering, extents, GroupFrame(padding=PADDING, folds=False))


class ProjectGraphs:
    """The dependency graphs of all runs of a project, and where their names stand. Threads may share it."""

    def __init__(self, graphs: Iterable[Dependencies] = ()) -> None:
        self._graphs = {graph.number: graph for graph in graphs}  # equal ones share a number in all runs
        self._positions: dict[bool, NodePositions] = {}
        self._lock = threading.Lock()

    def update(self, graphs: Iterable[Dependencies]) -> None:
        """Take these graphs instead of those before."""
        by_number = {graph.number: graph for graph in graphs}
        with self._lock:
            if by_number.keys() != self._graphs.keys():
                self._graphs, self._positions = by_number, {}

    def positions(self, graph: Dependencies, *, narrow: bool) -> NodePositions:
        """The positions for one of the graphs, in narrow boxes for graphs side by side."""
        with self._lock:
            if graph.number not in self._graphs:
                self._graphs, self._positions = {**self._graphs, graph.number: graph}, {}
            if narrow not in self._positions:
                self._positions[narrow] = NodePositions(self._graphs.values(), narrow=narrow)
            return self._positions[narrow]


def _in_order(count: int, parents: Mapping[int, Mapping[int, None]]) -> list[int]:
    """Every node after its parents, those seen first going first; in a loop some parent has to come later."""
    ordered: dict[int, None] = {}
    opened: set[int] = set()
    waiting = list(reversed(range(count)))
    while waiting:
        node = waiting[-1]
        above = [] if node in opened else [one for one in parents.get(node, ()) if one not in opened]
        opened.add(node)
        if above:
            waiting += reversed(above)
        else:
            ordered.setdefault(waiting.pop())
    return list(ordered)


def detail_of(key: Key, node: NamedNode | None) -> str:
    """The second line of a box: what the node is, and its shape or how many tensors it has."""
    if key[1] or node is None:
        return f"{key[1]} iteration{'s' if key[1] > 1 else ''} ago"
    shape = f"{len(node.roles)} tensors" if len(node.roles) > 1 else shape_text(node.roles[0][1])
    return shape if node.type is TensorType.INTERMEDIATE else f"{node.type.value} · {shape}"  # most are: short boxes


def halves(name: str) -> tuple[str, str]:
    """A name in two lines, broken between words.

    >>> halves("loss_per_sample"), halves("loss")
    (('loss_per_', 'sample'), ('loss', ''))
    """
    ends = (match.end() for match in re.finditer(r"[^a-zA-Z0-9]+|[a-z](?=[A-Z])", name))
    at = min(ends, key=lambda end: max(end, len(name) - end), default=len(name))
    return name[:at], name[at:]


def dependency_view(graph: Dependencies, places: NodePositions, node: str, role: str) -> DependencyView:
    """The graph of one iteration with a node and a role of it selected; where it lacks the node, its place is kept."""
    nodes = {one.name: one for one in graph.nodes}
    keys: dict[Key, int] = {(name, 0): at for at, name in enumerate(nodes)}
    links: dict[tuple[Key, Key], bool] = {}  # whether only other roles have it
    for link in graph.links:
        ends = ((link.source, link.back), (link.target, 0))
        if ends[0] == ends[1]:
            continue
        for key in ends:
            keys.setdefault(key, len(keys))
        chosen = {(link.source, link.source_role) if not link.back else None, (link.target, link.target_role)}
        concerned = node == link.target or (node == link.source and not link.back)
        links[ends] = links.get(ends, True) and concerned and (node, role) not in chosen
    if node and (node, 0) not in keys and (node, 0) in places:
        keys[node, 0] = len(keys)
    details = [detail_of(key, nodes.get(key[0])) if key[1] or key[0] in nodes else "not here" for key in keys]
    boxes = [places.box(key) for key in keys]
    lines = [places.lines(key[0], detail, box[2]) for key, detail, box in zip(keys, details, boxes, strict=True)]
    ways = [places.way(*ends) for ends in links]
    return DependencyView(
        width=places.width,
        height=places.height,
        names=tuple(name for name, _ in keys),
        labels=tuple(first for first, _ in lines),
        seconds=tuple(second for _, second in lines),
        details=tuple(details),
        types=tuple(EARLIER if back else nodes[n].type.value if n in nodes else ABSENT for n, back in keys),
        back=tuple(back for _, back in keys),
        boxes=np.array(boxes, np.float64).ravel(),
        has_parents=tuple(any(target == key for _, target in links) for key in keys),
        has_children=tuple(any(source == key for source, _ in links) for key in keys),
        sources=tuple(keys[source] for source, _ in links),
        targets=tuple(keys[target] for _, target in links),
        thin=tuple(links.values()),
        ways=np.array([point for way in ways for point in way], np.float64).ravel(),
        way_sizes=tuple(map(len, ways)),
    )
