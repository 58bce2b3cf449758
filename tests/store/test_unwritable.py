"""Records that cannot be stored: each is dropped, counted and named, and the writer goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest

from layerscope.errors import LayerscopeWarning
from layerscope.model.records import (
    CallGraph,
    CallNode,
    Event,
    Metric,
    ModuleNode,
    NamedNode,
    Series,
    StepInfo,
    TensorType,
)
from layerscope.store.folder import create
from layerscope.store.reader import Reader
from layerscope.store.writer import FolderSink
from tests.store.runs import put_steps, series_at, summaries

LONE = "a\udc80b"  # a lone surrogate, as in a name that was decoded from bytes that are no UTF-8
ESCAPED = "a\\udc80b"


class NotPlain:
    """No number, no text: what a SymInt is to JSON and to Arrow."""


def not_plain() -> Any:
    return cast(Any, NotPlain())


def bad_records() -> dict[str, Any]:
    """Tables that only hold what is put, each with a record that it cannot hold."""
    call = CallNode("site", "path", "", (("input.0", (2, not_plain())),), ())
    return {
        "metrics": Metric(3, not_plain(), 1.0, 0.0),
        "events": Event(3, "note", not_plain(), 0.0),
        "graph": CallGraph((ModuleNode("bad", "Bad", 0, ""),), (call,)),
        "steps": StepInfo(3, "step", 1, 1, (not_plain(),), (), (), (), "schedule"),
    }


@pytest.mark.parametrize("table", ["metrics", "events", "graph", "steps"])
def test_a_record_that_cannot_be_stored_is_dropped_counted_and_named(tmp_path: Path, table: str) -> None:
    sink = FolderSink(create(tmp_path / "run"))
    good = CallGraph((ModuleNode("good", "Good", 1, ""),))
    put_steps(sink, range(3), width=4)
    sink.put(good, bad_records()[table], CallGraph((ModuleNode("later", "Good", 1, ""),)))
    sink.put(*(Metric(step, "loss", float(step), 0.0) for step in range(3, 9)))
    with pytest.warns(LayerscopeWarning, match=f"cannot be stored: a record of {table}.*Everything else"):
        sink.close()
    reader = Reader(tmp_path / "run")
    assert reader.metrics().filter(reader.metrics()["name"].to_numpy(zero_copy_only=False) == "loss")[
        "step"
    ].to_pylist() == list(range(9))
    assert len(reader.moments()) == 12
    graph = reader.graph()
    assert graph is not None
    assert [module.path for module in graph.modules] == ["good", "later"]
    drops = [row["text"] for row in reader.events().to_pylist() if row["level"] == "drop"]
    assert len(drops) == 1
    assert f"a record of {table}" in drops[0]
    session = json.loads((tmp_path / "run" / "sessions" / "r0-s1.json").read_bytes())
    assert session["drops"][table] == 1
    assert "closed_s" in session


def test_many_records_that_cannot_be_stored_are_told_once_and_counted_all(tmp_path: Path) -> None:
    sink = FolderSink(create(tmp_path / "run"))
    for step in range(100):
        sink.put(Metric(step, "loss", 1.0, 0.0), Metric(step, not_plain(), 2.0, 0.0))
    with pytest.warns(LayerscopeWarning, match="cannot be stored"):
        sink.close()
    reader = Reader(tmp_path / "run")
    assert reader.metrics()["step"].to_pylist() == list(range(100))
    assert len([level for level in reader.events()["level"].to_pylist() if level == "drop"]) == 1
    assert sink.dropped["metrics"] == 100


def test_a_series_that_cannot_be_stored_costs_only_its_own_rows(tmp_path: Path) -> None:
    sink = FolderSink(create(tmp_path / "run"))
    good = series_at(0)
    bad = Series("bad", good.port, good.kind, good.mode, good.phase, good.dtype, (2, not_plain()))
    numbers = [sink.series_id(good), sink.series_id(bad)]
    sink.put(summaries(0, numbers), Metric(0, "loss", 1.0, 0.0))
    with pytest.warns(LayerscopeWarning, match="a record of series output of 'bad'"):
        sink.close()
    reader = Reader(tmp_path / "run")
    assert reader.series()["site"].to_pylist() == [good.site]
    assert reader.moments()["series"].to_pylist() == numbers[:1]
    assert reader.left_out["rows of unknown series"] == 1
    assert len(reader.metrics()) == 1


def test_lone_surrogates_are_stored_as_escapes_that_keep_names_apart(tmp_path: Path) -> None:
    sink = FolderSink(create(tmp_path / "run"))
    like = series_at(0)
    series = Series(LONE, LONE, like.kind, like.mode, like.phase, like.dtype, ())
    sink.put(summaries(0, [sink.series_id(series)]))
    sink.put(Metric(0, LONE, 1.0, 0.0), Metric(0, "a\udc81b", 2.0, 0.0), Event(0, "note", LONE, 0.0))
    sink.put(CallGraph((ModuleNode(LONE, "é", 0, LONE),)))
    number = sink.dependencies_id((NamedNode(LONE, TensorType.INTERMEDIATE, ()),), ())
    sink.put(StepInfo(0, LONE, 1, 1, (number,), (), (LONE,), (LONE,), "schedule"))
    sink.close()
    reader = Reader(tmp_path / "run")
    assert reader.series()["site"].to_pylist() == reader.series()["port"].to_pylist() == [ESCAPED]
    assert reader.metrics()["name"].to_pylist() == [ESCAPED, "a\\udc81b"]
    assert reader.events()["text"].to_pylist() == [ESCAPED]
    assert reader.graph() == CallGraph((ModuleNode(ESCAPED, "é", 0, ESCAPED),))
    assert [node.name for node in reader.dependencies()[0].nodes] == [ESCAPED]
    steps = reader.steps().to_pylist()[0]
    assert (steps["type"], json.loads(steps["categories"])) == (ESCAPED, [ESCAPED])


def test_a_resumed_run_knows_a_series_with_a_lone_surrogate_again(tmp_path: Path) -> None:
    like = series_at(0)
    series = Series(LONE, "output.0", like.kind, like.mode, like.phase, like.dtype, ())
    numbers = []
    for _ in range(2):
        sink = FolderSink(create(tmp_path / "run", resume=True))
        numbers.append(sink.series_id(series))
        assert sink.series_id(series) == numbers[-1]
        sink.close()
    assert numbers[0] == numbers[1]
    assert len(Reader(tmp_path / "run").series()) == 1
