"""The order in which the children of a group are drawn: layers from top to bottom, places from left to right.

Sizes play no part, so one ordering serves the SVG, the page and the notebook, whichever groups are open. A tensor that
passes layers on its way holds a place in each, its *bend*; all targets of a tensor share those bends, so that one
tensor is one line that branches. Edges of a loop that lead back are left out and get a lane beside the layers.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from layerscope.graph.blocks import Block, BlockRole, Hop

SWEEPS = 8
SWAPPED_LAYER = 40  # neighbors are tried the other way round in layers up to this size
PORT_SPREAD = 0.8  # of the distance between neighbors, taken by the ports of one child

NO_TENSOR = -1

Ports = Mapping[tuple[int, int], float]  # child and tensor → place on its border, from -0.5 to 0.5


@dataclass(frozen=True, slots=True)
class LayoutFlow:
    """One tensor in one group: where it comes from and where it goes."""

    tensor: int
    source: int | None  # None: it comes in through the top
    targets: tuple[int, ...] = ()
    leaves: bool = False  # it goes out through the bottom as well
    back: tuple[int, ...] = ()  # children that use it in a later pass of a loop


@dataclass(frozen=True, slots=True)
class LayoutSlot:
    """One place in a layer: a child, or a flow on its way (a bend; at the border, a port)."""

    layer: int
    child: int | None
    flow: int | None


@dataclass(frozen=True, slots=True)
class LayoutLink:
    """A flow between two spots of neighboring layers."""

    upper: int
    lower: int
    flow: int


@dataclass(frozen=True, slots=True)
class Lane:
    """A way back beside the layers; lane 0 is the nearest to them."""

    flow: int
    target: int
    number: int


@dataclass(frozen=True, slots=True)
class Ordering:
    """The order of one group. Layers list spots from left to right."""

    flows: tuple[LayoutFlow, ...]
    spots: tuple[LayoutSlot, ...]
    links: tuple[LayoutLink, ...]
    layers: tuple[tuple[int, ...], ...]
    lanes: tuple[Lane, ...]
    crossings: int

    def ports(self, *, top: bool) -> list[int]:
        """Tensors at the top or bottom border, from left to right."""
        layer = self.layers[0 if top else -1] if self.layers else ()
        flows = [self.spots[spot].flow for spot in layer if self.spots[spot].child is None]
        crossing = [self.flows[flow] for flow in flows if flow is not None]
        return [flow.tensor for flow in crossing if (flow.source is None if top else flow.leaves)]


def flows_of(hops: Iterable[Hop]) -> tuple[LayoutFlow, ...]:
    """The hops of one group, put together by tensor."""
    flows: dict[tuple[int, int | None], LayoutFlow] = {}
    for hop in hops:
        key = (hop.tensor, hop.source)
        flow = flows.get(key) or LayoutFlow(hop.tensor, hop.source)
        if hop.target is None:
            flow = replace(flow, leaves=True)
        elif hop.back:
            flow = replace(flow, back=tuple(dict.fromkeys((*flow.back, hop.target))))
        else:
            flow = replace(flow, targets=tuple(dict.fromkeys((*flow.targets, hop.target))))
        flows[key] = flow
    return tuple(flows.values())


def order(
    children: Sequence[int], flows: Sequence[LayoutFlow], pinned: Collection[int], entries: Ports, exits: Ports
) -> Ordering:
    """The ordering of a group's children, given in the order in which they first ran.

    `pinned` children stay at the top; others go down to where they are used if that makes no line longer. `entries` and
    `exits` say where on the border of a child a tensor comes in and goes out.
    """
    layer = _layers(children, flows, pinned)
    spots, links = _spots(children, flows, layer)
    best = _Sweeping(spots, links, flows, entries, exits)
    best.run()
    if best.crossings:  # lines that pass on the right may do better on the left
        other = _Sweeping(spots, links, flows, entries, exits)
        other.start_with_bends()
        other.run()
        best = min(best, other, key=lambda sweeping: sweeping.crossings)
    return Ordering(tuple(flows), spots, links, tuple(map(tuple, best.layers)), _lanes(flows, layer), best.crossings)


class GroupFlows(Protocol):
    """Where the tensors of a graph go, group by group."""

    def hops(self, group: int) -> Iterable[Hop]:
        """The parts of edges that lie in a group."""
        ...

    def inside(self, child: int, tensor: int, *, top: bool) -> int:
        """The tensor inside a child that continues one at its top or bottom border, `NO_TENSOR` for none."""
        ...


@dataclass(frozen=True, slots=True)
class OrderedGroup:
    """The ordering of one group, and which tensors inside its children continue its own."""

    ordering: Ordering
    into: Mapping[tuple[int, int], int]  # child and tensor → the tensor inside the child
    out_of: Mapping[tuple[int, int], int]


class GroupOrderings:
    """The orderings of the groups of a graph, whichever of them are open; made when needed: a large graph has many."""

    def __init__(self, blocks: Sequence[Block], flows: GroupFlows) -> None:
        self._blocks, self._flows = blocks, flows
        self._known: dict[int, OrderedGroup] = {}

    def of(self, group: int) -> OrderedGroup:
        """The ordering of one block with children."""
        if group not in self._known:
            self._known[group] = self._ordered(self._blocks[group])
        return self._known[group]

    def _ordered(self, group: Block) -> OrderedGroup:
        flows = flows_of(self._flows.hops(group.index))
        arriving = [(child, flow.tensor) for flow in flows for child in (*flow.targets, *flow.back)]
        leaving = [(flow.source, flow.tensor) for flow in flows if flow.source is not None]
        into = {end: self._flows.inside(*end, top=True) for end in arriving}
        out_of = {end: self._flows.inside(*end, top=False) for end in leaving}
        pinned = {child for child in group.children if self._blocks[child].role is BlockRole.INPUT}
        children = sorted(group.children, key=lambda child: child not in pinned)
        entries, exits = self._crossings(into, top=True), self._crossings(out_of, top=False)
        return OrderedGroup(order(children, flows, pinned, entries, exits), into, out_of)

    def _crossings(self, inside: Mapping[tuple[int, int], int], *, top: bool) -> dict[tuple[int, int], float]:
        """Where on the borders of children tensors cross, as their own orderings have it; the only one is central."""
        by_child: dict[int, set[int]] = defaultdict(set)
        for (child, _), tensor in inside.items():
            by_child[child].add(tensor)
        crossings: dict[tuple[int, int], float] = {}
        for (child, tensor), inner in inside.items():
            if len(by_child[child]) > 1 and inner != NO_TENSOR and len(by_child[child] - {NO_TENSOR}) > 1:
                tensors = self.of(child).ordering.ports(top=top)
                if inner in tensors:
                    crossings[child, tensor] = (tensors.index(inner) + 0.5) / len(tensors) - 0.5
        return crossings


def _layers(children: Sequence[int], flows: Sequence[LayoutFlow], pinned: Collection[int]) -> dict[int, int]:
    """Layer of each child by the longest way to it; layer 0 is for what comes in through the top, if anything does."""
    top = 1 if any(flow.source is None for flow in flows) else 0
    layer = dict.fromkeys(children, top)
    leaving: dict[int, list[LayoutFlow]] = defaultdict(list)
    arriving: dict[int, list[LayoutFlow]] = defaultdict(list)
    for flow in flows:
        if flow.source is not None:
            leaving[flow.source].append(flow)
        for target in flow.targets:
            arriving[target].append(flow)
    for child in children:
        for flow in leaving[child]:
            for target in flow.targets:
                layer[target] = max(layer[target], layer[child] + 1)
    for child in reversed(children):
        below = [layer[target] for flow in leaving[child] for target in flow.targets]
        if below and child not in pinned:
            lowest = min(below) - 1
            saved = (lowest - layer[child]) * len(leaving[child])
            if sum(_longer(flow, child, lowest, layer) for flow in arriving[child]) <= saved:
                layer[child] = lowest
    return layer


def _longer(flow: LayoutFlow, child: int, lowest: int, layer: Mapping[int, int]) -> int:
    """How many layers further a flow would go if one of its targets went down."""
    reach = max((layer[target] for target in flow.targets if target != child), default=0)
    return 0 if flow.leaves else max(0, lowest - max(reach, layer[child]))


def _spots(
    children: Sequence[int], flows: Sequence[LayoutFlow], layer: Mapping[int, int]
) -> tuple[tuple[LayoutSlot, ...], tuple[LayoutLink, ...]]:
    """Spots of children, bends and ports, and the links between them."""
    spots = [LayoutSlot(layer[child], child, None) for child in children]
    at = {child: place for place, child in enumerate(children)}
    bottom = max(layer.values(), default=0) + 1
    links = []
    for number, flow in enumerate(flows):
        below_source = sorted({(layer[target], at[target]) for target in flow.targets})
        if flow.source is None:
            spots.append(LayoutSlot(0, None, number))
            here, place = 0, len(spots) - 1
        else:
            here, place = layer[flow.source], at[flow.source]
        last = bottom if flow.leaves else max((lower for lower, _ in below_source), default=here)
        for below in range(here + 1, last + 1):
            links += [LayoutLink(place, target, number) for lower, target in below_source if lower == below]
            if below < last or flow.leaves:
                spots.append(LayoutSlot(below, None, number))
                links.append(LayoutLink(place, len(spots) - 1, number))
                place = len(spots) - 1
    return tuple(spots), tuple(links)


def _lanes(flows: Sequence[LayoutFlow], layer: Mapping[int, int]) -> tuple[Lane, ...]:
    """Ways back, the shortest nearest to the layers, sharing a lane where they do not meet."""
    ways = []
    for number, flow in enumerate(flows):
        for target in flow.back:
            upper = layer[target]
            lower = layer[flow.source] if flow.source is not None else upper
            ways.append((abs(lower - upper), min(upper, lower), max(upper, lower), number, target))
    spans_of: list[list[tuple[int, int]]] = []
    lanes = []
    for _, upper, lower, number, target in sorted(ways):
        free = (at for at, spans in enumerate(spans_of) if all(b < upper or lower < a for a, b in spans))
        lane = next(free, len(spans_of))
        if lane == len(spans_of):
            spans_of.append([])
        spans_of[lane].append((upper, lower))
        lanes.append(Lane(number, target, lane))
    return tuple(lanes)


class _Sweeping:
    """Barycentre sweeps down and up the layers; the order with the fewest crossings wins."""

    def __init__(
        self,
        spots: Sequence[LayoutSlot],
        links: Sequence[LayoutLink],
        flows: Sequence[LayoutFlow],
        entries: Ports,
        exits: Ports,
    ) -> None:
        self.layers: list[list[int]] = [[] for _ in range(max((spot.layer for spot in spots), default=-1) + 1)]
        for place, spot in enumerate(spots):
            self.layers[spot.layer].append(place)
        self._up: list[list[tuple[int, float]]] = [[] for _ in spots]  # neighbor, and where on its border
        self._down: list[list[tuple[int, float]]] = [[] for _ in spots]
        self._leaves_at: list[list[float]] = [[] for _ in spots]  # where on our own border each line down begins
        for link in links:
            upper, lower, tensor = spots[link.upper].child, spots[link.lower].child, flows[link.flow].tensor
            leaves_at = 0.0 if upper is None else PORT_SPREAD * exits.get((upper, tensor), 0.0)
            enters_at = 0.0 if lower is None else PORT_SPREAD * entries.get((lower, tensor), 0.0)
            self._down[link.upper].append((link.lower, enters_at))
            self._leaves_at[link.upper].append(leaves_at)
            self._up[link.lower].append((link.upper, leaves_at))
        self._place = [0.0] * len(spots)
        self._is_bend = [spot.child is None for spot in spots]
        for layer in self.layers:
            self._number(layer)
        self.crossings = self._count()

    def start_with_bends(self) -> None:
        """Begins with all bends to the left of all children."""
        for layer in self.layers:
            layer.sort(key=lambda spot: not self._is_bend[spot])
            self._number(layer)
        self.crossings = self._count()

    def run(self) -> None:
        """Sweeps until nothing crosses, or often enough."""
        best = [list(layer) for layer in self.layers]
        for sweep in range(SWEEPS):
            if self.crossings == 0:
                break
            self._sweep(down=sweep % 2 == 0)
            self._swap_neighbors()
            count = self._count()
            if count < self.crossings:
                best, self.crossings = [list(layer) for layer in self.layers], count
        self.layers = best

    def _number(self, layer: Iterable[int]) -> None:
        for at, spot in enumerate(layer):
            self._place[spot] = float(at)

    def _sweep(self, *, down: bool) -> None:
        near = self._up if down else self._down
        place = self._place
        for layer in self.layers if down else reversed(self.layers):
            if len(layer) < 2:
                continue
            center = {
                spot: sum(place[other] + port for other, port in near[spot]) / len(near[spot])
                if near[spot]
                else place[spot]
                for spot in layer
            }
            layer.sort(key=center.__getitem__)
            self._number(layer)

    def _swap_neighbors(self) -> None:
        for layer in self.layers:
            if not 1 < len(layer) <= SWAPPED_LAYER:
                continue
            for at in range(len(layer) - 1):
                left, right = layer[at], layer[at + 1]
                if self._between(left, right) > self._between(right, left):
                    layer[at], layer[at + 1] = right, left
            self._number(layer)

    def _between(self, left: int, right: int) -> int:
        """Crossings of the links of two neighbors, the first one standing left."""
        count = 0
        for near in (self._up, self._down):
            if near[left] and near[right]:
                ends = sorted(self._place[other] + port for other, port in near[right])
                count += sum(_less(ends, self._place[other] + port) for other, port in near[left])
        return count

    def _count(self) -> int:
        """Crossings between all neighboring layers."""
        count = 0
        for layer in self.layers:
            if sum(len(self._down[spot]) for spot in layer) < 2:
                continue
            seen: list[float] = []
            for spot in layer:
                for ends in self._ends_by_port(spot):
                    count += sum(len(seen) - bisect_right(seen, end) for end in ends)
                    for end in ends:
                        insort(seen, end)
        return count

    def _ends_by_port(self, spot: int) -> Iterable[list[float]]:
        """Where the lines from a spot end, taken together by where they begin, from left to right."""
        ends = [self._place[other] + port for other, port in self._down[spot]]
        starts = self._leaves_at[spot]
        if len(set(starts)) < 2:
            return [ends]
        return [[end for end, at in zip(ends, starts, strict=True) if at == port] for port in sorted(set(starts))]


def _less(ends: Sequence[float], limit: float) -> int:
    """How many of the sorted ends lie left of the limit."""
    return bisect_right(ends, limit - 1e-9)
