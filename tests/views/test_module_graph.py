"""The graph of modules: what meets, what repeats, what is drawn where, and its numbers."""

from __future__ import annotations

from itertools import pairwise
from types import ModuleType

import numpy as np
import pytest

from layerscope.graph.blocks import BlockRole
from layerscope.graph.module_blocks import ModuleBlocks
from layerscope.model.records import CallEdge, CallGraph, CallNode, ModuleNode
from layerscope.query.matrix import MISSING, NAN, VALUE, Matrix, Question
from layerscope.views.module_graph import NO_CALLS, ModuleGraph, PartNumbers
from layerscope.views.nested_graph import NOTHING, GroupOrder
from tests.golden import nested, placing
from tests.server.graphs import PORT_IN, PORT_OUT, blocks_graph


def flat(edges: str, names: str = "abcdef", classes: str = "") -> CallGraph:
    """A model whose calls are letters; `in>a a>out` are its edges, `a>b@1` one to where they meet in 1."""
    modules = [ModuleNode("(model)", "Net", 0, "")]
    modules += [ModuleNode(name, kind, 1, "") for name, kind in zip(names, classes or names.upper(), strict=True)]
    calls = [CallNode("(model)", "(model)", "", PORT_IN, PORT_OUT)]
    calls += [CallNode(name, name, "(model)", PORT_IN, PORT_OUT) for name in names]
    found = []
    for text in edges.split():
        source, target = text.split(">")
        target, _, join = target.partition("@")
        start = ("(model)", "input.0") if source == "in" else (source, "output.0")
        end = ("(model)", "output.0") if target == "out" else (target, "input.0")
        found.append(CallEdge(*start, *end, join))
    return CallGraph(tuple(modules), tuple(calls), tuple(found))


def arrows(graph: CallGraph) -> set[str]:
    """What is drawn inside the model: names of parts, `+` and a number for a merge."""
    tree = ModuleBlocks(graph)
    merges = [part.index for part in tree.blocks if part.role is BlockRole.MERGE]

    def name(part: int | None, outside: str) -> str:
        if part is None:
            return outside
        return f"+{merges.index(part)}" if part in merges else tree.blocks[part].site

    return {f"{name(wire.source, 'in')}>{name(wire.target, 'out')}" for wire in tree.wires[0]}


def test_a_skip_and_its_branch_meet_before_they_go_on() -> None:
    assert arrows(flat("in>a a>b in>b b>out", "ab")) == {"in>a", "a>+0", "in>+0", "+0>b", "b>out"}


def test_a_stream_that_grows_by_sums_is_drawn_as_a_chain_of_merges() -> None:
    graph = flat("in>a a>b in>b b>c a>c in>c c>out b>out a>out in>out", "abc")
    assert arrows(graph) == {
        "in>a", "in>+0", "a>+0", "+0>b", "+0>+1", "b>+1", "+1>c", "+1>+2", "c>+2", "+2>out",
    }  # fmt: skip


def test_calls_that_take_the_same_tensors_share_a_merge() -> None:
    shared = {"in>a", "in>b", "a>+0", "b>+0", "+0>c", "+0>d"}
    assert arrows(flat("in>a in>b a>c b>c a>d b>d", "abcd")) == shared
    assert arrows(flat("in>a in>b a>c@1 b>c@1 a>d@1 b>d@1", "abcd")) == shared
    assert arrows(flat("in>a in>b a>c@1 b>c@1 a>d b>d", "abcd")) == shared  # recorded before that was known


def test_two_merges_of_the_same_calls_stay_two() -> None:
    assert arrows(flat("in>a in>b a>c@1 b>c@1 a>d@2 b>d@2", "abcd")) == {
        "in>a", "in>b", "a>+0", "b>+0", "+0>c", "a>+1", "b>+1", "+1>d",
    }  # fmt: skip


@pytest.mark.parametrize("site", ["a", "a#2", "a#b", "a#b#2", "#1"])
def test_a_name_with_the_mark_of_calls_is_still_a_module(site: str) -> None:
    path = {"a#2": "a", "a#b#2": "a#b"}.get(site, site)
    calls = CallNode("(model)", "(model)", "", PORT_IN, PORT_OUT), CallNode(site, path, "(model)", PORT_IN, PORT_OUT)
    graph = CallGraph((ModuleNode("(model)", "Net", 0, ""), ModuleNode(path, "Linear", 1, "")), calls, ())
    view = ModuleGraph(graph).view
    assert dict(zip(view.sites, view.roles, strict=True))[site] == "call"
    assert dict(zip(view.sites, view.details, strict=True))[site] == "Linear · 8×16"


