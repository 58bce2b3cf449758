"""Custom statistics, costs and the last step: the right rows in whatever files they are."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from layerscope.model.records import CustomStatistics, Event, Metric, TensorValues
from layerscope.store import compaction, parts
from layerscope.store.compaction import compact
from layerscope.store.folder import create
from layerscope.store.reader import UNKNOWN_CUSTOM, Reader
from layerscope.store.writer import FolderSink
from tests.store.runs import NO_SAMPLES, check_numbers, cost_at, extras, put_steps, series_at, value_at


@pytest.fixture(params=["segments", "parts", "both"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Ten steps, with two custom statistics of the first two series, in the three states a run can be in."""
    folder = tmp_path / "run"
    for steps in (range(6), range(6, 10)):
        sink = FolderSink(create(folder, resume=True), compact=False)
        put_steps(sink, steps)
        sink.close()
        if request.param == "parts" or (request.param == "both" and steps.start == 0):
            compact(folder)
    return folder


def test_custom_statistics_come_by_series_name_and_step(run: Path) -> None:
    rows = Reader(run).custom_statistics().select(["series", "name", "step", "value"]).to_pylist()
    keys = [(series, name, step) for series in range(2) for name in ("other", "own") for step in range(10)]
    assert [tuple(row.values()) for row in rows] == [
        (series, name, step, value_at(series, step, name)) for series, name, step in keys
    ]


def test_a_choice_of_series_steps_and_names_gives_those_rows(run: Path) -> None:
    table = Reader(run).custom_statistics([1, 2], (5, 7), ["own"])
    assert table.select(["series", "name", "step"]).to_pylist() == [
        {"series": 1, "name": "own", "step": step} for step in (5, 6, 7)
    ]
    assert Reader(run).custom_statistics(names=["nothing"]).num_rows == 0
    assert Reader(run).custom_names == ["other", "own"]


def test_costs_come_by_step(run: Path) -> None:
    assert Reader(run).overhead()["step"].to_pylist() == list(range(10))
    assert check_numbers(Reader(run))


def test_the_last_step_is_known_without_reading_rows_of_a_part(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: object) -> None:
        raise AssertionError("rows were read")

    monkeypatch.setattr(parts.ParquetPart, "read", read)
    assert Reader(run).last_step == 9


@pytest.mark.parametrize(
    "record",
    [
        CustomStatistics(7, np.array([0], np.int32), ("own",), np.array([1.0])),
        Metric(7, "loss", 1.0, 1.0),
        Event(7, "note", "the last", 1.0),
        TensorValues.one(7, 0, NO_SAMPLES, np.zeros(2)),
        cost_at(7),
    ],
    ids=lambda record: type(record).__name__,
)
def test_the_last_step_counts_every_kind_of_record(tmp_path: Path, record: CustomStatistics) -> None:
    assert Reader(create(tmp_path / "empty").path).last_step is None
    sink = FolderSink(create(tmp_path / "run"))
    sink.series_id(series_at(0))
    sink.put(record)
    sink.flush()
    assert Reader(tmp_path / "run").last_step == 7
    sink.close()
    assert Reader(tmp_path / "run").last_step == 7


def test_the_last_step_of_a_part_without_statistics_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "_options", lambda table: {"write_statistics": False, "use_dictionary": False})
    sink = FolderSink(create(tmp_path / "run"))
    sink.put(Metric(12, "loss", 1.0, 1.0))
    sink.close()
    assert Reader(tmp_path / "run").last_step == 12


def test_later_sessions_win_by_series_name_and_step_and_history_keeps_both(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    for names, factor in ((("own", "other"), 1.0), (("own",), 2.0)):
        sink = FolderSink(create(folder, resume=True), compact=False)
        ids = put_steps(sink, [])
        record = extras(5, ids[:1], names)
        sink.put(CustomStatistics(5, record.series, record.names, record.values * factor))
        sink.put(cost_at(5))
        sink.close()
    for _ in range(2):  # in segments, then in parts
        reader = Reader(folder)
        found = {row["name"]: (row["session"], row["value"]) for row in reader.custom_statistics().to_pylist()}
        assert found == {"own": (2, 2 * value_at(0, 5, "own")), "other": (1, value_at(0, 5, "other"))}
        assert reader.custom_statistics(history=True).num_rows == 3
        assert (reader.overhead()["session"].to_pylist(), reader.overhead(history=True).num_rows) == ([2], 2)
        compact(folder)


def test_custom_statistics_of_lost_series_are_left_out_and_counted(tmp_path: Path) -> None:
    sink = FolderSink(create(tmp_path / "run"), compact=False)
    put_steps(sink, range(3))
    sink.close()
    shutil.rmtree(tmp_path / "run/segments/series")
    reader = Reader(tmp_path / "run")
    assert reader.custom_statistics().num_rows == 0
    assert reader.left_out[UNKNOWN_CUSTOM] == 12


def test_parts_of_custom_statistics_are_sorted_and_found_by_series(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(parts.ROW_GROUP, "custom_statistics", 20)
    monkeypatch.setattr(compaction, "_PIECE_BYTES", 500)
    sink = FolderSink(create(tmp_path / "run"))
    ids = put_steps(sink, [], width=8)
    for step in range(20):
        sink.put(extras(step, ids))
    sink.close()
    file = pq.ParquetFile(tmp_path / "run/tables/custom_statistics/000001-0.parquet")
    rows = file.read(["series", "name", "step"]).to_pylist()
    keys = [(row["series"], row["name"], row["step"]) for row in rows]
    assert keys == sorted(keys)
    place = file.schema_arrow.names.index("series")
    bounds = [file.metadata.row_group(group).column(place).statistics for group in range(file.num_row_groups)]
    assert [(bound.min, bound.max) for bound in bounds] == [(series // 2, series // 2) for series in range(16)]
    assert set(Reader(tmp_path / "run").custom_statistics([3])["series"].to_pylist()) == {3}


def test_resume_never_gives_a_new_series_a_number_that_an_own_statistic_uses(tmp_path: Path) -> None:
    sink = FolderSink(create(tmp_path / "run"), compact=False)
    sink.put(extras(1, [41]))
    sink.close()
    sink = FolderSink(create(tmp_path / "run", resume=True))
    assert sink.series_id(series_at(0)) == 42
    sink.close()
