"""What of a pass is visible, at any depth, rolled and unrolled."""

from __future__ import annotations

from dataclasses import replace

import pytest

from layerscope.errors import SelectError
from layerscope.graph.blocks import BlockRole
from layerscope.graph.collapse import MOST_READABLE, Drawable, Opening, collapse
from layerscope.graph.trace_blocks import passes_text
from layerscope.model.trace_record import TraceRecord
from tests.views import graphs


def shown(record: TraceRecord, opening: Opening) -> Drawable:
    return collapse(record, graphs.named(record), opening)


def pairs(record: TraceRecord) -> set[tuple[int, int]]:
    return {(parent.operation, op.index) for op in record.operations for parent in op.parents}


ALL = {
    "chain": graphs.chain(30),
    "residual": graphs.residual(3),
    "unet": graphs.unet(3),
    "loop": graphs.loop(4),
    "lstm": graphs.lstm(4),
    "transformer": graphs.transformer(2),
}


@pytest.mark.parametrize("name", ALL)
def test_unrolled_and_fully_open_every_operation_is_a_node_and_every_parent_an_edge(name: str) -> None:
    record = ALL[name]
    drawn = shown(record, Opening(depth=99, rolled=False))
    assert sorted(op for block in drawn.visible() for op in block.operations) == [o.index for o in record.operations]
    assert all(len(block.operations) == 1 for block in drawn.visible())
    found = {
        (drawn.tree.blocks[edge.source].operations[0], drawn.tree.blocks[edge.target].operations[0])
        for edge in drawn.edges
    }
    assert found == pairs(record)


@pytest.mark.parametrize("rolled", [True, False])
@pytest.mark.parametrize("depth", [1, 2, 3, None])
@pytest.mark.parametrize("name", ALL)
def test_at_every_depth_each_operation_is_in_one_node_and_no_edge_is_lost(
    name: str, depth: int | None, rolled: bool
) -> None:
    record = ALL[name]
    drawn = shown(record, Opening(depth=depth, rolled=rolled))
    assert sorted(op for block in drawn.visible() for op in block.operations) == [o.index for o in record.operations]
    node = {op: block.index for block in drawn.visible() for op in block.operations}
    seen = {pair for edge in drawn.edges for pair in edge.pairs}
    assert pairs(record) - seen == {(a, b) for a, b in pairs(record) - seen if node[a] == node[b]}
    for edge in drawn.edges:
        assert {(node[a], node[b]) for a, b in edge.pairs} == {(edge.source, edge.target)}


def test_a_rolled_loop_is_one_node_for_each_layer_and_one_edge_back_with_its_passes() -> None:
    drawn = shown(graphs.loop(4), Opening())
    assert [len(block.operations) for block in drawn.visible()] == [1, 4, 4, 4, 1]
    back = [edge for edge in drawn.edges if edge.back]
    assert [(edge.passes, len(edge.pairs)) for edge in back] == [("passes 2–4", 3)]
    first, *_, last = (edge for edge in drawn.edges if not edge.back)
    assert (first.passes, last.passes) == ("pass 1", "pass 4")


def test_the_states_of_a_rolled_cell_lead_back_around_its_box_and_not_through_it() -> None:
    drawn = shown(graphs.lstm(4), Opening())
    back = [edge for edge in drawn.edges if edge.back]
    assert len(back) == 2
    for edge in back:
        around = next(hop for hop in edge.hops if hop.back)
        assert around.group == 0
        assert around.source == around.target  # out of the cell, and into the cell again


def test_a_module_with_one_operation_is_that_operation() -> None:
    drawn = shown(graphs.residual(1), Opening(depth=1))
    stem = drawn.visible()[1]
    assert (stem.role, stem.path, stem.children) == (BlockRole.PARAMETER, "stem", [])


@pytest.mark.parametrize(("operations", "rolled"), [(10, True), (2_000, True), (50_000, False)])
def test_a_picture_of_any_number_of_operations_can_be_read(operations: int, rolled: bool) -> None:
    nodes = shown(graphs.chain(operations), Opening(rolled=rolled)).visible()
    assert min(operations, 15) <= len(nodes) <= MOST_READABLE + 2


