"""A matrix holds what the tables hold, whichever files the rows lie in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from layerscope.model.records import CustomStatistics, Kind, Mode, Phase, Series
from layerscope.query.matrix import INF, MISSING, NAN, VALUE, Matrix, Question, laid_out, matrix
from layerscope.runs import Run
from layerscope.store import compaction, parts
from layerscope.store.compaction import compact
from layerscope.store.folder import create
from layerscope.store.format import BY_SERIES
from layerscope.store.parts import _options
from layerscope.store.writer import FolderSink
from tests.server.runs import summaries


def series(site: str, kind: Kind = Kind.OUTPUT, dtype: str = "float64") -> Series:
    return Series(site, "output.0", kind, Mode.TRAIN, Phase.FORWARD, dtype, (50,))


def cell(found: Matrix, site: str, step: int) -> tuple[float, int]:
    row, column = found.steps.tolist().index(step), [tensor[0] for tensor in found.tensors].index(site)
    return float(found.values[row, column]), int(found.states[row, column])


def older_options(table: str) -> dict[str, object]:
    """How parts were written before they kept statistics of every whole number."""
    kept = {"write_statistics": ["series", "step"]} if table in BY_SERIES else {}
    return {**_options(table), **kept}


COMPACTED = ["as written", "compacted", "by an older writer", "by both"]


@pytest.fixture(params=COMPACTED)
def put_away(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, bool], None]:
    """Compacts what was recorded until then, or not: in row groups of two rows, by the writer of the parameter."""
    monkeypatch.setitem(parts.ROW_GROUP, "moments", 2)
    monkeypatch.setattr(compaction, "PART_ROWS", 12)  # what is small is merged with what comes later

    def put_away(folder: Path, last: bool) -> None:
        older = request.param == "by an older writer" or (request.param == "by both" and not last)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(parts, "_options", older_options if older else _options)
            if request.param != "as written":
                compact(folder)

    return put_away


@pytest.fixture
def run(put_away: Callable[[Path, bool], None], tmp_path: Path) -> Run:
    sink = FolderSink(create(tmp_path / "run"), compact=False)
    a, b, weight = (
        sink.series_id(series(site, kind))
        for site, kind in (("a", Kind.OUTPUT), ("b", Kind.OUTPUT), ("a.weight", Kind.WEIGHT))
    )
    for step in range(6):
        tensors = [np.full(50, step + 1.0), np.full(50, -2.0), np.full(50, 7.0)]
        if step == 3:
            tensors[0][7], tensors[1][7] = np.nan, np.inf
        sink.put(summaries(step, [a, b, weight] if step != 5 else [a, weight], tensors if step != 5 else tensors[::2]))
        sink.put(CustomStatistics(step, np.array([a], np.int32), ("sparsity",), np.array([0.25 * step])))
        assert sink.flush()
    sink.close()
    put_away(tmp_path / "run", False)
    sink = FolderSink(create(tmp_path / "run", resume=True), compact=False)
    narrow = sink.series_id(series("a", dtype="float16"))
    sink.put(summaries(9, [narrow], [np.full(50, 3.0)]))
    sink.close()
    put_away(tmp_path / "run", True)
    return Run(tmp_path / "run")


@pytest.mark.parametrize("stat", ["rms", "std", "nan", "max"])
def test_a_matrix_is_what_the_table_of_statistics_holds(run: Run, stat: str) -> None:
    found = matrix(run.reader, Question("output", stat))
    assert found.tensors == (("a", "output.0"), ("b", "output.0"))
    assert found.steps.tolist() == [0, 1, 2, 3, 4, 5, 9]
    for row in run.stats(kind="output", stat=stat).arrow().to_pylist():
        value, state = cell(found, row["site"], row["step"])
        assert value == pytest.approx(row[stat])
        assert state == {("a", 3): NAN, ("b", 3): INF}.get((row["site"], row["step"]), VALUE)
    assert cell(found, "b", 5)[1] == MISSING


def test_custom_statistics_are_there_where_they_were_given(run: Run) -> None:
    found = matrix(run.reader, Question("output", "sparsity"))
    assert [cell(found, "a", step) for step in (0, 5)] == [(0.0, VALUE), (1.25, VALUE)]
    assert cell(found, "b", 2)[1] == MISSING


def test_another_kind_another_rank_or_nothing_at_all(run: Run) -> None:
    assert matrix(run.reader, Question("weight", "max")).tensors == (("a.weight", "output.0"),)
    for question in (Question("buffer", "rms"), Question("output", "rms", "eval"), Question("output", "rms", rank=3)):
        found = matrix(run.reader, question)
        assert (found.tensors, found.values.shape) == ((), (0, 0))


def test_what_a_later_session_recorded_again_counts(put_away: Callable[[Path, bool], None], tmp_path: Path) -> None:
    for value in (1.0, 5.0):
        sink = FolderSink(create(tmp_path / "run", resume=value == 5.0), compact=False)
        number = sink.series_id(series("a"))
        for step in (0, 1, 2) if value == 1.0 else (2, 3):
            sink.put(summaries(step, [number], [np.full(50, value)]))
        sink.close()
        put_away(tmp_path / "run", value == 5.0)
    found = matrix(Run(tmp_path / "run").reader, Question("output", "mean"))
    assert [cell(found, "a", step)[0] for step in range(4)] == [1.0, 1.0, 5.0, 5.0]


def test_a_tensor_that_is_another_ones_alias_has_its_numbers(
    put_away: Callable[[Path, bool], None], tmp_path: Path
) -> None:
    for step in range(3):
        sink = FolderSink(create(tmp_path / "run", resume=step > 0), compact=False)
        output, taken = sink.series_id(series("a")), sink.series_id(series("b", Kind.INPUT))
        made = summaries(step, [output, taken], [np.full(50, 4.0 + step), np.zeros(0) if step < 2 else np.ones(50)])
        made.alias[1] = output if step < 2 else -1
        sink.put(made)
        sink.close()
        put_away(tmp_path / "run", step == 2)
    found = matrix(Run(tmp_path / "run").reader, Question("input", "rms"))
    assert [cell(found, "b", step) for step in range(3)] == [(4.0, VALUE), (5.0, VALUE), (1.0, VALUE)]


def test_one_layout_serves_every_statistic(run: Run) -> None:
    laid = laid_out(run.reader, Question("output", "rms"))
    for stat in ("rms", "std", "kurtosis", "nan", "max"):
        kept, anew = (
            matrix(run.reader, Question("output", stat), lambda: laid),
            matrix(run.reader, Question("output", stat)),
        )
        assert (kept.tensors, kept.steps.tolist()) == (anew.tensors, anew.steps.tolist())
        np.testing.assert_array_equal(kept.values, anew.values)
        np.testing.assert_array_equal(kept.states, anew.states)
    assert 0 < laid.nbytes < 10_000


def test_a_layout_stays_that_of_its_time_while_the_run_grows_and_is_compacted(tmp_path: Path) -> None:
    sink = FolderSink(create(tmp_path / "run"), compact=False)
    number = sink.series_id(series("a"))
    reader = Run(tmp_path / "run").reader
    for step in (0, 1):
        sink.put(summaries(step, [number], [np.full(50, step + 1.0)]))
    assert sink.flush()
    laid = laid_out(reader, Question("output", "mean"))
    sink.put(summaries(2, [number], [np.full(50, 3.0)]))
    sink.close()
    for _ in range(2):
        kept = matrix(reader, Question("output", "mean"), lambda: laid)
        assert (kept.steps.tolist(), kept.values[:, 0].tolist()) == ([0, 1], [1.0, 2.0])
        assert matrix(reader, Question("output", "mean")).values[:, 0].tolist() == [1.0, 2.0, 3.0]
        compact(tmp_path / "run")


def test_rows_of_two_data_types_and_of_two_sessions_for_one_step_are_one_cell(tmp_path: Path) -> None:
    for session in (1, 2):
        sink = FolderSink(create(tmp_path / "run", resume=session == 2))
        wide, narrow = sink.series_id(series("a")), sink.series_id(series("a", dtype="float16"))
        other = sink.series_id(series("b"))
        tensors = [np.full(50, 10.0 * session + at) for at in range(3)]
        sink.put(summaries(session, [wide, narrow, other], tensors))
        sink.put(summaries(2, [other], tensors[2:])) if session == 1 else None
        sink.close()
        compact(tmp_path / "run")
    found = matrix(Run(tmp_path / "run").reader, Question("output", "mean"))
    assert found.values.tolist() == [[11.0, 12.0], [21.0, 22.0]]


def test_cells_whose_chunks_are_damaged_stay_empty_and_the_run_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(parts.ROW_GROUP, "moments", 2)
    sink = FolderSink(create(tmp_path / "run"))
    a = sink.series_id(series("a"))
    for step in range(4):
        sink.put(summaries(step, [a], [np.full(50, step + 1.0)]))
    sink.close()
    path = tmp_path / "run/tables/moments/000001-0.parquet"
    about = pq.read_metadata(path)
    column = next(c for c in map(about.row_group(1).column, range(about.num_columns)) if c.path_in_schema == "sum")
    content = bytearray(path.read_bytes())
    content[column.data_page_offset + column.total_compressed_size - 1] ^= 1
    path.write_bytes(content)
    run = Run(tmp_path / "run")
    found = matrix(run.reader, Question("output", "mean"))
    assert [cell(found, "a", step)[1] for step in range(4)] == [VALUE, VALUE, MISSING, MISSING]
    assert "2 rows were left out" in run.problems[0]
    assert matrix(run.reader, Question("output", "rms")).steps.tolist() == [0, 1]
