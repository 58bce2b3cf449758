"""graph.json: what is recorded of the model's graph only ever adds."""

from __future__ import annotations

from pathlib import Path

import pytest

from layerscope.errors import FormatError
from layerscope.model.records import CallEdge, CallGraph, CallNode, ModuleNode
from layerscope.store.folder import create
from layerscope.store.graph_files import united
from layerscope.store.reader import Reader
from layerscope.store.writer import FolderSink
from tests.store.runs import start

NET, LAYER = ModuleNode("", "Net", 0, ""), ModuleNode("layer", "Linear", 12, "3, 4")


def call(site: str, width: int, parent: str = "(model)", inputs: tuple[str, ...] = ("input.0",)) -> CallNode:
    return CallNode(site, "layer", parent, tuple((port, (2, width)) for port in inputs), (("output.0", (2, 4)),))


def edge(source: str, target: str) -> CallEdge:
    return CallEdge(source, "output.0", target, "input.0")


def recorded(folder: Path, *graphs: CallGraph) -> CallGraph:
    sink = FolderSink(create(folder, resume=True))
    for graph in graphs:
        sink.put(graph)
        assert sink.flush()
    sink.close()
    found = Reader(folder).graph()
    assert found is not None
    return found


def test_calls_and_edges_come_back_as_they_were(tmp_path: Path) -> None:
    graph = CallGraph((NET, LAYER), (call("layer", 3), call("layer#2", 4)), (edge("layer", "layer#2"),))
    assert recorded(tmp_path / "run", graph) == graph


def test_later_records_and_later_sessions_add_and_the_newer_wins(tmp_path: Path) -> None:
    first = CallGraph((NET, LAYER), (call("layer", 3),), (edge("layer", "(model)"),))
    wider = ModuleNode("layer", "Linear", 24, "6, 4")
    branch = CallGraph((NET, wider), (call("layer", 6), call("layer", 6, "other")), (edge("layer", "layer#2"),))
    again = CallGraph((NET,), (call("layer#2", 9),), (edge("layer", "(model)"),))
    recorded(tmp_path / "run", first, branch)
    assert recorded(tmp_path / "run", again) == CallGraph(
        (NET, wider),
        (call("layer", 6), call("layer", 6, "other"), call("layer#2", 9)),
        (edge("layer", "(model)"), edge("layer", "layer#2")),
    )


def test_a_port_that_one_call_lacked_stays_and_its_shape_is_the_newest() -> None:
    graphs = [
        CallGraph((), (call("layer", width, inputs=ports),)) for width, ports in ((3, ("x", "mask")), (5, ("x", "y")))
    ]
    (found,) = united(*graphs).calls
    assert found.inputs == (("x", (2, 5)), ("mask", (2, 3)), ("y", (2, 5)))


def test_a_graph_that_adds_nothing_leaves_the_file_alone(tmp_path: Path) -> None:
    graph = CallGraph((NET, LAYER), (call("layer", 3),))
    recorded(tmp_path / "run", graph)
    before = (tmp_path / "run/graph.json").stat()
    recorded(tmp_path / "run", CallGraph((), (call("layer", 3),)), graph)
    after = (tmp_path / "run/graph.json").stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


@pytest.mark.parametrize("content", ["{ this is no JSON", '{"format": "layerscope-graph", "version": 1, "modules": 3}'])
def test_a_damaged_graph_is_kept_aside_and_told_while_recording_goes_on(tmp_path: Path, content: str) -> None:
    create(tmp_path / "run").lock.release()
    (tmp_path / "run/graph.json").write_text(content)
    with pytest.raises(FormatError, match=r"graph.json is damaged"):
        Reader(tmp_path / "run").graph()
    assert recorded(tmp_path / "run", CallGraph((NET,))) == CallGraph((NET,))
    assert (tmp_path / "run/graph.damaged.json").read_text() == content
    (event,) = Reader(tmp_path / "run").events().to_pylist()
    assert (event["level"], "kept as graph.damaged.json" in event["text"]) == ("warning", True)


def test_ranks_that_add_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    create(tmp_path / "run").lock.release()
    writers = [start("graphing", tmp_path / "run", rank, 25) for rank in range(3)]
    for writer in writers:
        with writer:
            assert writer.wait(60) == 0
    graph = Reader(tmp_path / "run").graph()
    assert graph is not None
    assert {node.path for node in graph.modules} == {f"{rank}.{k}" for rank in range(3) for k in range(25)}
