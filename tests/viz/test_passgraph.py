"""The graph of a trace for the page: every opening must be drawable from it."""

from __future__ import annotations

from layerscope.query.blocks import Nesting
from layerscope.query.layers import name_layers
from layerscope.viz.nestedgraph import NestedGraph
from layerscope.viz.passgraph import PassGraph
from tests.viz.graphs import Pass


def looped() -> Pass:
    """An encoder of two layers, and a loop of a cell with a residual."""
    made = Pass()
    state = made.op("input")
    with made.module("encoder", "Sequential"):
        state = made.layer("encoder.0", "linear", state)
        state = made.layer("encoder.1", "linear", state)
    for _ in range(3):
        with made.module("cell", "Cell"):
            inner = made.layer("cell.lin", "linear", state)
            inner = made.op("tanh", inner, place="tanh")
        state = made.op("add", inner, state, place="add")
    made.op("output", state)
    return made


def view(rolled: bool = True) -> NestedGraph:
    record = looped().record()
    return PassGraph(Nesting(record, name_layers(record), rolled=rolled)).view()


def test_every_part_has_one_place_in_the_group_around_it() -> None:
    for rolled in (True, False):
        graph = view(rolled)
        groups = {group.group: group for group in graph.groups}
        children: dict[int, list[int]] = {}
        for part, parent in enumerate(graph.parents):
            if parent >= 0:
                children.setdefault(parent, []).append(part)
        assert set(groups) == set(children)
        for group, inside in children.items():
            assert sorted(part for part in groups[group].spot_children if part >= 0) == inside


def test_tensors_that_cross_the_border_of_a_group_are_known_on_both_sides() -> None:
    graph = view()
    groups = {group.group: group for group in graph.groups}
    for group in graph.groups:
        for child, into in zip(group.target_children, group.target_into, strict=True):
            assert (into >= 0) == (child in groups)
            if into >= 0:
                assert into in groups[child].input_tensors
        for source, inner in zip(group.flow_sources, group.flow_out_of, strict=True):
            if inner >= 0:
                assert inner in groups[source].output_tensors


def test_a_loop_is_one_part_with_ways_back_and_unrolled_three_without() -> None:
    rolled, unrolled = view(rolled=True), view(rolled=False)
    assert sum(name.startswith("tanh") for name in rolled.names) == 1
    assert sum(len(group.lane_flows) for group in rolled.groups) > 0
    assert sum(name.startswith("tanh") for name in unrolled.names) == 3
    assert sum(len(group.lane_flows) for group in unrolled.groups) == 0


def test_times_of_a_module_are_those_of_its_operations_added_up() -> None:
    record = looped().record()
    graph = PassGraph(Nesting(record, name_layers(record), rolled=True))
    numbers = dict(zip(*graph.numbers("elapsed_s"), strict=True))
    encoder = graph.view().names.index("encoder")
    inside = [part for part, parent in enumerate(graph.view().parents) if parent == encoder]
    assert abs(numbers[encoder] - sum(numbers[part] for part in inside)) < 1e-12
