"""The reader: the right rows in the right order, also of aliases, of several sessions, and while the run is written."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from layerscope.errors import FormatError, SelectError
from layerscope.model import summary_spec
from layerscope.model.records import Metric
from layerscope.stats import derived
from layerscope.store import parts
from layerscope.store.compaction import compact
from layerscope.store.folder import create
from layerscope.store.parts import RowGroupCache
from layerscope.store.reader import Reader, encoded
from layerscope.store.writer import FolderSink
from tests.store.runs import ROOT, bits_at, check_numbers, keys_of, moments_at, put_steps, start, summaries


@pytest.fixture(params=["segments", "parts", "both"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Ten steps of six series, series 2 and 5 aliases of 1 and 4, in the three states a run can be in."""
    folder = tmp_path / "run"
    sink = FolderSink(create(folder), compact=False)
    ids = put_steps(sink, [], width=6)
    for step in range(10):
        sink.put(summaries(step, ids, alias=[-1, -1, 1, -1, -1, 4]))
        sink.put(Metric(step, "loss", 1.0 / (step + 1), 100.0 + step))
        sink.put(Metric(step, "accuracy", step / 10, 100.0 + step))
        if step % 4 == 0:
            sink.flush()
        if step == 5 and request.param == "both":
            sink.close()
            compact(folder)
            sink = FolderSink(create(folder, resume=True), compact=False)
    sink.close()
    if request.param == "parts":
        compact(folder)
    return folder


