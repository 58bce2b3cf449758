"""The graph of a trace for the page: every opening must be drawable from it."""

from __future__ import annotations

from collections import defaultdict

import pytest
import torch
from torch import nn

import layerscope as ls
from layerscope.graph.blocks import Hop
from layerscope.graph.collapse import drawable
from layerscope.graph.layers import name_layers
from layerscope.graph.trace_blocks import TraceBlocks, TraceFlows
from layerscope.model.trace_record import TraceRecord
from layerscope.views import trace_graph
from layerscope.views.trace_graph import TraceGraph, TracePicture
from tests.views import graphs
from tests.views.graphs import Pass


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


def nested(record: TraceRecord, *, rolled: bool = True) -> TraceBlocks:
    return TraceBlocks(record, name_layers(record), rolled=rolled)


def view(rolled: bool = True) -> TracePicture:
    return TraceGraph(nested(looped().record(), rolled=rolled)).view()


def parents(picture: TracePicture) -> dict[int, int]:
    """The part around each part that was sent."""
    sent = (picture.modules, picture.inside.operations)
    return {part: around for parts in sent for part, around in zip(parts.parts, parts.parents, strict=True)}


def names(picture: TracePicture) -> dict[int, str]:
    sent = (picture.modules, picture.inside.operations)
    return {part: name for parts in sent for part, name in zip(parts.parts, parts.names, strict=True)}


def test_every_part_has_one_place_in_the_group_around_it() -> None:
    for rolled in (True, False):
        graph = view(rolled)
        groups = {group.group: group for group in graph.inside.groups}
        children: dict[int, list[int]] = {}
        for part, parent in parents(graph).items():
            if parent >= 0:
                children.setdefault(parent, []).append(part)
        assert set(groups) == set(children) == set(graph.modules.parts)
        for group, inside in children.items():
            assert sorted(part for part in groups[group].spot_children if part >= 0) == sorted(inside)


def test_tensors_that_cross_the_border_of_a_group_are_known_on_both_sides() -> None:
    graph = view().inside
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
    assert sum(name.startswith("tanh") for name in names(rolled).values()) == 1
    assert sum(len(group.lane_flows) for group in rolled.inside.groups) > 0
    assert sum(name.startswith("tanh") for name in names(unrolled).values()) == 3
    assert sum(len(group.lane_flows) for group in unrolled.inside.groups) == 0


def test_a_module_is_told_by_the_first_of_the_tensors_it_returns_and_how_many_there_are() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(8, 48, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            given, _ = self.lstm(x)
            return torch.tanh(given[-1])

    graph = TraceGraph(nested(ls.trace(Recurrent(), torch.randn(5, 2, 8)).record)).view()
    assert dict(zip(graph.modules.names, graph.modules.details, strict=True))["lstm"] == "LSTM 5×2×48 +2"


def test_an_operation_that_stands_for_its_module_names_it() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 2)))
    graph = TraceGraph(nested(ls.trace(model, torch.randn(3, 4)).record)).view()
    leaves = graph.inside.operations
    found = dict(zip(leaves.names, leaves.details, strict=True))
    assert (found["linear_1_1"], found["relu_1_2"], found["linear_2_3"]) == ("@ 0 · 3×4", "@ 0 · 3×4", "@ 1 · 3×2")


def test_times_of_a_module_are_those_of_its_operations_added_up() -> None:
    graph = TraceGraph(nested(looped().record()))
    numbers = dict(zip(*graph.numbers("elapsed_s"), strict=True))
    encoder = next(part for part, name in names(graph.view()).items() if name == "encoder")
    inside = [part for part, parent in parents(graph.view()).items() if parent == encoder]
    assert abs(numbers[encoder] - sum(numbers[part] for part in inside)) < 1e-12


def test_a_module_tells_its_costs_and_the_operation_of_its_output() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Linear(4, 2))
    modules = TraceGraph(nested(ls.trace(model, torch.randn(3, 4)).record)).view().modules
    first = modules.names.index("0")
    assert modules.operations[first] == 2
    told = dict(line.split("\t") for line in modules.facts[first].splitlines())
    assert (told["FLOPs"], told["memory"]) == ("120", "96 B, all results together")


def test_a_large_graph_is_sent_as_modules_and_its_operations_with_their_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = view()
    monkeypatch.setattr(trace_graph, "SENT_WHOLE", 3)
    monkeypatch.setattr(trace_graph, "readable", lambda *_: {0})
    graph = TraceGraph(nested(looped().record()))
    picture = graph.view()
    assert [group.group for group in picture.inside.groups] == [0]
    assert picture.modules.parts == whole.modules.parts
    inside = [at for at, part in enumerate(picture.modules.parts) if part in picture.inside.operations.parts]
    assert inside and not any(picture.modules.facts[at] for at in inside)  # those come when they are seen
    assert all(picture.inside.operations.facts)
    assert set(picture.inside.operations.parents) == {0}
    rest = graph.groups(picture.modules.parts[1:])
    sent = {*picture.modules.parts, *picture.inside.operations.parts, *rest.operations.parts}
    assert sent == {*whole.modules.parts, *whole.inside.operations.parts}
    assert {*picture.inside.groups, *rest.groups} == {*whole.inside.groups}


@pytest.mark.parametrize("rolled", [True, False])
@pytest.mark.parametrize(
    "record",
    [
        graphs.transformer(2),
        graphs.lstm(4),
        graphs.loop(4),
        graphs.chain(900),
        graphs.skips_across(40),
        looped().record(),
    ],
    ids=["transformer", "lstm", "loop", "chain", "skips", "looped"],
)
def test_the_hops_of_one_group_are_those_of_the_whole_with_everything_open(record: TraceRecord, rolled: bool) -> None:
    tree = nested(record, rolled=rolled)
    groups = [block.index for block in tree.blocks if block.children]
    whole: dict[int, list[Hop]] = defaultdict(list)
    for edge in drawable(tree, 0, set(groups)).edges:
        for hop in edge.hops:
            whole[hop.group].append(hop)
    flows = TraceFlows(tree)
    assert {group: flows.hops(group) for group in groups} == {group: whole[group] for group in groups}
