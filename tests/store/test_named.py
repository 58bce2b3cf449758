"""Named tensors on disk: their values, statistics of samples, steps and dependency graphs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from layerscope.errors import FormatError
from layerscope.model.records import (
    SAMPLE_STATISTICS,
    DependencyLink,
    Metric,
    NamedNode,
    SampleStats,
    StepInfo,
    TensorType,
    TensorValues,
)
from layerscope.store import compaction, parts
from layerscope.store import format as layout
from layerscope.store.compaction import compact
from layerscope.store.files import Directory
from layerscope.store.folder import create
from layerscope.store.format import PartEntry
from layerscope.store.reader import UNKNOWN_VALUES, Reader, arrays_of, numbers_of
from layerscope.store.record_batches import DTYPES, Array
from layerscope.store.write_queue import WriteQueue
from layerscope.store.writer import FolderSink
from tests.store.runs import NAMED, NO_SAMPLES, check_named, graph_at, put_named, series_at

SAMPLES = np.array([0, 3], np.int32)
SHAPES = ((), (0,), (2,), (2, 0, 3), (2, 3, 4, 5))


def every_kind_of_array() -> list[Array]:
    chance = np.random.default_rng(0)
    drawn = [chance.normal(0, 50, shape) for shape in SHAPES]
    with np.errstate(invalid="ignore"):
        plain = [np.asarray(array).astype(name) for name in DTYPES for array in drawn]
    odd = [np.array([np.nan, -np.inf, -0.0]), drawn[-1].T, drawn[-1][:, ::2], np.arange(4, dtype=">i4")]
    return [*plain, *odd, np.array([1 + 2j, np.nan])]


@pytest.mark.parametrize("compacted", [False, True])
def test_arrays_of_every_type_and_shape_come_back_as_they_were(tmp_path: Path, compacted: bool) -> None:
    sink, arrays = FolderSink(create(tmp_path / "run"), compact=compacted), every_kind_of_array()
    for place, array in enumerate(arrays):
        sink.put(TensorValues.one(7, sink.series_id(series_at(place)), SAMPLES if array.ndim else NO_SAMPLES, array))
    sink.close()
    kept = Reader(tmp_path / "run").values()
    assert kept["samples"].to_pylist() == [[0, 3] if array.ndim else [] for array in arrays]
    for found, array in zip(arrays_of(kept), arrays, strict=True):
        assert (found.dtype, found.shape) == (array.dtype.newbyteorder("="), array.shape)
        np.testing.assert_array_equal(found, array)
        assert found.flags.writeable


def test_values_come_back_the_same_one_by_one_and_all_together(tmp_path: Path) -> None:
    arrays = every_kind_of_array()
    samples = [SAMPLES if array.ndim else NO_SAMPLES for array in arrays]
    rows = []
    for name in ("one by one", "together"):
        sink = FolderSink(create(tmp_path / name))
        numbers = [sink.series_id(series_at(place)) for place in range(len(arrays))]
        if name == "together":
            sink.put(TensorValues(7, numbers, samples, arrays, sum(array.nbytes for array in arrays)))
        else:
            sink.put(*(TensorValues.one(7, *row) for row in zip(numbers, samples, arrays, strict=True)))
        sink.close()
        rows.append(Reader(tmp_path / name).values().to_pylist())
    assert rows[0] == rows[1]


def test_values_that_are_dropped_together_are_all_counted(tmp_path: Path) -> None:
    sink = FolderSink(create(tmp_path / "run"), queue_bytes=1)
    sink.put(TensorValues(7, [0, 1, 2], [NO_SAMPLES] * 3, [np.zeros(9)] * 3, 216))
    sink.close()
    assert sink.dropped["values"] == 3


def test_a_value_of_a_type_that_has_no_place_is_told_and_the_others_are_kept(tmp_path: Path) -> None:
    sink = FolderSink(create(tmp_path / "run"))
    number = sink.series_id(series_at(0))
    sink.put(TensorValues.one(1, number, NO_SAMPLES, np.array(["text"])))
    sink.put(TensorValues.one(2, number, NO_SAMPLES, np.zeros(2)))
    sink.put(TensorValues(3, (number,) * 3, (NO_SAMPLES,) * 3, (np.ones(1), np.array(["text"]), np.arange(3)), 48))
    sink.close()
    reader = Reader(tmp_path / "run")
    assert reader.values()["step"].to_pylist() == [2, 3, 3]
    assert [array.tolist() for array in arrays_of(reader.values())] == [[0, 0], [1], [0, 1, 2]]
    assert "2 values were not kept, the first of series 0 at step 1" in reader.events()["text"][0].as_py()


def test_steps_statistics_of_samples_and_types_of_metrics_come_back_as_they_were(tmp_path: Path) -> None:
    sink = FolderSink(create(tmp_path / "run"))
    number = sink.series_id(series_at(0))
    numbers = np.random.default_rng(0).normal(size=(2, len(SAMPLE_STATISTICS)))
    info = StepInfo(3, 'ü "05"', 20, 8, (-1, 2**48 - 1), (0, 3), ("a", "ß"), ("", "loss_a"), "my words")
    sink.put(SampleStats(3, number, SAMPLES, numbers))
    sink.put(info)
    sink.put(Metric(3, "loss", 0.5, 1.0, info.type))
    sink.close()
    reader = Reader(tmp_path / "run")
    (row,) = reader.steps().to_pylist()
    lists = {name: tuple(json.loads(row[name])) for name in ("graphs", "samples", "categories", "losses")}
    assert StepInfo(**{**{name: row[name] for name in StepInfo.__slots__}, **lists}) == info
    np.testing.assert_array_equal(numbers_of(reader.sample_stats())[0], numbers)
    assert reader.metrics()["type"].to_pylist() == [info.type]


def test_metrics_of_a_writer_that_knew_no_types_are_of_the_plain_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as older:
        schema = layout.SEGMENT_SCHEMA["metrics"]
        older.setitem(layout.SEGMENT_SCHEMA, "metrics", schema.remove(schema.get_field_index("type")))
        sink = FolderSink(create(tmp_path / "run"), compact=False)
        sink.put(Metric(1, "loss", 0.5, 1.0))
        sink.close()
    sink = FolderSink(create(tmp_path / "run", resume=True), compact=False)
    sink.put(Metric(2, "loss", 0.5, 1.0, "long"))
    sink.close()
    assert Reader(tmp_path / "run").metrics()["type"].to_pylist() == ["step", "long"]
    compact(tmp_path / "run")
    assert Reader(tmp_path / "run").metrics()["type"].to_pylist() == ["step", "long"]


def test_equal_dependency_graphs_have_one_number_also_after_a_resume_and_different_ones_have_not(
    tmp_path: Path,
) -> None:
    nodes = (
        NamedNode("a", TensorType.INPUT, (("", (2, 3)),)),
        NamedNode("b", TensorType.LOSS, (("x", ()), ("y", (1,)))),
    )
    links = (DependencyLink("a", "", 1, "b", "x"),)
    variants = [(nodes, links), (nodes, ()), (nodes[:1], ()), (nodes, (replace(links[0], back=0),)), ((), ())]
    found = []
    for _ in range(2):
        sink = FolderSink(create(tmp_path / "run", resume=True))
        found.append([sink.dependencies_id(*variant) for variant in variants + variants])
        sink.close()
    assert found[0] == found[1]
    assert len(set(found[0])) == len(variants)
    read = Reader(tmp_path / "run").dependencies()
    assert [(graph.nodes, graph.links) for graph in read] == variants
    assert [graph.number for graph in read] == found[0][: len(variants)]


def test_a_network_that_is_never_twice_the_same_takes_no_memory_for_its_graphs(tmp_path: Path) -> None:
    sink = FolderSink(create(tmp_path / "run"), compact=False)
    numbers = {sink.dependencies_id((NamedNode(f"n{k}", TensorType.INPUT, ()),), ()) for k in range(2500)}
    assert len(sink._graphs) <= 1000
    sink.close()
    assert {graph.number for graph in Reader(tmp_path / "run").dependencies()} == numbers


def test_a_step_recorded_again_by_a_later_session_replaces_the_earlier_one(tmp_path: Path) -> None:
    for session in (1, 2):
        sink = FolderSink(create(tmp_path / "run", resume=True), compact=session == 1)
        number = sink.series_id(series_at(0))
        for step in range(3 * session, 6):
            sink.put(TensorValues.one(step, number, NO_SAMPLES, np.array([session])))
            sink.put(SampleStats(step, number, SAMPLES, np.full((2, 4), float(session))))
            sink.put(StepInfo(step, str(session), 1, 0, (), (), (), (), ""))
        sink.close()
    reader = Reader(tmp_path / "run")
    assert reader.values()["step"].to_pylist() == [3, 4, 5]
    sink = FolderSink(create(tmp_path / "run", resume=True))
    sink.put(TensorValues.one(4, 0, NO_SAMPLES, np.array([3])))
    sink.put(StepInfo(4, "3", 1, 0, (), (), (), (), ""))
    sink.close()
    assert [int(array[0]) for array in arrays_of(reader.values())] == [1, 3, 1]
    assert reader.steps()["type"].to_pylist() == ["1", "3", "1"]
    assert reader.values(history=True).num_rows == 4


def test_rows_of_a_series_that_is_not_known_are_left_out_and_counted(tmp_path: Path) -> None:
    sink = FolderSink(create(tmp_path / "run"))
    sink.put(TensorValues.one(1, 77, NO_SAMPLES, np.zeros(2)))
    sink.close()
    reader = Reader(tmp_path / "run")
    assert reader.values().num_rows == 0
    assert reader.left_out[UNKNOWN_VALUES] == 1


def test_content_that_does_not_fit_its_shape_is_an_error_that_names_step_and_series() -> None:
    row = {
        "step": [5],
        "series": [9],
        "dtype": ["float32"],
        "shape": [[3]],
        "content": pa.array([b"123"], pa.large_binary()),
    }
    with pytest.raises(FormatError, match="step 5, series 9"):
        arrays_of(pa.table(row))
    with pytest.raises(FormatError, match="step 5, series 9"):
        numbers_of(pa.table(row))


def test_a_step_is_written_only_after_all_that_was_kept_of_it() -> None:
    backlog, sizes = WriteQueue(1 << 30), (NAMED + 1) * 40
    for step in range(3):
        for _ in range(NAMED):
            backlog.add(TensorValues.one(step, 0, NO_SAMPLES, np.zeros(sizes)))
        backlog.add(StepInfo(step, "step", 1, 0, (), (), (), (), ""))
    written: list[tuple[int, int]] = []
    while not backlog.empty:
        load = backlog.take(sizes * 8)
        written.append((len(load.items["values"]), len(load.items["steps"])))
        for queue, items in load.items.items():
            backlog.settle(queue, items)
    values, steps = np.cumsum(written, axis=0).T
    assert (steps <= values // NAMED).all()
    assert (values[-1], steps[-1]) == (3 * NAMED, 3)


def test_values_and_statistics_of_samples_are_dropped_before_all_else(tmp_path: Path) -> None:
    sink = FolderSink(create(tmp_path / "run"), queue_bytes=1)
    put_named(sink, range(4))
    sink.close()
    assert (sink.dropped["values"], sink.dropped["sample_stats"]) == (4 * NAMED, 4 * NAMED)
    assert Reader(tmp_path / "run").steps().num_rows == 4
    assert len(Reader(tmp_path / "run").dependencies()) == len({graph_at(step) for step in range(4)})


def test_one_large_series_is_compacted_in_runs_of_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "_PIECE_BYTES", 2000)
    monkeypatch.setattr(parts, "_CONTENT_BYTES", 100)
    pieces: list[int] = []

    def write(directory: Directory, file: str, table: str, sorted_pieces: Iterable[pa.Table]) -> PartEntry:
        taken = [*sorted_pieces]
        pieces.extend(piece.nbytes for piece in taken if table == "values")
        return parts.write_part(directory, file, table, taken)

    monkeypatch.setattr(compaction, "write_part", write)
    for session in range(3):
        sink = FolderSink(create(tmp_path / "run", resume=True), compact=False)
        put_named(sink, range(session * 60, session * 60 + 70))
        sink.close()
        if session < 2:
            compact(tmp_path / "run")
    before = check_named(Reader(tmp_path / "run"))
    pieces.clear()
    compact(tmp_path / "run")
    assert check_named(Reader(tmp_path / "run")) == before
    assert len(pieces) > 20
    assert max(pieces) < 6000


@pytest.mark.parametrize("normal", [True, False])
def test_values_take_at_most_a_tenth_more_than_their_bytes(tmp_path: Path, normal: bool) -> None:
    chance, raw = np.random.default_rng(0), 0
    sink = FolderSink(create(tmp_path / "run"), compact=False)
    ids = [sink.series_id(series_at(place)) for place in range(30)]
    for step in range(50):
        for number in ids:
            drawn = chance.normal(size=(5, 64)).astype(np.float32)
            array = drawn if normal else np.frombuffer(chance.bytes(drawn.nbytes), np.float32).reshape(5, 64)
            raw += array.nbytes
            sink.put(TensorValues.one(step, number, np.arange(5, dtype=np.int32), array))
    sink.close()

    def used() -> int:
        return sum(path.stat().st_size for path in (tmp_path / "run").rglob("values/*") if path.is_file())

    assert used() <= 1.10 * raw
    compact(tmp_path / "run")
    assert used() <= (0.95 if normal else 1.02) * raw