def folded(graph: CallGraph) -> list[tuple[int, int]]:
    """How many children each repeat has, and after how many it begins again."""
    tree = ModuleBlocks(graph)
    return [(len(part.children), part.period) for part in tree.blocks if part.role is BlockRole.REPEAT]


def test_blocks_built_alike_are_folded_and_small_modules_only_when_they_are_many() -> None:
    assert folded(blocks_graph()) == [(4, 1)]
    assert folded(blocks_graph(blocks=2)) == []
    chain = "in>a a>b b>c c>d d>e e>f f>out"
    assert folded(flat(chain, "abcdef", "LRLRLR")) == []  # nothing else would be left to see
    assert folded(flat("in>a", "xabcdef", "HLRLRLR")) == [(6, 2)]
    assert folded(flat("in>a", "xabcd", "HLRLR")) == []


def test_an_edge_against_the_order_of_the_calls_is_a_way_back() -> None:
    graph = flat("in>a a>b b>a b>out", "ab")
    order = ModuleGraph(graph).view.groups[0]
    assert len(order.lane_flows) == 1


def crossing(order: GroupOrder) -> tuple[set[int], set[int]]:
    """Tensors inside a group that come in through the top and go out through the bottom."""
    flows = list(zip(order.flow_tensors, order.flow_sources, order.flow_leaves, strict=True))
    return {t for t, source, _ in flows if source == NOTHING}, {t for t, _, leaves in flows if leaves}


def test_whatever_enters_or_leaves_a_group_goes_on_inside_it() -> None:
    view = ModuleGraph(blocks_graph()).view
    groups = {order.group: order for order in view.groups}
    assert {view.roles[group] for group in groups} == {"call", "repeat"}
    for order in view.groups:
        for child, into in zip(order.target_children, order.target_into, strict=True):
            if child in groups:
                assert into in crossing(groups[child])[0]
        for source, out_of in zip(order.flow_sources, order.flow_out_of, strict=True):
            if source in groups:
                assert out_of in crossing(groups[source])[1]
        assert set(order.input_tensors) <= {*crossing(order)[0], NOTHING}
        assert set(order.output_tensors) <= {*crossing(order)[1], NOTHING}


def test_parts_carry_name_class_shape_and_everything_for_the_tooltip() -> None:
    view = ModuleGraph(blocks_graph()).view
    at = view.sites.index("blocks.1.norm")
    assert (view.names[at], view.details[at]) == ("norm", "LayerNorm · 8×16")
    assert view.facts[at].splitlines() == [
        "name\tblocks.1.norm", "class\tLayerNorm", "input.0\t8×16", "output.0\t8×16",
        "parameters\t32", "argument\t(16,)", "eps\t1e-05",
    ]  # fmt: skip
    repeat = view.roles.index("repeat")
    assert (view.names[repeat], view.details[repeat], view.times[repeat]) == ("blocks.0 … blocks.3", "Block", 4)
    assert "parameters\t1,216" in view.facts[repeat]


def test_a_run_without_calls_shows_its_modules_one_below_the_other() -> None:
    view = ModuleGraph(blocks_graph(calls=False)).view
    assert view.note == NO_CALLS
    assert {order.group: max(order.layer_sizes) for order in view.groups}[0] == 1
    assert all(tensor < 0 for order in view.groups for tensor in order.flow_tensors)


def test_a_huge_group_is_cut_into_sections_and_only_what_is_open_is_ordered_at_first() -> None:
    names = [f"m{at}" for at in range(2000)]
    calls = [CallNode("(model)", "(model)", "", PORT_IN, PORT_OUT)]
    calls += [CallNode(name, name, "(model)", PORT_IN, PORT_OUT) for name in names]
    edges = [CallEdge(a, "output.0", b, "input.0") for a, b in pairwise(names)]
    modules = [ModuleNode(name, f"C{at}", 0, "") for at, name in enumerate(names)]
    graph = ModuleGraph(CallGraph((ModuleNode("(model)", "Net", 0, ""), *modules), tuple(calls), tuple(edges)))
    view = graph.view
    sections = [at for at, role in enumerate(view.roles) if role == "section"]
    assert len(sections) == 20
    assert [order.group for order in view.groups] == [0]
    assert graph.has_group(sections[3])
    assert len(graph.group(sections[3]).spot_children) >= 100


