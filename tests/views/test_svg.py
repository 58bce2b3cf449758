"""The graph of a pass as SVG, DOT and PNG text and bytes."""

from __future__ import annotations

import json
import re
import struct
import sys
import time
from dataclasses import asdict
from xml.etree import ElementTree

import pytest

from layerscope.errors import MissingError, SelectError
from layerscope.model.trace_record import TraceRecord
from layerscope.views.draw.output import dot, png, svg
from layerscope.views.draw.picture import DrawOptions, EdgeStyle, GraphView, graph_view
from layerscope.views.draw.text_width import shortened, text_width
from layerscope.views.scales import STOPS, color, is_dark
from tests.views import graphs

SPACE = "{http://www.w3.org/2000/svg}"


def drawn(record: TraceRecord, options: DrawOptions | None = None) -> GraphView:
    return graph_view(record, graphs.named(record), options)


def texts(picture: str) -> list[str]:
    return ["".join(text.itertext()) for text in ElementTree.fromstring(picture).iter(f"{SPACE}text")]


def test_every_node_group_and_edge_of_the_view_is_in_the_svg() -> None:
    view = drawn(graphs.transformer(2))
    tree = ElementTree.fromstring(svg(view))
    classes = [element.get("class", "") for element in tree.iter()]
    assert sum(name.startswith("node ") for name in classes) == len(view.nodes) + len({n.role for n in view.nodes})
    assert sum(name.startswith("group ") for name in classes) == len(view.groups)
    assert sum(name.startswith("line ") for name in classes) == len(view.edges)


def test_names_are_text_and_never_markup() -> None:
    net = graphs.Pass('<script>alert("1")</script>&')
    x = net.layer("a\"<b>&'", "relu<", net.input(), class_name="</title><script>")
    net.output(x)
    picture = svg(drawn(net.record()))
    tree = ElementTree.fromstring(picture)
    assert "script" not in {element.tag.removeprefix(SPACE) for element in tree.iter()}
    assert texts(picture)[0] == '<script>alert("1")</script>&'


def test_a_name_that_is_too_long_is_shortened_and_whole_in_the_tooltip() -> None:
    net = graphs.Pass()
    path = "encoder." + "very_long_module_name_" * 6 + "end"
    net.output(net.op("relu", net.layer(path, "linear", net.input())))
    picture = svg(drawn(net.record()))
    assert f"function: linear\nin: {path}" in picture
    assert path not in " ".join(texts(picture))
    assert any(re.fullmatch(r"@ enc.*….*end", text) for text in texts(picture))


def test_no_text_is_wider_than_its_box_by_the_table_of_widths() -> None:
    for node in drawn(graphs.swin(), DrawOptions(depth=3)).nodes:
        for line in node.lines:
            assert text_width(shortened(line, 10.5, node.width - 12), 10.5) <= node.width - 12


def test_shortening_keeps_both_ends_and_fits() -> None:
    assert shortened("short", 10.0, 100.0) == "short"
    short = shortened("layers.0.attention.projection", 10.0, 90.0)
    assert text_width(short, 10.0) <= 90.0
    assert short.startswith("layer") and short.endswith("ction")
    assert shortened("anything", 10.0, 5.0) == ""


def test_the_reader_s_theme_decides_unless_one_is_asked_for() -> None:
    view = drawn(graphs.chain(3))
    assert "prefers-color-scheme:dark" in svg(view)
    assert "prefers-color-scheme" not in svg(view, dark=True) + svg(view, dark=False)
    assert svg(view, dark=True) != svg(view, dark=False)


def test_the_legend_names_what_is_in_the_picture_and_nothing_else() -> None:
    assert {"input", "output", "operation"} <= set(texts(svg(drawn(graphs.chain(3)))))
    assert not {"constant", "closed module", "next pass of a loop"} & set(texts(svg(drawn(graphs.chain(3)))))
    assert {"constant", "next pass of a loop", "used more than once"} <= set(texts(svg(drawn(graphs.lstm(3)))))


def test_passes_and_their_edges_are_written_on_a_rolled_graph() -> None:
    found = texts(svg(drawn(graphs.loop(4))))
    assert {"linear_1_1 ×4", "passes 2–4", "pass 1", "pass 4"} <= set(found)
    unrolled = texts(svg(drawn(graphs.loop(4), DrawOptions(rolled=False))))
    assert {"linear_1_1:1", "linear_1_1:4"} <= set(unrolled)


