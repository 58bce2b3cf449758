"""Sizes of the children of a group → coordinates: layers below one another, a tall stack in several columns."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise

from layerscope.graph.edge_routes import ARROW, RISE, TURN, Break, GroupFrame, Placement
from layerscope.graph.layout_x import SpanX, across, link_ends, settle
from layerscope.graph.order import Lane, Ordering

TALL, TALL_FOR_ITS_WIDTH = (
    1300.0,
    2.0,
)  # a stack is folded when it is higher than both, in pixels and in widths
ASPECT = 1.2  # height by width that is aimed at
WORTH_IT = 0.75  # the tallest column, as a share of the whole
MOST_LINES = 8  # that go on in the next column
REACH = 0.4  # of a column: how far from its ideal place a break may be
LINE_COST = 60.0  # how far a break moves to cut one line less


def breaks(
    bands: Sequence[tuple[float, float]], width: float, crossing: Sequence[int], forbidden: Collection[int]
) -> list[int]:
    """The layers after which a new column begins.

    `bands` are tops and bottoms of the layers in one stack, `crossing` the lines below each layer; a stack may not be
    broken below a `forbidden` layer.
    """
    if not bands:
        return []
    height = bands[-1][1] - bands[0][0]
    allowed = [at for at in range(len(bands) - 1) if at not in forbidden and crossing[at] <= MOST_LINES]
    if height < TALL or height < TALL_FOR_ITS_WIDTH * width or not allowed:
        return []
    columns = max(2, round(math.sqrt(height / (ASPECT * (width + 40.0)))))
    after: list[int] = []
    for number in range(1, columns):
        ideal = bands[0][0] + height * number / columns
        reach = REACH * height / columns
        left = [at for at in allowed if abs(bands[at][1] - ideal) < reach and at not in after]
        if left:
            after.append(min(left, key=lambda at: abs(bands[at][1] - ideal) + LINE_COST * crossing[at]))
    starts = [0, *(at + 1 for at in after)]
    tallest = max(bands[end][1] - bands[start][0] for start, end in zip(starts, [*after, len(bands) - 1], strict=True))
    return after if tallest < WORTH_IT * height else []


GAP, STEEP, STEEPEST = 26.0, 0.07, 44.0  # between layers: at least, more per sideways distance, at most so much more
PORT_GAP = 16.0  # between the border and the first layer
BETWEEN_PORTS, PORT_MARGIN = 12.0, 10.0
LANE = 14.0  # between ways back
GUTTER = 24.0  # on both sides of the lines between columns


def place(ordering: Ordering, extents: Mapping[int, SpanX], frame: GroupFrame) -> Placement:
    """Coordinates of everything in a group, which is made as large as it needs to be."""
    placed = Placement(ordering, extents, frame)
    placed.spot_of = {spot.child: at for at, spot in enumerate(ordering.spots) if spot.child is not None}
    placed.above = {(link.flow, link.lower): link.upper for link in ordering.links}
    placed.x = across(ordering, extents)
    _Stack(placed).run()
    _title_room(placed)
    _set_ends(placed)
    return placed


class _Stack:
    """Puts the layers of a group below one another, in one column or several."""

    def __init__(self, placed: Placement) -> None:
        self._placed, self._ordering, self._frame = placed, placed.ordering, placed.frame
        spots, layers = self._ordering.spots, self._ordering.layers
        self._last = len(layers) - 1
        self._at_top = bool(layers) and all(spots[spot].child is None for spot in layers[0])
        self._at_bottom = any(flow.leaves for flow in self._ordering.flows)
        self._out, self._into = [0.0] * len(layers), [0.0] * len(layers)  # room for ways back below and above
        for lane in self._ordering.lanes:
            first, last = self._span(lane)
            rise = ARROW + RISE * (lane.number + 1)
            self._into[first], self._out[last] = max(self._into[first], rise), max(self._out[last], rise)

    def run(self) -> None:
        if self._last < 0:
            self._placed.width = self._placed.height = 2 * self._frame.padding
            return
        heights, gaps = self._heights(), self._gaps()
        bands, y = [], 0.0
        for height, gap in zip(heights, gaps, strict=True):
            bands.append((y, y + height))
            y += height + gap
        left, right = self._sides(range(self._last + 1))
        crossing = self._crossing()
        after = breaks(bands, right - left, list(map(len, crossing)), self._unbroken()) if self._frame.folds else []
        starts = [0, *(at + 1 for at in after)]
        columns = [range(a, b) for a, b in zip(starts, [*starts[1:], self._last + 1], strict=True)]
        self._side_by_side(columns, crossing)
        self._down(columns, heights, gaps)

    def _heights(self) -> list[float]:
        extents, spots = self._placed.extents, self._ordering.spots
        children = [[spots[spot].child for spot in layer] for layer in self._ordering.layers]
        return [max((extents[c].height for c in layer if c is not None), default=0.0) for layer in children]

    def _gaps(self) -> list[float]:
        """The room below each layer."""
        away = [0.0] * (self._last + 1)
        for link in self._ordering.links:
            leaves, enters = link_ends(self._ordering, self._placed.extents, link)
            sideways = abs(self._placed.x[link.lower] + enters - self._placed.x[link.upper] - leaves)
            layer = self._ordering.spots[link.upper].layer
            away[layer] = max(away[layer], sideways)
        gaps = []
        for at, sideways in enumerate(away):
            is_border = (at == 0 and self._at_top) or (at == self._last - 1 and self._at_bottom)
            turns = self._out[at] + (self._into[at + 1] if at < self._last else 0.0)
            title = self._frame.title_height if at == 0 and self._at_top else 0.0
            gaps.append((PORT_GAP if is_border else GAP) + min(STEEPEST, STEEP * sideways) + turns + title)
        return gaps

    def _span(self, lane: Lane) -> tuple[int, int]:
        source = self._ordering.flows[lane.flow].source
        ends = [self._placed.layer(end) for end in (lane.target, source) if end is not None]
        return min(ends), max(ends)

    def _unbroken(self) -> set[int]:
        """Layers that stay above the next: at the border, and within a loop."""
        unbroken = {0} if self._at_top else set()
        unbroken |= {self._last - 1} if self._at_bottom else set()
        for lane in self._ordering.lanes:
            first, last = self._span(lane)
            unbroken |= set(range(first - 1, last + 1))
        return unbroken

    def _crossing(self) -> list[list[tuple[float, int]]]:
        """The lines below each layer: where they leave, and of which flow."""
        crossing: list[dict[int, float]] = [{} for _ in range(self._last + 1)]
        for link in self._ordering.links:
            leaves, _ = link_ends(self._ordering, self._placed.extents, link)
            crossing[self._ordering.spots[link.upper].layer][link.flow] = self._placed.x[link.upper] + leaves
        return [sorted((x, flow) for flow, x in lines.items()) for lines in crossing]

    def _sides(self, layers: range) -> tuple[float, float]:
        x, extents = self._placed.x, self._placed.extents
        ends = []
        for layer in layers:
            for spot in self._ordering.layers[layer]:
                child = self._ordering.spots[spot].child
                half = 0.0 if child is None else extents[child].width / 2
                ends += [x[spot] - half, x[spot] + half]
        return min(ends, default=0.0), max(ends, default=0.0)

    def _side_by_side(self, columns: Sequence[range], crossing: Sequence[Sequence[tuple[float, int]]]) -> None:
        """Moves each column to the right of the one before, with its ways back and the gutter between."""
        edge = self._frame.padding
        for number, column in enumerate(columns):
            left, right = self._sides(column)
            for layer in column:
                for spot in self._ordering.layers[layer]:
                    self._placed.x[spot] += edge - left
            edge = self._add_lanes(column, edge + right - left)
            if number < len(columns) - 1:
                lines = [flow for _, flow in reversed(crossing[column[-1]])]
                numbers = {flow: at for at, flow in enumerate(lines)}
                self._placed.breaks[column[-1]] = Break(0.0, 0.0, edge + GUTTER, numbers)
                edge += 2 * GUTTER + TURN * len(lines)
        self._placed.width = edge + self._frame.padding

    def _add_lanes(self, column: range, edge: float) -> float:
        """The right end of a column with its ways back and their labels."""
        beside: dict[int, float] = {}
        for lane in sorted(self._ordering.lanes, key=lambda lane: lane.number):
            if self._span(lane)[0] in column:
                at = self._placed.lanes[lane] = beside.setdefault(lane.number, edge + LANE)
                tensor = self._ordering.flows[lane.flow].tensor
                edge = max(edge, at + self._frame.lane_labels.get((tensor, lane.target), 0.0))
        return edge

    def _down(self, columns: Sequence[range], heights: Sequence[float], gaps: Sequence[float]) -> None:
        """The y of every layer and break."""
        feet, frame = [], self._frame
        for number, column in enumerate(columns):
            before = self._placed.breaks.get(column[0] - 1) if number else None
            y = frame.title_height + frame.padding + self._into[column[0]]
            if before is not None:
                y += TURN * len(before.numbers) + ARROW
            elif self._at_top:
                y = 0.0
            for layer in column:
                self._placed.bands.append((y, y + heights[layer]))
                y += heights[layer] + gaps[layer]
            feet.append(self._placed.bands[-1][1] + self._foot_room(column[-1]))
        self._placed.height = max(feet)
        if self._at_bottom:
            self._placed.bands[-1] = (self._placed.height, self._placed.height)
        for number, column in enumerate(columns[1:]):
            foot = self._placed.bands[columns[number][-1]][1] + ARROW
            head = self._placed.bands[column[0]][0] - ARROW
            old = self._placed.breaks[column[0] - 1]
            self._placed.breaks[column[0] - 1] = Break(foot, head, old.gutter, old.numbers)

    def _foot_room(self, layer: int) -> float:
        """The room below the last layer of a column."""
        if layer == self._last:
            return 0.0 if self._at_bottom else self._frame.padding + self._out[layer]
        return self._frame.padding + ARROW + TURN * len(self._placed.breaks[layer].numbers)


def _title_room(placed: Placement) -> None:
    """Finds the widest room for the title between the lines that come in at the top, and makes it wide enough."""
    if not placed.frame.title_width:
        return
    top = placed.ordering.layers[0] if placed.ordering.layers else ()
    ports = sorted(placed.x[spot] for spot in top if placed.ordering.spots[spot].child is None)
    borders = [0.0, *ports, placed.width]
    rooms = [(right - left, -left) for left, right in pairwise(borders)]
    if max(rooms)[0] < placed.frame.title_width:
        rooms = [rooms[0], rooms[-1]]  # which can be made wider
    room, start = max(rooms)[0], -max(rooms)[1]
    missing = max(0.0, placed.frame.title_width - room)
    if missing and start == 0.0:  # grows to the left: everything else moves right
        placed.x = [x + missing for x in placed.x]
        placed.lanes = {lane: x + missing for lane, x in placed.lanes.items()}
        placed.breaks = {
            at: Break(turn.foot, turn.head, turn.gutter + missing, turn.numbers) for at, turn in placed.breaks.items()
        }
    placed.width += missing
    placed.title = start, room + missing


def _set_ends(placed: Placement) -> None:
    """Where on the border of its children each flow arrives and departs: straight on where that is possible."""
    arriving: dict[int, list[tuple[float, int]]] = {}
    leaving: dict[int, dict[int, float]] = {}
    for link in placed.ordering.links:
        upper, lower = placed.ordering.spots[link.upper].child, placed.ordering.spots[link.lower].child
        leaves, enters = link_ends(placed.ordering, placed.extents, link)
        if lower is not None:
            is_turned = placed.ordering.spots[link.upper].layer in placed.breaks  # it comes down from the column's head
            start = placed.x[link.lower] + enters if is_turned else placed.x[link.upper] + leaves
            arriving.setdefault(lower, []).append((start, link.flow))
        if upper is not None:
            leaving.setdefault(upper, {})[link.flow] = placed.x[link.lower]
    for lane, x in placed.lanes.items():
        source = placed.ordering.flows[lane.flow].source
        arriving.setdefault(lane.target, []).append((x, lane.flow))
        if source is not None:
            leaving.setdefault(source, {}).setdefault(lane.flow, x)
    for child, ends in arriving.items():
        labels = placed.frame.arrival_labels
        rooms = {flow: labels.get((placed.ordering.flows[flow].tensor, child), 0.0) for _, flow in ends}
        for flow, x in _spread(placed, child, ends, placed.extents[child].entries, rooms).items():
            placed.arrivals[flow, child] = x
    for child, to in leaving.items():
        ends = [(x, flow) for flow, x in to.items()]
        if len(ends) == 1:
            ends = [(placed.x[placed.spot_of[child]], ends[0][1])]
        placed.departures.update(_spread(placed, child, ends, placed.extents[child].exits, {}))


def _spread(
    placed: Placement,
    child: int,
    ends: Sequence[tuple[float, int]],
    ports: Mapping[int, float],
    labels: Mapping[int, float],
) -> dict[int, float]:
    """Places on the border of a child for flows that come from, or go to, the given x; a label stands to the right."""
    ends = sorted(ends)
    middle, width = placed.x[placed.spot_of[child]], placed.extents[child].width
    left, right = middle - width / 2 + PORT_MARGIN, middle + width / 2 - PORT_MARGIN
    rooms = [max(BETWEEN_PORTS, labels.get(flow, 0.0)) for _, flow in ends]
    right -= min(max(0.0, labels.get(ends[-1][1], 0.0) - PORT_MARGIN), right - left)
    tight = min(1.0, (right - left) / max(1.0, sum(rooms[:-1])))
    shifts = [0.0]
    for room in rooms[:-1]:
        shifts.append(shifts[-1] + room * tight)
    wanted = [min(max(x, left), right) for x, _ in ends]
    straight = [4.0 if abs(want - x) < 0.5 else 1.0 for want, (x, _) in zip(wanted, ends, strict=True)]
    places = settle(wanted, straight, [b - a for a, b in pairwise(shifts)])
    places = [min(at, right - shifts[-1] + shift) for at, shift in zip(places, shifts, strict=True)]
    places = [max(at, left + shift) for at, shift in zip(places, shifts, strict=True)]
    tensors = [placed.ordering.flows[flow].tensor for _, flow in ends]
    return {
        flow: middle - width / 2 + ports[tensor] if tensor in ports else at
        for (_, flow), tensor, at in zip(ends, tensors, places, strict=True)
    }
