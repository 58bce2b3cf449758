"""Where named tensors stand, and what is said of them and of their links."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np

from layerscope.model.records import Dependencies, TensorType
from layerscope.views.dependencies import DependencyView, NodePositions, dependency_view
from tests.views.naming import FIRST, INITIAL, LAST, link, node

PLACES = NodePositions((INITIAL, FIRST, LAST))


def box(view: DependencyView, name: str, back: int = 0) -> tuple[float, ...]:
    at = next(at for at, key in enumerate(zip(view.names, view.back, strict=True)) if key == (name, back))
    return tuple(view.boxes.reshape(-1, 4)[at].tolist())


def flags(view: DependencyView, name: str) -> tuple[bool, bool]:
    at = view.names.index(name)
    return view.has_parents[at], view.has_children[at]


def links(view: DependencyView) -> dict[tuple[str, str], bool]:
    """Source and target → whether the line is thin."""
    named = [
        (f"{view.names[source]}{'*' * view.back[source]}", view.names[target])
        for source, target in zip(view.sources, view.targets, strict=True)
    ]
    return dict(zip(named, view.thin, strict=True))


def test_a_name_stands_at_the_same_place_in_every_iteration() -> None:
    first, last = (dependency_view(graph, PLACES, "input", "") for graph in (FIRST, LAST))
    for name in ("input", "pre", "pre_out", "memory"):
        assert box(first, name) == box(last, name)
    assert (first.width, first.height) == (last.width, last.height)


def test_sources_stand_left_of_what_depends_on_them_and_no_two_boxes_meet() -> None:
    view = dependency_view(LAST, PLACES, "loss", "")
    boxes = view.boxes.reshape(-1, 4)
    for source, target in zip(view.sources, view.targets, strict=True):
        assert boxes[source][0] + boxes[source][2] < boxes[target][0]
    for (x, y, width, height), (left, top, wide, high) in combinations(boxes.tolist(), 2):
        assert x + width < left or left + wide < x or y + height < top or top + high < y


def test_every_line_goes_from_the_right_side_of_its_source_to_the_left_side_of_its_target() -> None:
    view = dependency_view(LAST, PLACES, "loss", "")
    boxes, points = view.boxes.reshape(-1, 4), view.ways.reshape(-1, 2)
    ends = np.cumsum((0, *view.way_sizes))
    for at, (source, target) in enumerate(zip(view.sources, view.targets, strict=True)):
        (first_x, first_y), (last_x, last_y) = points[ends[at]], points[ends[at + 1] - 1]
        assert first_x == boxes[source][0] + boxes[source][2]
        assert last_x == boxes[target][0]
        assert boxes[source][1] < first_y < boxes[source][1] + boxes[source][3]
        assert boxes[target][1] < last_y < boxes[target][1] + boxes[target][3]


def test_a_source_of_an_earlier_iteration_is_a_node_of_its_own() -> None:
    view = dependency_view(FIRST, PLACES, "memory", "")
    assert ("memory*", "memory") in links(view)
    at = view.types.index("earlier")
    assert (view.names[at], view.back[at], view.details[at]) == ("memory", 1, "1 iteration ago")


def test_a_node_without_parents_or_children_in_the_iteration_is_told() -> None:
    first, last = (dependency_view(graph, PLACES, "input", "") for graph in (FIRST, LAST))
    assert flags(first, "input") == (False, True)
    assert flags(first, "memory") == (True, False)
    assert flags(last, "memory") == (True, True)


def test_a_link_that_only_another_role_has_is_thin() -> None:
    weight = links(dependency_view(FIRST, PLACES, "pre", "0.weight"))
    bias = links(dependency_view(FIRST, PLACES, "pre", "0.bias"))
    assert (weight["pre", "pre_out"], weight["pre", "memory"]) == (False, True)
    assert (bias["pre", "pre_out"], bias["pre", "memory"]) == (True, False)
    assert not any(links(dependency_view(FIRST, PLACES, "memory", "")).values())


def test_a_node_that_the_iteration_lacks_keeps_its_place() -> None:
    view = dependency_view(FIRST, PLACES, "loss", "")
    assert view.types[view.names.index("loss")] == "absent"
    assert box(view, "loss") == box(dependency_view(LAST, PLACES, "loss", ""), "loss")
    assert "nothing such" not in dependency_view(FIRST, PLACES, "nothing such", "").names


def test_runs_that_link_two_names_in_opposite_ways_are_laid_out_all_the_same() -> None:
    nodes = (node("a", TensorType.INTERMEDIATE), node("b", TensorType.INTERMEDIATE))
    there, back = Dependencies(1, nodes, (link("a", "b"),)), Dependencies(2, nodes, (link("b", "a"), link("b", "b")))
    places = NodePositions((there, back))
    assert links(dependency_view(there, places, "a", "")) == {("a", "b"): False}
    assert links(dependency_view(back, places, "a", "")) == {("b", "a"): False}


def test_hundreds_of_nodes_are_placed_and_long_names_are_cut() -> None:
    names = [f"layer_{at}_{'x' * 60}" for at in range(300)]
    nodes = tuple(node(name, TensorType.INTERMEDIATE) for name in names)
    graph = Dependencies(1, nodes, tuple(link(a, b) for a, b in pairwise(names)))
    view = dependency_view(graph, NodePositions((graph,)), names[0], "")
    assert len(view.names) == 300
    assert all("…" in label for label in view.labels)
    assert view.boxes.reshape(-1, 4)[:, 2].max() <= 250


def test_narrow_boxes_hold_whole_names_in_two_lines_and_take_less_room() -> None:
    narrow = NodePositions((INITIAL, FIRST, LAST), narrow=True)
    view = dependency_view(LAST, narrow, "loss", "")
    assert [a + b for a, b in zip(view.labels, view.seconds, strict=True)] == list(view.names)
    assert view.details == dependency_view(LAST, PLACES, "loss", "").details
    assert narrow.width < 0.7 * PLACES.width
