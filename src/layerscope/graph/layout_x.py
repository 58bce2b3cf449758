"""The x of everything in a group: lines as straight as the order and the widths of the children allow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from layerscope.graph.order import LayoutLink, Ordering

BETWEEN_CHILDREN, BESIDE_BEND, BETWEEN_BENDS = 22.0, 14.0, 10.0
SWEEPS = 6
# Which links stay straight when not all can: the chain of children first, then long lines, then what hangs from a side.
CHILDREN_LINK, BENDS_LINK, SIDE_LINK = 64.0, 4.0, 1.0

Near = tuple[int, float, float]  # a neighboring spot, where it wants us, how strongly


@dataclass(frozen=True, slots=True)
class SpanX:
    """Size of a child, and where tensors cross its border, measured from its left; empty where it does not matter."""

    width: float
    height: float
    entries: Mapping[int, float] = field(default_factory=dict)
    exits: Mapping[int, float] = field(default_factory=dict)
    folded: bool = False  # its columns begin at the left and end at the right

    def exit(self, tensor: int) -> float:
        """Where a tensor leaves, measured from the center."""
        return self.exits[tensor] - self.width / 2 if tensor in self.exits else 0.0

    def entry(self, tensor: int) -> float:
        """Where a tensor comes in, measured from the center."""
        return self.entries[tensor] - self.width / 2 if tensor in self.entries else 0.0


def across(ordering: Ordering, extents: Mapping[int, SpanX]) -> list[float]:
    """The center of each spot."""
    return _Sweeping(ordering, extents).run()


def link_ends(ordering: Ordering, extents: Mapping[int, SpanX], link: LayoutLink) -> tuple[float, float]:
    """Where a link leaves and arrives, measured from the centers of its spots."""
    tensor = ordering.flows[link.flow].tensor
    upper, lower = ordering.spots[link.upper].child, ordering.spots[link.lower].child
    return (
        0.0 if upper is None else extents[upper].exit(tensor),
        0.0 if lower is None else extents[lower].entry(tensor),
    )


def settle(wanted: Sequence[float], weights: Sequence[float], apart: Sequence[float]) -> list[float]:
    """Places as near as possible to the wanted ones, in order and at least so far apart.

    Neighbors that are too near are pooled, and a pool goes to its weighted median: the heavier of two keeps its place.

    >>> settle([0.0, 1.0], [2.0, 1.0], [10.0])
    [0.0, 10.0]
    """
    shifts = [0.0]
    for distance in apart:
        shifts.append(shifts[-1] + distance)
    pools: list[tuple[float, list[tuple[float, float]]]] = []
    for want, weight, shift in zip(wanted, weights, shifts, strict=True):
        middle, members = want - shift, [(want - shift, weight)]
        while pools and pools[-1][0] > middle:
            members = pools.pop()[1] + members
            middle = median(members)
        pools.append((middle, members))
    places = (middle for middle, members in pools for _ in members)
    return [place + shift for place, shift in zip(places, shifts, strict=True)]


def median(weighted: Sequence[tuple[float, float]]) -> float:
    """The weighted median of (value, weight): half-way between two where both would do."""
    if len(weighted) == 1:
        return weighted[0][0]
    ordered = sorted(weighted)
    half = sum(weight for _, weight in ordered) / 2
    total = 0.0
    for (value, weight), (following, _) in pairwise(ordered):
        total += weight
        if total > half:
            return value
        if total == half:
            return (value + following) / 2
    return ordered[-1][0]


class _Sweeping:
    """Each layer settles under its neighbors, down and up in turn; long lines are straightened at the end."""

    def __init__(self, ordering: Ordering, extents: Mapping[int, SpanX]) -> None:
        self._ordering, self._extents = ordering, extents
        self._up: list[list[Near]] = [[] for _ in ordering.spots]
        self._down: list[list[Near]] = [[] for _ in ordering.spots]
        fed = {link.lower for link in ordering.links}
        for link in ordering.links:
            leaves, enters = self._pull(link)
            weight = self._weight(link, hangs=link.upper not in fed and ordering.spots[link.upper].layer > 0)
            self._up[link.lower].append((link.upper, leaves - enters, weight))
            self._down[link.upper].append((link.lower, enters - leaves, weight))
        self._apart = [self._distances(layer) for layer in ordering.layers]
        self._place = {
            spot: (number, at) for number, layer in enumerate(ordering.layers) for at, spot in enumerate(layer)
        }

    def run(self) -> list[float]:
        x = [0.0] * len(self._ordering.spots)
        for layer, apart in zip(self._ordering.layers, self._apart, strict=True):
            at = -sum(apart) / 2
            for spot, distance in zip(layer, (*apart, 0.0), strict=True):
                x[spot] = at
                at += distance
        for sweep in range(SWEEPS):
            self._sweep(x, down=sweep % 2 == 0)
        self._straighten(x)
        return x

    def _pull(self, link: LayoutLink) -> tuple[float, float]:
        """Which points are wanted below each other: folded groups stand under one another, not like stairs."""
        children = [self._ordering.spots[spot].child for spot in (link.upper, link.lower)]
        if all(child is not None and self._extents[child].folded for child in children):
            return 0.0, 0.0
        return link_ends(self._ordering, self._extents, link)

    def _weight(self, link: LayoutLink, *, hangs: bool) -> float:
        """How much a link wants to be straight."""
        upper, lower = self._ordering.spots[link.upper], self._ordering.spots[link.lower]
        ports = (upper.child is None and upper.layer == 0) + (
            lower.child is None and lower.layer == len(self._ordering.layers) - 1
        )
        bends = (upper.child is None) + (lower.child is None) - ports
        if bends == 2:
            return BENDS_LINK
        return SIDE_LINK if bends or hangs else CHILDREN_LINK

    def _sweep(self, x: list[float], *, down: bool) -> None:
        near = self._up if down else self._down
        order = range(len(self._apart)) if down else reversed(range(len(self._apart)))
        for at in order:
            layer = self._ordering.layers[at]
            wanted, weights = [], []
            for spot in layer:
                if len(near[spot]) == 1:  # by far the most
                    other, offset, weight = near[spot][0]
                    wanted.append(x[other] + offset)
                    weights.append(weight)
                    continue
                ends = [(x[other] + offset, weight) for other, offset, weight in near[spot]]
                wanted.append(median(ends) if ends else x[spot])
                weights.append(sum(weight for _, weight in ends) or 0.5)
            for spot, place in zip(layer, settle(wanted, weights, self._apart[at]), strict=True):
                x[spot] = place

    def _straighten(self, x: list[float]) -> None:
        """Long lines take one x wherever their neighbors leave room."""
        for trunk in self._trunks():
            run: list[int] = []
            low, high = float("-inf"), float("inf")
            for spot in trunk:
                below, above = self._room(x, spot)
                if max(low, below) > min(high, above):
                    _align(x, run, low, high)
                    run, low, high = [], below, above
                run.append(spot)
                low, high = max(low, below), min(high, above)
            _align(x, run, low, high)

    def _trunks(self) -> list[list[int]]:
        """The bends of each flow, from top to bottom."""
        trunks: dict[int, list[int]] = {}
        for at, spot in enumerate(self._ordering.spots):
            if spot.flow is not None and 0 < spot.layer < len(self._ordering.layers) - 1:
                trunks.setdefault(spot.flow, []).append(at)
        return [trunk for trunk in trunks.values() if len(trunk) > 1]

    def _room(self, x: Sequence[float], spot: int) -> tuple[float, float]:
        """How far a spot can go to the left and to the right."""
        layer, at = self._place[spot]
        spots, apart = self._ordering.layers[layer], self._apart[layer]
        low = x[spots[at - 1]] + apart[at - 1] if at else float("-inf")
        high = x[spots[at + 1]] - apart[at] if at + 1 < len(spots) else float("inf")
        return low, high

    def _distances(self, layer: Sequence[int]) -> list[float]:
        """How far the centers of neighbors must be apart."""
        distances = []
        for left, right in pairwise(layer):
            children = [self._ordering.spots[spot].child for spot in (left, right)]
            widths = [self._extents[child].width for child in children if child is not None]
            free = (BETWEEN_BENDS, BESIDE_BEND, BETWEEN_CHILDREN)[len(widths)]
            distances.append(sum(widths) / 2 + free)
        return distances


def _align(x: list[float], run: Sequence[int], low: float, high: float) -> None:
    if run:
        place = min(max(median([(x[spot], 1.0) for spot in run]), low), high)
        for spot in run:
            x[spot] = place