def test_a_field_is_shown_by_color_with_a_labeled_bar() -> None:
    view = drawn(graphs.residual(2), DrawOptions(color_by="elapsed_s"))
    assert view.color_bar is not None
    values = [node.value for node in view.nodes if node.value is not None]
    assert (view.color_bar.low, view.color_bar.high) == (min(values), max(values))
    assert {STOPS[0], STOPS[-1]} <= {node.color for node in view.nodes}
    assert [node.value for node in view.nodes if node.role.value == "input"] == [None]
    assert any("elapsed_s" in text for text in texts(svg(view)))


def test_of_a_closed_module_times_are_added_and_other_numbers_averaged() -> None:
    record = graphs.residual(1)
    block = next(n for n in drawn(record, DrawOptions(depth=1)).nodes if n.role.value == "module")
    timed = drawn(record, DrawOptions(depth=1, color_by="elapsed_s"))
    given = drawn(record, DrawOptions(depth=1, color_by={op: float(op) for op in block.operations}))
    value = {view.title: next(n.value for n in view.nodes if n.id == block.id) for view in (timed,)}
    assert value["ResNet"] == pytest.approx(sum(record.operations[op].elapsed_s for op in block.operations))
    mean = sum(block.operations) / len(block.operations)
    assert next(n.value for n in given.nodes if n.id == block.id) == pytest.approx(mean)


def test_a_field_that_is_no_number_is_refused_with_those_there_are() -> None:
    with pytest.raises(SelectError, match=r"'dtype'.*elapsed_s"):
        drawn(graphs.chain(2), DrawOptions(color_by="dtype"))


def test_text_on_a_color_can_be_read() -> None:
    assert is_dark(color(0.0)) and not is_dark(color(1.0))


def test_the_way_of_a_gradient_is_drawn_against_the_flow() -> None:
    view = drawn(graphs.chain(4), DrawOptions(gradient=[2, 3, 4]))
    flow = {(edge.source, edge.target) for edge in view.edges if edge.style is EdgeStyle.FLOW}
    against = [(edge.source, edge.target) for edge in view.edges if edge.style is EdgeStyle.GRADIENT]
    assert len(against) == 2
    assert {(target, source) for source, target in against} <= flow


def test_a_tensor_that_is_used_twice_is_marked() -> None:
    view = drawn(graphs.flat_residual(2))
    assert [node.title for node in view.nodes if node.branches] == ["input_1_0", "add_1_3"]


def test_a_view_is_plain_data() -> None:
    view = drawn(graphs.lstm(3), DrawOptions(color_by="flops", gradient=range(9)))
    assert json.loads(json.dumps(asdict(view)))["title"] == "Recurrent"


def test_the_same_pass_gives_the_same_picture() -> None:
    assert svg(drawn(graphs.lstm(3))) == svg(drawn(graphs.lstm(3)))


def test_a_pass_without_operations_is_a_picture_with_a_title() -> None:
    empty = graphs.Pass("Nothing").record()
    assert texts(svg(drawn(empty)))[:2] == ["Nothing", "0 operations"]


def test_dot_has_every_node_and_edge_once_and_groups_as_clusters() -> None:
    view = drawn(graphs.lstm(3), DrawOptions(gradient=range(4, 20)))
    text = dot(view)
    assert text.count("{") == text.count("}") == len(view.groups) + 1
    assert sorted(re.findall(r"^\s*n(\d+) \[", text, re.MULTILINE)) == sorted(str(node.id) for node in view.nodes)
    assert re.findall(r"n(\d+) -> n(\d+)", text) == [(str(e.source), str(e.target)) for e in view.edges]
    assert 'label="passes 2–3"' in text


def test_dot_keeps_quotes_and_backslashes_inside_their_text() -> None:
    net = graphs.Pass('a"b\\')
    net.output(net.op('f"', net.input()))
    unquoted = re.sub(r'"(?:[^"\\]|\\.)*"', "", dot(drawn(net.record())))
    assert '"' not in unquoted and "\\" not in unquoted


def test_a_png_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    with pytest.raises(MissingError, match=r"pip install 'layerscope\[png\]'"):
        png(drawn(graphs.chain(2)))


def test_a_png_has_the_size_of_the_picture_times_the_scale() -> None:
    pytest.importorskip("resvg_py", reason="pip install resvg-py")
    view = drawn(graphs.lstm(3))
    width = float(re.findall(r'width="([\d.]+)"', svg(view))[0])
    picture = png(view, scale=1.5)
    assert picture[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">I", picture[16:20])[0] == pytest.approx(width * 1.5, abs=2)


def test_a_thousand_operations_are_drawn_in_little_time() -> None:
    record = graphs.transformer(22)
    naming = graphs.named(record)
    assert 950 < len(record.operations) < 1050
    began = time.perf_counter()
    svg(graph_view(record, naming))
    assert time.perf_counter() - began < 2.0  # measured 0.05 s; the margin is for a busy machine
