"""Ordering and placing: few crossings, nothing on top of anything, fast."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layerscope.graph.collapse import Opening, collapse
from layerscope.graph.layout_x import median, settle
from layerscope.graph.order import LayoutFlow, order
from layerscope.model.trace_record import TraceRecord
from layerscope.views.draw.picture import DrawOptions, graph_view, orderings
from tests.views import graphs
from tests.views.geometry import faults


def crossings(record: TraceRecord, **opening: object) -> int:
    drawn = collapse(record, graphs.named(record), Opening(**opening))  # type: ignore[arg-type]  # by name
    return sum(ordering.crossings for ordering in orderings(drawn).values())


@pytest.mark.parametrize(
    ("record", "most"),
    [
        (graphs.chain(50), 0),
        (graphs.residual(8), 0),
        (graphs.flat_residual(20), 0),
        (graphs.unet(5), 0),
        (graphs.loop(5), 0),
        (graphs.skips_across(40), 0),
        (graphs.lstm(4), 2),
        (graphs.transformer(12), 0),
        (graphs.swin(), 0),
    ],
    ids=["chain", "residual", "flat residual", "unet", "loop", "dense", "lstm", "transformer", "swin"],
)
def test_lines_cross_no_more_often_than_they_must(record: TraceRecord, most: int) -> None:
    assert crossings(record) <= most
    assert crossings(record, depth=2, rolled=False) <= 3 * most


def test_each_child_is_below_everything_it_uses() -> None:
    flows = [LayoutFlow(1, 1, (2, 3)), LayoutFlow(2, 2, (3,)), LayoutFlow(3, 3, (4,), back=(2,))]
    ordering = order([1, 2, 3, 4], flows, set(), {}, {})
    layer = {spot.child: spot.layer for spot in ordering.spots if spot.child is not None}
    assert [layer[child] for child in (1, 2, 3, 4)] == [0, 1, 2, 3]


def test_a_constant_stands_where_it_is_used_and_a_pinned_child_at_the_top() -> None:
    flows = [LayoutFlow(1, 1, (2,)), LayoutFlow(2, 2, (3,)), LayoutFlow(3, 3, (5,)), LayoutFlow(4, 4, (5,))]
    for pinned, expected in ((set[int](), 2), ({4}, 0)):
        ordering = order([1, 2, 3, 4, 5], flows, pinned, {}, {})
        assert next(spot.layer for spot in ordering.spots if spot.child == 4) == expected


def test_one_tensor_with_many_targets_is_one_line_that_branches() -> None:
    flows = [LayoutFlow(0, 0, tuple(range(1, 11))), *(LayoutFlow(child, child, (child + 1,)) for child in range(1, 10))]
    ordering = order(range(11), flows, set(), {}, {})
    bends = [spot for spot in ordering.spots if spot.child is None]
    assert len(bends) == 9  # one in each layer it passes, however many targets follow


def test_ways_back_that_overlap_have_lanes_of_their_own() -> None:
    flows = [
        LayoutFlow(0, 0, (1,)),
        LayoutFlow(1, 1, (2,), back=(1,)),
        LayoutFlow(2, 2, (3,), back=(0,)),
        LayoutFlow(3, 3, (), back=(3,)),
    ]
    lanes = {lane.flow: lane.number for lane in order(range(4), flows, set(), {}, {}).lanes}
    assert lanes == {1: 0, 3: 0, 2: 1}


def test_lines_are_straight_where_they_can_be() -> None:
    record = graphs.flat_residual(5)
    view = graph_view(record, graphs.named(record))
    centers = {round(node.x + node.width / 2, 1) for node in view.nodes}
    assert len(centers) == 1
    assert all(len(edge.points) == 2 or len({x for x, _ in edge.points}) == 3 for edge in view.edges)


PICTURES: dict[str, tuple[Callable[[], TraceRecord], DrawOptions]] = {
    "residual": (lambda: graphs.residual(4), DrawOptions()),
    "unet": (lambda: graphs.unet(4), DrawOptions()),
    "unet closed": (lambda: graphs.unet(4), DrawOptions(depth=1)),
    "lstm": (lambda: graphs.lstm(5), DrawOptions()),
    "lstm unrolled": (lambda: graphs.lstm(6), DrawOptions(rolled=False)),
    "dense": (lambda: graphs.skips_across(40), DrawOptions()),
    "transformer": (lambda: graphs.transformer(12), DrawOptions()),
    "transformer open": (lambda: graphs.transformer(2), DrawOptions(depth=9, gradient=range(90))),
    "transformer focus": (lambda: graphs.transformer(12), DrawOptions(focus="transformer.h.3")),
    "swin": (graphs.swin, DrawOptions()),
    "sections": (lambda: graphs.chain(450), DrawOptions(depth=1)),
}


@pytest.mark.parametrize("name", PICTURES)
def test_nothing_covers_anything_and_no_line_runs_through_a_box(name: str) -> None:
    make, options = PICTURES[name]
    record = make()
    assert faults(graph_view(record, graphs.named(record), options)) == {}


def random_pass(steps: list[tuple[int, int, int]]) -> TraceRecord:
    """A pass that enters and leaves modules and uses earlier tensors as the numbers say."""
    net = graphs.Pass()
    tensors = [net.input(), net.constant()]

    def run(depth: int, path: str) -> None:
        while steps:
            action, first, second = steps.pop()
            if action == 0 and depth:
                return
            if action == 1 and depth < 4:
                inner = f"{path}.{first % 3}" if path else str(first % 3)
                with net.module(inner, "Block"):
                    run(depth + 1, inner)
            else:
                parents = {tensors[-1 - first % min(6, len(tensors))], tensors[-1 - second % len(tensors)]}
                tensors.append(net.op(f"op{first % 4}", *sorted(parents), place=first % 5))

    run(0, "")
    net.output(tensors[-1])
    return net.record()


@settings(deadline=None, max_examples=60)
@given(
    steps=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 50), st.integers(0, 50)), max_size=60),
    depth=st.sampled_from([None, 1, 2, 9]),
    rolled=st.booleans(),
)
def test_any_pass_can_be_drawn_without_a_fault(
    steps: list[tuple[int, int, int]], depth: int | None, rolled: bool
) -> None:
    record = random_pass(list(steps))
    assert faults(graph_view(record, graphs.named(record), DrawOptions(depth=depth, rolled=rolled))) == {}


@given(
    st.lists(st.tuples(st.floats(-1e3, 1e3), st.floats(0.1, 10), st.floats(0, 50)), min_size=1, max_size=20),
)
def test_settled_places_keep_their_order_and_distance(wanted: list[tuple[float, float, float]]) -> None:
    apart = [distance for _, _, distance in wanted[1:]]
    places = settle([want for want, _, _ in wanted], [weight for _, weight, _ in wanted], apart)
    assert all(b - a >= distance - 1e-6 for a, b, distance in zip(places, places[1:], apart, strict=False))


def test_the_heavier_of_two_keeps_its_place() -> None:
    assert settle([0.0, 0.0], [1.0, 3.0], [10.0]) == [-10.0, 0.0]
    assert median([(0.0, 1.0), (4.0, 1.0)]) == 2.0


def test_a_deep_chain_becomes_columns_and_no_strip() -> None:
    record = graphs.chain(150)
    view = graph_view(record, graphs.named(record))
    assert len(view.nodes) == 152
    assert 0.5 < view.height / view.width < 2


def test_two_thousand_operations_are_placed_in_little_time() -> None:
    record = graphs.swin()
    naming = graphs.named(record)
    began = time.perf_counter()
    view = graph_view(record, naming, DrawOptions(depth=9))
    assert len(view.nodes) == 2100
    assert time.perf_counter() - began < 5.0  # measured 0.5 s; the margin is for a busy machine


def test_what_leaves_a_group_side_by_side_arrives_in_the_same_order() -> None:
    net = graphs.Pass()
    x = net.input()
    with net.module("body", "Body"):
        early = net.op("relu", x)
        late = net.op("mean", net.op("tanh", early))
    for tensor in (early, late):
        net.output(tensor)
    record = net.record()
    assert crossings(record) == 0
    assert faults(graph_view(record, graphs.named(record))) == {}
