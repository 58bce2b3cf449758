"""Questions about a placed picture that a reader would ask: what covers what, what runs through what."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise

from layerscope.views.draw.picture import EdgeStyle, GraphView, GroupView, NodeView

Box = NodeView | GroupView


def overlapping_nodes(view: GraphView) -> list[tuple[str, str]]:
    return [(a.title, b.title) for a, b in combinations(view.nodes, 2) if _meet(a, b)]


def outside_their_group(view: GraphView) -> list[str]:
    groups = {group.id: group for group in view.groups}
    boxes: list[Box] = [*view.nodes, *view.groups]
    return [b.title for b in boxes if b.id in view.parents and not _holds(groups[view.parents[b.id]], b)]


def overlapping_groups(view: GraphView) -> list[tuple[str, str]]:
    return [
        (a.title, b.title)
        for a, b in combinations(view.groups, 2)
        if view.parents.get(a.id) == view.parents.get(b.id) and _meet(a, b)
    ]


def outside_the_picture(view: GraphView) -> list[str]:
    points = [(p, f"line of {edge.source}") for edge in view.edges for p in edge.points]
    points += [((x, y), b.title) for b in view.nodes for x in (b.x, b.x + b.width) for y in (b.y, b.y + b.height)]
    return [what for (x, y), what in points if not (-0.1 <= x <= view.width + 0.1 and -0.1 <= y <= view.height + 0.1)]


def lines_through_boxes(view: GraphView) -> list[str]:
    """Lines that run through a node, or through a group that holds neither of their ends."""
    around = {box.id: set(_ancestors(view, box.id)) for box in view.nodes}
    found = []
    for edge in view.edges:
        points = list(_sampled(edge.points))
        at_home = {edge.source, edge.target, *around[edge.source], *around[edge.target]}
        boxes: list[Box] = [*view.nodes, *(group for group in view.groups if group.id not in at_home)]
        found += [
            f"{edge.source} to {edge.target} through {b.title}" for b in boxes if any(_inside(p, b) for p in points)
        ]
    return found


def lines_off_their_ends(view: GraphView) -> list[str]:
    """Lines that do not begin at the bottom of their source and end at the top of their target."""
    nodes = {node.id: node for node in view.nodes}
    found = []
    for edge in view.edges:
        against = edge.style is EdgeStyle.GRADIENT
        source, target = nodes[edge.target if against else edge.source], nodes[edge.source if against else edge.target]
        (x0, y0), (x1, y1) = edge.points[-1 if against else 0], edge.points[0 if against else -1]
        starts = abs(y0 - source.y - source.height) < 0.1 and source.x <= x0 <= source.x + source.width
        ends = abs(y1 - target.y) < 0.1 and target.x <= x1 <= target.x + target.width
        if not (starts and ends):
            found.append(f"{source.title} to {target.title}")
    return found


def _ancestors(view: GraphView, box: int) -> Iterator[int]:
    while (parent := view.parents.get(box)) is not None:
        yield parent
        box = parent


def _sampled(points: Sequence[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    for (x0, y0), (x1, y1) in pairwise(points):
        steps = max(2, int((abs(x1 - x0) + abs(y1 - y0)) / 6))
        for step in range(steps + 1):
            t = step / steps
            if abs(x0 - x1) < 0.01 or abs(y0 - y1) < 0.01:
                yield x0 + (x1 - x0) * t, y0 + (y1 - y0) * t
            else:  # the S that is drawn: control points at half the height
                middle, s = (y0 + y1) / 2, 1 - t
                yield (
                    s**3 * x0 + 3 * s * s * t * x0 + 3 * s * t * t * x1 + t**3 * x1,
                    s**3 * y0 + 3 * s * s * t * middle + 3 * s * t * t * middle + t**3 * y1,
                )


def _inside(point: tuple[float, float], box: Box) -> bool:
    x, y = point
    return box.x + 1 < x < box.x + box.width - 1 and box.y + 1 < y < box.y + box.height - 1


def _meet(a: Box, b: Box) -> bool:
    return (
        a.x < b.x + b.width - 0.1
        and b.x < a.x + a.width - 0.1
        and a.y < b.y + b.height - 0.1
        and b.y < a.y + a.height - 0.1
    )


def _holds(group: Box, box: Box) -> bool:
    return (
        group.x <= box.x
        and group.y <= box.y
        and box.x + box.width <= group.x + group.width
        and box.y + box.height <= group.y + group.height
    )


def faults(view: GraphView) -> dict[str, list[str]]:
    """Everything that is wrong with a picture, by kind; empty when nothing is."""
    questions = (
        overlapping_nodes,
        overlapping_groups,
        outside_their_group,
        outside_the_picture,
        lines_through_boxes,
        lines_off_their_ends,
    )
    found = {question.__name__: [str(fault) for fault in question(view)] for question in questions}
    return {name: what for name, what in found.items() if what}