def matrix(kind: str, columns: dict[str, list[float]]) -> Matrix:
    """The rms of some sites at steps 5, 6, 7 …; −1 where nothing was recorded."""
    values = np.array(list(columns.values()), np.float32).T
    states = np.where(np.isnan(values), NAN, np.where(values < 0, MISSING, VALUE)).astype(np.uint8)
    tensors = tuple((site, "output.0") for site in columns)
    return Matrix(Question(kind, "rms"), tensors, np.arange(5, 5 + len(values)), values, states)


def by_site(graph: ModuleGraph, numbers: PartNumbers) -> dict[str, float]:
    sites = graph.view.sites
    return {sites[int(part)]: float(value) for part, value in zip(numbers.parts, numbers.values, strict=True)}


def test_numbers_of_a_step_come_by_part_with_the_scale_of_all_steps() -> None:
    graph = ModuleGraph(blocks_graph())
    rows = {
        "embed": [1.0, 2.0],
        "head": [3.0, 400.0],
        "blocks.0": [2.0, np.nan],
        "blocks.1": [-1, 5.0],
        "gone": [1e9] * 2,
    }
    found = matrix("output", rows)
    first, second = (graph.numbers([found], step) for step in (5, 6))
    assert by_site(graph, first) == {"embed": 1.0, "head": 3.0, "blocks.0": 2.0, "blocks.1": 5.0}
    assert first.steps.tolist() == [5, 5, 5, 6]
    assert by_site(graph, second) == pytest.approx(
        {"embed": 2.0, "head": 400.0, "blocks.0": np.nan, "blocks.1": 5.0}, nan_ok=True
    )
    assert (first.step, first.scale.low, first.scale.high) == (5, 1.0, 400.0)
    assert second.scale == first.scale
    assert graph.numbers([matrix("output", {"embed": [8.0]})], 5).scale.high == 8.0


def test_each_part_shows_its_last_recorded_step_at_or_before_the_one_asked_for() -> None:
    graph = ModuleGraph(blocks_graph())
    found = matrix("output", {"embed": [1.0, -1, -1, -1], "head": [1.0, 2.0, -1, 4.0], "blocks.0": [-1, 2.0, 3.0, -1]})

    def shown(step: int | None, every: int = 1) -> tuple[int, dict[str, int]]:
        numbers = graph.numbers([found], step, every)
        return numbers.step, dict(zip(numbers.sites, numbers.steps.tolist(), strict=True))

    assert shown(0) == shown(5) == (5, {"embed": 5, "head": 5, "blocks.0": 6})
    assert shown(6) == (6, {"embed": 5, "head": 6, "blocks.0": 6})
    assert shown(7) == (7, {"embed": 5, "head": 6, "blocks.0": 7})
    assert shown(99) == shown(None) == (8, {"embed": 5, "head": 8, "blocks.0": 7})
    assert shown(7, every=3) == (
        6,
        {"embed": 5, "head": 6, "blocks.0": 6},
    )  # steps 5, 6: the first of 3 to 5 and 6 to 8


def test_an_attached_tensor_has_the_number_of_its_own_kind() -> None:
    graph = ModuleGraph(blocks_graph())
    output, tensor = (
        matrix("output", {"embed": [1.0, 2.0]}),
        matrix("tensor", {"head": [30.0, 40.0], "embed": [9.0, 9.0]}),
    )
    numbers = graph.numbers([output, tensor], 6)
    assert by_site(graph, numbers) == {"embed": 2.0, "head": 40.0}
    assert (numbers.kind, numbers.scale.low, numbers.scale.high) == ("output", 1.0, 40.0)


def test_numbers_of_parameters_belong_to_the_module_and_its_weight_comes_first() -> None:
    graph = ModuleGraph(blocks_graph())
    found = matrix("weight", {"head.bias": [9.0], "head.weight": [2.0], "blocks.0.norm.bias": [3.0]})
    numbers = graph.numbers([found], 5)
    assert by_site(graph, numbers) == {"head": 2.0, "blocks.0.norm": 3.0}
    assert numbers.scale.high == 3.0


@pytest.mark.parametrize("golden", [placing, nested], ids=["placing", "nested"])
def test_the_golden_files_are_what_python_gives(golden: ModuleType) -> None:
    assert golden.FILE.read_text(encoding="utf-8") == golden.text(), f"Run `python -m {golden.__name__}`."
