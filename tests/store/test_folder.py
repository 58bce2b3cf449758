"""Run folders: names that are taken, recorders that meet, runs that go on, files that are not what they should be."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from layerscope.errors import BusyError, FormatError, LayerscopeError, StoreError
from layerscope.model.records import Floats, TensorValues
from layerscope.store.compaction import compact
from layerscope.store.folder import create
from layerscope.store.manifests import read_manifest
from layerscope.store.reader import Reader, arrays_of
from layerscope.store.segments import framed
from layerscope.store.writer import FolderSink
from tests.store.runs import NO_SAMPLES, check_numbers, forge, keys_of, put_steps, series_at, start


def made(folder: Path, *, resume: bool = False) -> Path:
    run = create(folder, resume=resume)
    run.lock.release()
    return run.path


def test_a_new_run_says_what_it_is(tmp_path: Path) -> None:
    run = create(tmp_path / "deep" / "first", info={"lr": 0.1})
    manifest = Reader(run.path).manifest
    assert (manifest.name, dict(manifest.info)) == ("first", {"lr": 0.1})
    assert json.loads((run.path / "run.json").read_bytes())["version"] == 1
    run.lock.release()


def test_a_taken_name_gets_a_suffix_and_what_is_there_stays(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    names = [made(tmp_path / name).name for name in ("first", "first", "first", "file", "other")]
    assert names == ["first", "first-2", "first-3", "file-2", "other-2"]
    assert (tmp_path / "file").read_text() == (tmp_path / "other" / "notes.txt").read_text() == "mine"


def test_an_empty_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    assert made(tmp_path) == tmp_path


def test_a_folder_below_a_file_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"file/run cannot be written: .*Record to a folder"):
        create(tmp_path / "file" / "run")


def test_info_that_is_no_json_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="info of run 'run' is not JSON"):
        create(tmp_path / "run", info={"model": object()})


def test_resume_continues_sessions_and_series_numbers(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    for session, width in enumerate((2, 3, 5), 1):
        run = create(folder, resume=True)
        assert (run.path, run.session) == (folder, session)
        sink = FolderSink(run, compact=session == 2)
        assert put_steps(sink, [session], width=width) == list(range(width))
        sink.close()
    reader = Reader(folder)
    assert len(check_numbers(reader)) == 10
    assert reader.series()["series"].to_pylist() == [0, 1, 2, 3, 4]
    assert reader.series()["shape"].to_pylist()[2] == [2, 3]


def test_resume_never_reuses_a_number_that_a_row_uses(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    sink = FolderSink(create(folder), compact=False)
    put_steps(sink, [1], width=7)
    sink.close()
    shutil.rmtree(folder / "segments/series")
    sink = FolderSink(create(folder, resume=True), compact=False)
    assert sink.series_id(series_at(0)) == 7
    sink.close()


def test_resume_of_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FormatError, match="is not a run"):
        create(tmp_path, resume=True)


def test_a_second_recorder_is_told_who_holds_the_folder(tmp_path: Path) -> None:
    run = create(tmp_path / "run")
    with pytest.raises(BusyError, match=rf"run is being recorded by process {os.getpid()} on .*without resume=True"):
        create(tmp_path / "run", resume=True)
    run.lock.release()
    create(tmp_path / "run", resume=True).lock.release()


def test_a_recorder_of_another_process_is_named(tmp_path: Path) -> None:
    with start("writing", tmp_path / "run", 1, 10**6, 10**9) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        with pytest.raises(BusyError, match=f"process {writer.pid} "):
            create(tmp_path / "run", resume=True)
        writer.kill()


def test_a_look_at_the_status_never_makes_a_recorder_fail(tmp_path: Path) -> None:
    folder = made(tmp_path / "run")
    reader = Reader(folder)
    for _ in range(20):
        reader.status()
        create(folder, resume=True).lock.release()
    assert reader.status() == "stopped"


def test_a_newer_version_is_refused_by_name(tmp_path: Path) -> None:
    folder = made(tmp_path / "run")
    forge(folder / "run.json", version=2)
    with pytest.raises(FormatError, match=r"run.json has format version 2; .*Update layerscope"):
        Reader(folder)


def framed_segment(folder: Path, schema: pa.Schema, *batches: pa.RecordBatch, **about: str) -> None:
    """The first segment of the metrics, as another program might write it."""
    said = {"format": "layerscope-segment", "version": "1", "run": read_manifest(folder).id, "table": "metrics"}
    said |= {"rank": "0", "session": "1", "number": "1", "before": "0"}
    payloads = [schema.with_metadata({**said, **about}).serialize(), *(batch.serialize() for batch in batches)]
    content = b"".join(framed(memoryview(payload)) + payload.to_pybytes() for payload in payloads)
    (folder / "segments/metrics/r0-s1-000001.arrow").write_bytes(content)


def test_a_segment_of_a_newer_version_is_left_out_and_named(tmp_path: Path) -> None:
    folder = made(tmp_path / "run")
    schema = pa.schema([("step", pa.int64())])
    framed_segment(folder, schema, pa.record_batch([[1]], schema=schema), version="9")
    reader = Reader(folder)
    assert reader.metrics().num_rows == 0
    (problem,) = reader.problems()
    assert "format version 9" in problem


def test_columns_tables_and_keys_of_a_later_writer_are_ignored_and_missing_ones_null(tmp_path: Path) -> None:
    folder = made(tmp_path / "run")
    schema = pa.schema([("step", pa.int64()), ("name", pa.string()), ("new", pa.int8())])
    framed_segment(folder, schema, pa.record_batch([[1], ["loss"], [3]], schema=schema))
    (folder / "segments" / "extra").mkdir()
    forge(folder / "run.json", new_key=[1])
    reader = Reader(folder)
    row = {"rank": 0, "session": 1, "step": 1, "name": "loss", "value": None, "time_s": None, "type": "step"}
    assert reader.metrics().to_pylist() == [row]
    assert reader.problems() == []


@pytest.mark.parametrize("file", ["../../../secret.parquet", "/secret.parquet", "000001-0.parquet/../x"])
def test_names_that_lead_out_of_the_folder_are_refused(tmp_path: Path, file: str) -> None:
    folder = made(tmp_path / "run")
    tables = json.loads((folder / "live.json").read_bytes())["tables"]
    tables["metrics"]["parts"] = [{"file": file, "rows": 1, "bytes": 1, "footer": "0" * 16, "chunks": "", "groups": ""}]
    forge(folder / "live.json", tables=tables)
    with pytest.raises(FormatError, match=r"live.json is damaged: it names files"):
        Reader(folder)


def test_links_are_not_followed(tmp_path: Path) -> None:
    folder, other = made(tmp_path / "run"), tmp_path / "other"
    sink = FolderSink(create(other), compact=False)
    put_steps(sink, [1])
    sink.close()
    for path in (other / "segments").rglob("*.arrow"):
        (folder / path.relative_to(other)).symlink_to(path)
    assert Reader(folder).metrics().num_rows == 0
    compact(other)
    (folder / "tables/metrics/000001-0.parquet").symlink_to(other / "tables/metrics/000001-0.parquet")
    forge(folder / "live.json", tables=json.loads((other / "live.json").read_bytes())["tables"])
    reader = Reader(folder)
    assert reader.metrics().num_rows == 0
    assert "metrics/000001-0.parquet is damaged: it is a link" in reader.problems()[0]


def test_a_missing_part_is_left_out_and_named(tmp_path: Path) -> None:
    sink = FolderSink(create(tmp_path / "run"))
    put_steps(sink, [1])
    sink.close()
    (tmp_path / "run/tables/moments/000001-0.parquet").unlink()
    reader = Reader(tmp_path / "run")
    assert (reader.moments().num_rows, reader.metrics().num_rows) == (0, 1)
    assert ["moments/000001-0.parquet is missing, and its 3 rows" in problem for problem in reader.problems()] == [True]


def test_a_part_whose_bytes_changed_is_named_and_gives_no_wrong_numbers(tmp_path: Path) -> None:
    sink = FolderSink(create(tmp_path / "run"))
    put_steps(sink, range(50))
    sink.close()
    part = tmp_path / "run/tables/moments/000001-0.parquet"
    content = part.read_bytes()
    for place in range(100, len(content), 211):
        part.write_bytes(content[:place] + bytes([content[place] ^ 0x10]) + content[place + 1 :])
        reader = Reader(tmp_path / "run")
        if len(check_numbers(reader)) < 150:
            assert "000001-0.parquet is damaged" in reader.problems()[0]


@pytest.fixture
def rich_run(tmp_path: Path) -> Path:
    """A run with parts, segments, values, of three sessions."""
    folder = tmp_path / "run"
    for session in range(3):
        sink = FolderSink(create(folder, resume=True), compact=session == 0)
        ids = put_steps(sink, range(session * 10, session * 10 + 8), width=5)
        sink.put(TensorValues.one(session, ids[0], NO_SAMPLES, series_values()))
        sink.flush()
        put_steps(sink, range(session * 10 + 8, session * 10 + 10), width=5)
        sink.close()
    return folder


def series_values() -> Floats:
    return np.arange(5.0)


def read_all(folder: Path) -> set[tuple[int, int, int, int]]:
    """Everything a reader can give, checked; the keys of the moments."""
    reader = Reader(folder)
    reader.status()
    reader.revision()
    reader.events()
    reader.graph()
    for array in arrays_of(reader.values()):
        assert array.tolist() == series_values().tolist()
    return set(check_numbers(reader))


def test_a_run_with_any_file_cut_anywhere_opens_with_right_rows_or_says_what_is_wrong(rich_run: Path) -> None:
    whole = read_all(rich_run)
    files = sorted(path for path in rich_run.rglob("*") if path.is_file() and path.stat().st_size)
    chance = random.Random(0)
    opened = 0
    for number in range(200):
        path = files[number % len(files)]
        content = path.read_bytes()
        path.write_bytes(content[: chance.randrange(len(content))])
        try:
            assert read_all(rich_run) <= whole
            opened += 1
        except LayerscopeError as error:
            assert path.name in str(error)
        path.write_bytes(content)
    assert 100 < opened < 200
    assert read_all(rich_run) == whole


def test_a_cut_segment_keeps_every_whole_batch(tmp_path: Path) -> None:
    sink = FolderSink(create(tmp_path / "run"), compact=False)
    ends = []
    path = tmp_path / "run/segments/moments/r0-s1-000001.arrow"
    for step in range(6):
        put_steps(sink, [step])
        sink.flush()
        ends.append(path.stat().st_size)
    sink.close()
    content = path.read_bytes()
    for cut in range(0, len(content), 97):
        path.write_bytes(content[:cut])
        keys = keys_of(Reader(tmp_path / "run").moments())
        assert {key[2] for key in keys} == {step for step, end in enumerate(ends) if end <= cut}


def test_the_manifest_is_written_once(tmp_path: Path) -> None:
    folder = made(tmp_path / "run")
    before = (folder / "run.json").read_bytes()
    made(folder, resume=True)
    assert (folder / "run.json").read_bytes() == before
    assert len(read_manifest(folder).id) == 16