def test_the_depth_is_the_deepest_that_can_be_read() -> None:
    record = graphs.transformer(12)
    chosen = shown(record, Opening())
    assert chosen.open == shown(record, Opening(depth=3)).open
    assert len(chosen.visible()) <= MOST_READABLE < len(shown(record, Opening(depth=4)).visible())


def test_a_module_can_be_opened_whatever_the_depth() -> None:
    record = graphs.transformer(3)
    drawn = shown(record, Opening(depth=1, expanded=["transformer.h.1.mlp"]))
    assert {block.path for block in drawn.tree.blocks if block.index in drawn.open} == {
        "",
        "transformer",
        "transformer.h.1",
        "transformer.h.1.mlp",
    }


def test_a_focus_shows_one_module_with_its_borders() -> None:
    drawn = shown(graphs.transformer(3), Opening(focus="transformer.h.1.attn"))
    borders = [block.role for block in drawn.visible() if block.role in (BlockRole.INPUT, BlockRole.OUTPUT)]
    assert sorted(borders) == [BlockRole.INPUT, BlockRole.INPUT, BlockRole.OUTPUT]
    others = {block.path for block in drawn.visible()} - {""}
    assert all(path.startswith("transformer.h.1.attn") for path in others)


def test_a_focus_can_name_one_of_several_calls() -> None:
    record = graphs.lstm(3)
    second = shown(record, Opening(focus="cell#2", rolled=False))
    inside = {op for block in second.visible() for op in block.operations if block.path.startswith("cell")}
    assert {record.calls[record.operations[op].call].number for op in inside} == {2}


@pytest.mark.parametrize("name", ["at#tn", "attn#2"])
def test_a_focus_can_name_a_module_with_the_mark_of_calls_in_its_name(name: str) -> None:
    record = graphs.transformer(2)
    calls = tuple(call._replace(path=call.path.replace("attn", name)) for call in record.calls)
    drawn = shown(replace(record, calls=calls), Opening(focus=f"transformer.h.1.{name}"))
    assert all(block.path.startswith(f"transformer.h.1.{name}") for block in drawn.visible() if block.path)


def test_a_focus_on_a_module_of_one_operation_shows_it() -> None:
    assert len(shown(graphs.residual(2), Opening(focus="stem")).visible()) == 3


def test_an_unknown_module_is_answered_with_its_nearest_names() -> None:
    with pytest.raises(SelectError, match=r"'transformer\.h\.1\.atn'.*transformer\.h\.1\.attn"):
        shown(graphs.transformer(2), Opening(focus="transformer.h.1.atn"))
    with pytest.raises(SelectError, match="'nothing'"):
        shown(graphs.chain(2), Opening(expanded=["nothing"]))


def test_a_depth_of_nothing_is_refused() -> None:
    with pytest.raises(SelectError, match="depth=1"):
        shown(graphs.chain(2), Opening(depth=0))


def test_a_pass_without_operations_is_drawn_as_nothing() -> None:
    assert shown(graphs.Pass().record(), Opening()).visible() == []


def test_pass_numbers_are_written_as_ranges() -> None:
    assert passes_text([7, 1, 2, 3, 9]) == "1–3, 7, 9"


def test_the_call_of_the_model_itself_is_no_box() -> None:
    net = graphs.Pass()
    x = net.input()
    with net.module("", "Net"):
        y = net.op("relu", net.layer("fc", "linear", x))
    net.output(y)
    drawn = shown(net.record(), Opening(depth=1))
    assert [block.role.value for block in drawn.visible()] == ["input", "parameter", "operation", "output"]


def test_one_module_used_at_two_places_of_the_code_is_two_nodes_and_no_loop() -> None:
    net = graphs.Pass()
    x = net.input()
    for place in ("first", "second"):
        with net.module("drop", "Dropout"):
            x = net.op("dropout", x, place=place)
        x = net.layer(place, "linear", x)
    net.output(x)
    drawn = shown(net.record(), Opening())
    assert len(drawn.visible()) == 6
    assert not any(edge.back for edge in drawn.edges)
