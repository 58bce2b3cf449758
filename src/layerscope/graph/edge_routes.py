"""A placed group: where its children are, and the ways of the lines between them.

Between two points of a way, a line is straight where they share an x or y, and an S with vertical ends otherwise; it
never leaves the gap between two layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from layerscope.graph.layout_x import SpanX
from layerscope.graph.order import Lane, Ordering

Point = tuple[float, float]
Labels = Mapping[tuple[int, int], float]  # tensor and target → width

RISE = 7.0  # between the turns of ways back
ARROW = 12.0  # room for an arrow head
TURN = 8.0  # between lines that go on in the next column


@dataclass(frozen=True, slots=True)
class GroupFrame:
    """What a group has besides its children: a border, a title, labels beside ways back and where lines arrive."""

    padding: float
    title_height: float = 0.0
    title_width: float = 0.0
    lane_labels: Labels = field(default_factory=dict)
    arrival_labels: Labels = field(default_factory=dict)
    folds: bool = True  # a tall stack is broken into columns


@dataclass(frozen=True, slots=True)
class Break:
    """Where lines go on from the foot of one column to the head of the next."""

    foot: float
    head: float
    gutter: float
    numbers: Mapping[int, int]  # flow → its place among the lines, from the right

    def way(self, flow: int, start: float, end: float) -> list[Point]:
        """From the foot of the first column to the head of the second."""
        at = self.numbers[flow]
        foot, beside = self.foot + TURN * at, self.gutter + TURN * at
        head = self.head - TURN * (len(self.numbers) - 1 - at)
        return [(start, foot), (beside, foot), (beside, head), (end, head)]


@dataclass(slots=True)
class Placement:
    """A placed group; everything is measured from its upper left corner."""

    ordering: Ordering
    extents: Mapping[int, SpanX]
    frame: GroupFrame
    width: float = 0.0
    height: float = 0.0
    x: list[float] = field(default_factory=list)  # center of each spot
    bands: list[tuple[float, float]] = field(default_factory=list)  # top and bottom of each layer
    lanes: dict[Lane, float] = field(default_factory=dict)
    breaks: dict[int, Break] = field(default_factory=dict)  # by the layer above
    title: tuple[float, float] = (0.0, 0.0)  # where the title begins, and the room it has
    departures: dict[int, float] = field(default_factory=dict)  # flow → x
    arrivals: dict[tuple[int, int], float] = field(default_factory=dict)  # (flow, child) → x
    spot_of: dict[int, int] = field(default_factory=dict)
    above: dict[tuple[int, int], int] = field(default_factory=dict)  # (flow, spot) → the spot it comes from

    def layer(self, child: int) -> int:
        """The layer of a child."""
        return self.ordering.spots[self.spot_of[child]].layer

    def corner(self, child: int) -> Point:
        """Upper left corner of a child."""
        top, bottom = self.bands[self.layer(child)]
        extent = self.extents[child]
        return self.x[self.spot_of[child]] - extent.width / 2, (top + bottom - extent.height) / 2

    def extent(self) -> SpanX:
        """The group as a child of the group around it."""
        entries, exits = {}, {}
        for spot, x in zip(self.ordering.spots, self.x, strict=True):
            if spot.child is None and spot.flow is not None:
                flow = self.ordering.flows[spot.flow]
                if spot.layer == 0:
                    entries[flow.tensor] = x
                elif spot.layer == len(self.bands) - 1:
                    exits[flow.tensor] = x
        return SpanX(self.width, self.height, entries, exits, folded=bool(self.breaks))

    def route(self, flow: int, target: int | None) -> list[Point]:
        """The way of a flow to one of its targets, or to the bottom of the group."""
        spot = self._exit(flow) if target is None else self.spot_of[target]
        way = [(self.x[spot], self.height)] if target is None else self._into(flow, target)
        while (upper := self.above.get((flow, spot))) is not None:
            before = self._passing(flow, upper)
            if (turn := self.breaks.get(self.ordering.spots[upper].layer)) is not None:
                way += reversed(turn.way(flow, before[0][0], way[-1][0]))
            way += before
            spot = upper
        return list(reversed(way))

    def way_back(self, lane: Lane) -> list[Point]:
        """The way of a loop: out at the bottom, up beside the layers, in at the top."""
        source = self.ordering.flows[lane.flow].source
        assert source is not None, "a tensor from outside is older than everything in the group"
        out = list(reversed(self._passing(lane.flow, self.spot_of[source])))
        into = list(reversed(self._into(lane.flow, lane.target)))
        rise, beside = ARROW + RISE * lane.number, self.lanes[lane]
        below, above = out[-1][1] + rise, into[0][1] - rise
        return [*out, (out[-1][0], below), (beside, below), (beside, above), (into[0][0], above), *into]

    def _exit(self, flow: int) -> int:
        return next(spot for spot in self.ordering.layers[-1] if self.ordering.spots[spot].flow == flow)

    def _into(self, flow: int, child: int) -> list[Point]:
        """From the top of a child up to the top of its layer."""
        x = self.arrivals[flow, child]
        return [(x, self.corner(child)[1]), (x, self.bands[self.layer(child)][0])]

    def _passing(self, flow: int, spot: int) -> list[Point]:
        """The part of a way in the layer of a spot, upwards: beside children, out of a child, or in at the border."""
        child, layer = self.ordering.spots[spot].child, self.ordering.spots[spot].layer
        top, bottom = self.bands[layer]
        if child is not None:
            x = self.departures[flow]
            return [(x, bottom), (x, self.corner(child)[1] + self.extents[child].height)]
        return [(self.x[spot], bottom + (self.frame.title_height if layer == 0 else 0.0)), (self.x[spot], top)]
