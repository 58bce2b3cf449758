"""Compaction: what it keeps, what it leaves alone, how much work it makes."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from layerscope.errors import FormatError
from layerscope.store import compaction, parts, segments
from layerscope.store.compaction import compact
from layerscope.store.folder import create
from layerscope.store.format import COMPACT_LOCK
from layerscope.store.manifests import FileLock
from layerscope.store.reader import Reader
from layerscope.store.writer import FolderSink
from tests.store.runs import check_numbers, keys_of, live_of, put_steps


def record(folder: Path, steps: range, width: int = 3) -> None:
    sink = FolderSink(create(folder, resume=True), compact=False)
    put_steps(sink, steps, width)
    sink.close()


def test_compaction_changes_no_row_and_leaves_no_segment(tmp_path: Path) -> None:
    record(tmp_path / "run", range(10))
    before = check_numbers(Reader(tmp_path / "run"))
    report = compact(tmp_path / "run")
    assert (report.done, report.rows["moments"], report.rows["bits"], report.segments) == (True, 30, 30, 6)
    assert report.bytes_before > 0 < report.bytes_after
    assert check_numbers(Reader(tmp_path / "run")) == before
    assert not list((tmp_path / "run/segments").rglob("*.arrow"))


def test_a_second_compaction_has_nothing_to_do(tmp_path: Path) -> None:
    record(tmp_path / "run", range(3))
    compact(tmp_path / "run")
    live = live_of(tmp_path / "run")
    assert compact(tmp_path / "run").segments == 0
    assert live_of(tmp_path / "run") == live


def test_a_compaction_beside_another_does_nothing(tmp_path: Path) -> None:
    record(tmp_path / "run", range(3))
    lock = FileLock.take(tmp_path / "run" / COMPACT_LOCK)
    assert lock is not None
    assert not compact(tmp_path / "run").done
    lock.release()
    assert compact(tmp_path / "run").done


def test_the_segment_being_written_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "ROLL_BYTES", 1)
    sink = FolderSink(create(tmp_path / "run"), compact=False)
    for step in range(4):
        put_steps(sink, [step])
        assert sink.flush()
    assert compact(tmp_path / "run").rows["moments"] == 9
    assert [path.name for path in (tmp_path / "run/segments/moments").iterdir()] == ["r0-s1-000004.arrow"]
    put_steps(sink, [4])
    sink.close()
    assert {key[2] for key in check_numbers(Reader(tmp_path / "run"))} == set(range(5))


def test_parts_are_sorted_and_their_row_groups_find_a_series(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(parts.ROW_GROUP, "moments", 20)
    record(tmp_path / "run", range(40), width=8)
    compact(tmp_path / "run")
    file = pq.ParquetFile(tmp_path / "run/tables/moments/000001-0.parquet")
    keys = [(series, step) for _, _, step, series in keys_of(file.read())]
    assert keys == sorted(keys)
    place = file.schema_arrow.names.index("series")
    bounds = [file.metadata.row_group(group).column(place).statistics for group in range(file.num_row_groups)]
    assert [(bound.min, bound.max) for bound in bounds] == [(series // 2, series // 2) for series in range(16)]
    assert file.metadata.row_group(0).column(0).compression == "ZSTD"
    assert [key[3] for key in keys_of(Reader(tmp_path / "run").moments([3]))] == [3] * 40


def test_a_column_that_is_alike_in_a_row_group_is_not_read(tmp_path: Path) -> None:
    record(tmp_path / "run", range(40))
    compact(tmp_path / "run")
    path = tmp_path / "run/tables/moments/000001-0.parquet"
    group = pq.ParquetFile(path).metadata.row_group(0)
    columns = [group.column(place) for place in range(group.num_columns)]
    content = bytearray(path.read_bytes())
    for column in columns:
        if column.path_in_schema in ("rank", "session", "alias", "merged"):
            first = column.dictionary_page_offset
            content[first : first + column.total_compressed_size] = bytes(column.total_compressed_size)
    path.write_bytes(content)  # whoever reads one of them finds it damaged
    reader = Reader(tmp_path / "run")
    assert len(check_numbers(reader)) == 120
    assert set(reader.moments(columns=["merged"])["merged"].to_pylist()) == {1}


def test_a_large_table_becomes_several_parts_by_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "PART_ROWS", 30)
    monkeypatch.setattr(compaction, "_PIECE_BYTES", 500)
    for first in range(0, 40, 5):
        record(tmp_path / "run", range(first, first + 5))
    before = check_numbers(Reader(tmp_path / "run"))
    compact(tmp_path / "run")
    entries = live_of(tmp_path / "run").of("moments").parts
    assert [entry.rows for entry in entries] == [30, 30, 30, 30]
    assert check_numbers(Reader(tmp_path / "run")) == before


def test_the_work_of_many_compactions_grows_with_n_log_n(tmp_path: Path) -> None:
    turns, written = 32, 0
    for turn in range(turns):
        record(tmp_path / "run", range(turn, turn + 1))
        written += compact(tmp_path / "run").rows["moments"]
    entries = live_of(tmp_path / "run").of("moments").parts
    assert sum(entry.rows for entry in entries) == 3 * turns
    assert written <= 3 * turns * 8  # each row at most log2(32) + 3 times
    assert len(entries) <= 6
    assert len(check_numbers(Reader(tmp_path / "run"))) == 3 * turns


def test_a_folder_that_is_no_run_is_not_compacted(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="is not a run"):
        compact(tmp_path)
    assert not list(tmp_path.iterdir())