def expected(series: int, step: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    source = {2: 1, 5: 4}.get(series, series)
    return np.asarray(moments_at([source], [step])[0])


def rows(table: pa.Table) -> list[tuple[int, int]]:
    return [(series, step) for _, _, step, series in keys_of(table)]


def check_moments(table: pa.Table) -> None:
    for row in table.to_pylist():
        found = [row[name] for name in summary_spec.MOMENTS]
        assert found == expected(row["series"], row["step"]).tolist()
        assert (row["scale"], row["merged"]) == (2.0, 1)


def test_all_moments_come_sorted_with_aliases_resolved(run: Path) -> None:
    table = Reader(run).moments()
    assert rows(table) == [(series, step) for series in range(6) for step in range(10)]
    assert table.column_names == ["rank", "session", "step", "series", "scale", "merged", *summary_spec.MOMENTS]
    assert table.schema.field("count").type == pa.int64()
    assert table.column("sum").null_count == 0
    check_moments(table)


@pytest.mark.parametrize("series", [[0], [2], [5, 1]])
@pytest.mark.parametrize("kept_bytes", [0, 5000, 1 << 20])
def test_bits_come_beside_moments_whatever_is_cached(run: Path, series: list[int], kept_bytes: int) -> None:
    reader, plain = Reader(run, RowGroupCache(kept_bytes, lambda table: table.nbytes)), Reader(run)
    for steps in (None, (3, 6), None):
        table = reader.moments(series, steps, bits=True)
        assert table.drop_columns(["m", "counts"]).equals(plain.moments(series, steps))
        bits = plain.moments(series, steps, [], bits=True)
        assert table.select(bits.column_names).to_pylist() == bits.to_pylist()


def test_cached_row_groups_stay_within_their_bytes_and_the_oldest_goes_first() -> None:
    cache, read = RowGroupCache(3 * 800, lambda table: table.nbytes), list[int]()

    def table(number: int) -> pa.Table:
        read.append(number)
        return pa.table({"x": np.zeros(100)})

    for number in (1, 2, 3, 1, 4, 1, 2):
        assert cache.get(number, lambda: table(number)).num_rows == 100  # noqa: B023
    assert read == [1, 2, 3, 4, 2]


@pytest.mark.parametrize("series", [[0], [2], [5, 1], [2, 5], []])
@pytest.mark.parametrize("steps", [None, (3, 6), np.array([9, 1, 5]), (100, 200)])
def test_a_choice_of_series_and_steps_gives_those_rows(run: Path, series: list[int], steps: object) -> None:
    wanted = range(10) if steps is None else range(steps[0], steps[1] + 1) if isinstance(steps, tuple) else [1, 5, 9]
    pairs = [(number, step) for number in sorted(series) for step in wanted if step < 10]
    reader = Reader(run)
    moments = reader.moments(np.array(series, np.int32), steps)  # type: ignore[arg-type]
    assert rows(moments) == pairs
    check_moments(moments)
    bits = reader.moments(np.array(series, np.int32), steps, [], bits=True)  # type: ignore[arg-type]
    assert rows(bits) == pairs
    assert bits["counts"].to_pylist() == [bits_at({2: 1, 5: 4}.get(number, number), step) for number, step in pairs]


def test_chosen_columns_come_in_the_order_asked_for(run: Path) -> None:
    table = Reader(run).moments(series=[2], columns=["sum2", "finite"])
    assert table.column_names == ["rank", "session", "step", "series", "sum2", "finite"]
    assert table["finite"].to_pylist() == [expected(2, step)[summary_spec.COLUMN["finite"]] for step in range(10)]


def test_an_unknown_column_is_named(run: Path) -> None:
    with pytest.raises(SelectError, match=r"no column 'mean'.*sum_abs"):
        Reader(run).moments(columns=["mean"])


def test_encoded_bits_are_what_the_decoder_takes(run: Path) -> None:
    table = Reader(run).moments([1, 3], (2, 4), [], bits=True)
    m, offsets, content = encoded(table)
    decoded = derived.decode_bits(m, offsets, content)
    for place, (series, step) in enumerate(rows(table)):
        assert decoded.counts[decoded.row == place].tolist() == [step + 1, series + 1, 200]


def test_metrics_come_by_name_and_step(run: Path) -> None:
    table = Reader(run).metrics()
    assert table["name"].to_pylist() == ["accuracy"] * 10 + ["loss"] * 10
    assert table["step"].to_pylist() == [*range(10), *range(10)]
    assert table["value"].to_pylist()[:10] == [step / 10 for step in range(10)]


def test_later_sessions_win_and_history_keeps_both(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    for first, salt in ((0, 0.0), (3, 0.5)):
        sink = FolderSink(create(folder, resume=True), compact=salt == 0.0)
        put_steps(sink, range(first, first + 5), width=2, salt=salt)
        sink.close()
    for _ in range(2):  # with the second session in segments, then all in parts
        reader = Reader(folder)
        table = reader.moments(columns=["sum"])
        assert rows(table) == [(series, step) for series in range(2) for step in range(8)]
        assert table["session"].to_pylist() == [1, 1, 1, 2, 2, 2, 2, 2] * 2
        salted = moments_at(table["series"].to_pylist(), table["step"].to_pylist())[:, summary_spec.COLUMN["sum"]]
        salted += np.where(np.array(table["session"].to_pylist()) == 2, 0.5, 0.0)
        assert table["sum"].to_pylist() == salted.tolist()
        assert reader.moments(bits=True)["session"].to_pylist() == table["session"].to_pylist()
        assert reader.moments(history=True).num_rows == reader.moments(bits=True, history=True).num_rows == 20
        assert reader.metrics()["session"].to_pylist() == [1, 1, 1, 2, 2, 2, 2, 2]
        assert reader.metrics(history=True).num_rows == 10
        compact(folder)


def test_rows_whose_series_was_lost_are_left_out_and_counted(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    for first in (0, 5):
        sink = FolderSink(create(folder, resume=True), compact=False)
        put_steps(sink, range(first, first + 5), width=2 if first == 0 else 4)
        sink.close()
    (folder / "segments/series/r0-s2-000001.arrow").unlink()
    reader = Reader(folder)
    assert {key[3] for key in check_numbers(reader)} == {0, 1}
    assert reader.left_out["rows of unknown series"] == 10


def test_alias_rows_without_their_source_are_left_out_and_counted(tmp_path: Path) -> None:
    sink = FolderSink(create(tmp_path / "run"))
    ids = put_steps(sink, [], width=3)
    sink.put(summaries(1, ids[1:], alias=[-1, 0]))
    sink.close()
    reader = Reader(tmp_path / "run")
    assert rows(reader.moments()) == [(1, 1)]
    assert reader.left_out["rows whose alias is lost"] == 1
    assert rows(reader.moments([2], bits=True)) == []


def test_a_reader_follows_a_writer_in_another_process(tmp_path: Path) -> None:
    with start("writing", tmp_path / "run", 1, 50_000, 120) as writer:
        assert writer.stdout is not None
        safe = int(writer.stdout.readline())
        reader = Reader(tmp_path / "run")
        assert reader.status() == "running"
        seen = 0
        for line in writer.stdout:
            latest = max(reader.moments(series=[0], columns=["count"])["step"].to_pylist())
            assert latest >= max(safe, seen)
            seen, safe = latest, int(line)
    assert reader.status() == "finished"
    assert {key[2] for key in check_numbers(reader)} == set(range(1, 121))


def test_a_reader_sees_each_flush_of_a_writer_in_another_process_and_a_new_revision_with_it(tmp_path: Path) -> None:
    with start("writing", tmp_path / "run", 1, 50_000, 40, "in-turn") as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        first = writer.stdout.readline()
        reader, revisions = Reader(tmp_path / "run"), list[str]()
        for line in chain([first], writer.stdout):
            assert max(reader.moments(series=[0], columns=["count"])["step"].to_pylist()) == int(line)
            revisions.append(reader.revision())
            assert reader.revision() == revisions[-1]
            print(file=writer.stdin, flush=True)
    assert len(revisions) == len(set(revisions)) > 5


def test_the_revision_stays_while_nothing_happens(run: Path) -> None:
    reader = Reader(run)
    assert reader.revision() == reader.revision()


def test_two_ranks_share_a_run_without_mixing_their_series(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    first = FolderSink(create(folder), compact=False)
    second = FolderSink(create(folder, resume=True, rank=1))
    put_steps(first, range(3), width=2)
    put_steps(second, range(3), width=4)
    first.close()
    assert Reader(folder).status() == "running"
    second.close()
    reader = Reader(folder)
    assert reader.status() == "finished"
    widths = {0: 2, 1: 4}
    expected = {
        (rank, 1, step, number) for rank, width in widths.items() for step in range(3) for number in range(width)
    }
    assert set(check_numbers(reader)) == expected


def test_reading_and_recording_load_no_pandas() -> None:
    code = (
        "import sys, tempfile; from tests.store.test_reader import *\n"
        "sink = FolderSink(create(tempfile.mkdtemp())); put_steps(sink, range(3)); sink.close()\n"
        "reader = Reader(sink.run.path); reader.moments([1], bits=True); reader.metrics(); reader.series()\n"
        "sys.exit('pandas' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(FormatError, match=r"is not a run: it has no run.json. Give the folder"):
            Reader(path)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
def test_a_forked_process_reads_as_its_parent_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = """
import os, signal, sys
from layerscope.store.reader import Reader
rows = Reader(sys.argv[1]).moments().num_rows  # has started the threads that read
child = os.fork()
signal.alarm(30)
if child == 0:
    os._exit(0 if Reader(sys.argv[1]).moments().num_rows == rows > 0 else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    monkeypatch.setitem(parts.ROW_GROUP, "moments", 2)  # more than one thread is given at a time
    sink = FolderSink(create(tmp_path / "run"), compact=False)
    put_steps(sink, range(10), width=6)
    sink.close()
    compact(tmp_path / "run")
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path / "run")], check=False).returncode == 0
