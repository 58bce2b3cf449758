"""Damage, links and forgery: what cannot be trusted is left out and named, and nothing outside is touched."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from layerscope.errors import FormatError, LayerscopeError, StoreError
from layerscope.model.records import CallGraph, CallNode, ModuleNode
from layerscope.runs import Run
from layerscope.store import sources
from layerscope.store.compaction import compact
from layerscope.store.files import Directory, checksum_text
from layerscope.store.folder import create
from layerscope.store.format import TABLES
from layerscope.store.graph_files import read_graph
from layerscope.store.manifests import MOST_NESTED, read_live, read_manifest, read_sessions, sealed
from layerscope.store.reader import Reader
from layerscope.store.segments import FRAME, Segment, framed
from layerscope.store.traces import StoredTrace, read_trace, write_trace
from layerscope.store.writer import FolderSink
from tests.damage.signing import chunks, frames, sign_part, sign_segment
from tests.store.runs import ROOT, check_numbers, forge, put_named, put_steps, start
from tests.views import graphs

Harm = Callable[[Path], object]


def recorded(folder: Path, *, compacted: bool = False) -> Path:
    """Six steps in two sessions, the first in parts if asked for, one batch for each step."""
    for session in range(2):
        sink = FolderSink(create(folder, resume=True), compact=compacted and session == 0)
        sink.put(CallGraph((ModuleNode("layer.0", "Linear", 3, ""),), (CallNode("layer.0", "layer.0", "", (), ()),)))
        for step in range(3 * session, 3 * session + 3):
            put_steps(sink, [step])
            put_named(sink, [step])
            assert sink.flush()
        sink.close()
    return folder


def steps_of(reader: Reader) -> set[int]:
    return {key[2] for key in check_numbers(reader)}


def files_of(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock"}


def frames_of(content: bytes) -> list[int]:
    """Where each frame of a segment begins."""
    places, place = [], 0
    while place < len(content):
        places.append(place)
        place += FRAME.size + FRAME.unpack_from(content, place)[1]
    return places


def flipped(content: bytes, place: int, bit: int = 3) -> bytes:
    return content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :]


def test_a_flipped_bit_anywhere_in_a_segment_costs_its_batch_and_no_other(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run")
    path = run / "segments/moments/r0-s2-000001.arrow"
    content, chance = path.read_bytes(), random.Random(0)
    starts = frames_of(content)
    for place in [*(chance.randrange(len(content)) for _ in range(200)), *starts[1:], *(at + 9 for at in starts[1:])]:
        path.write_bytes(flipped(content, place, chance.randrange(8)))
        reader = Reader(run)
        hit = max(at for at, first in enumerate(starts) if first <= place)
        kept = {3, 4, 5} - {2 + hit} if hit else set()
        assert steps_of(reader) == {0, 1, 2} | kept
        assert ["r0-s2-000001.arrow is damaged" in problem for problem in reader.problems()] == [True]


@pytest.mark.parametrize("table", ["metrics", "series", "custom_statistics", "values", "steps", "dependencies"])
def test_flipped_bits_in_segments_end_no_process(tmp_path: Path, table: str) -> None:
    run = recorded(tmp_path / "run")
    path = run / f"segments/{table}/r0-s1-000001.arrow"
    content, chance = path.read_bytes(), random.Random(table)
    for _ in range(60):
        path.write_bytes(flipped(content, chance.randrange(len(content)), chance.randrange(8)))
        found = Run(run)
        check_numbers(found.reader)
        assert (found.reader.values().num_rows, found.reader.steps().num_rows, found.reader.dependencies()) is not None
        assert any(path.name in problem for problem in found.problems)


@pytest.mark.parametrize("compacted", [False, True])
def test_a_sound_run_has_no_problem_and_a_killed_writer_is_none(tmp_path: Path, compacted: bool) -> None:
    run = recorded(tmp_path / "run", compacted=compacted)
    reader = Reader(run)
    assert steps_of(reader) == set(range(6))
    assert reader.problems() == []
    with start("writing", run, 10, 100_000, 10**9) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        writer.kill()
    check_numbers(reader)
    assert reader.problems() == []
    assert compact(run).done
    assert Reader(run).problems() == []


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lambda run: (run / "segments/moments/r0-s2-000001.arrow").unlink(), "1 segments of moments of session r0-s2"),
        (lambda run: os.truncate(run / "segments/moments/r0-s2-000001.arrow", 0), "is cut: it has 0 whole bytes"),
        (lambda run: (run / "sessions/r0-s2.json").unlink(), "lacks 1 of the 2 sessions of rank 0"),
        (lambda run: (run / "sessions/r0-s1.json").write_text("{}"), "r0-s1.json is damaged"),
        (lambda run: (run / "graph.json").unlink(), "graph.json is missing"),
        (lambda run: (run / "tables/moments/000001-0.parquet").unlink(), "000001-0.parquet is missing, and its 9 rows"),
        (lambda run: shutil.copy(run / "sessions/r0-s1.json", run / "sessions/r0-s2.json"), "of another session"),
    ],
)
def test_what_is_missing_or_cut_is_named_and_the_run_is_not_compacted(tmp_path: Path, harm: Harm, words: str) -> None:
    run = recorded(tmp_path / "run", compacted=True)
    harm(run)
    before = files_of(run)
    reader = Reader(run)
    assert steps_of(reader) <= set(range(6))
    assert any(words in problem for problem in reader.problems())
    with pytest.raises(StoreError, match="is not compacted, and nothing was changed"):
        compact(run)
    assert files_of(run) == before


def test_a_segment_in_the_place_of_another_is_left_out(tmp_path: Path) -> None:
    run, other = recorded(tmp_path / "run"), recorded(tmp_path / "other")
    for source in (run / "segments/moments/r0-s2-000001.arrow", other / "segments/moments/r0-s1-000001.arrow"):
        shutil.copy(source, run / "segments/moments/r0-s1-000001.arrow")
        reader = Reader(run)
        assert steps_of(reader) == {3, 4, 5}
        assert "its name does not fit its content" in reader.problems()[0]


def test_a_changed_key_in_live_json_is_noticed_and_nothing_is_deleted(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", compacted=True)
    text = (run / "live.json").read_text()
    (run / "live.json").write_text(text.replace('"moments"', '"mOments"'))
    before = files_of(run)
    for use in (Reader, compact):
        with pytest.raises(FormatError, match=r"live\.json is damaged: its bytes do not match its checksum"):
            use(run)
    assert files_of(run) == before


def test_a_table_that_live_json_lacks_or_that_is_not_known_stops_compaction(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", compacted=True)
    tables = json.loads((run / "live.json").read_bytes())["tables"]
    forge(run / "live.json", tables={**tables, "mOments": tables["moments"]})
    before = files_of(run)
    assert any("names a table 'mOments'" in problem for problem in Reader(run).problems())
    with pytest.raises(StoreError, match="mOments"):
        compact(run)
    assert files_of(run) == before
    del tables["moments"]
    forge(run / "live.json", tables=tables)
    with pytest.raises(FormatError, match="it lacks the tables moments"):
        compact(run)


def test_a_live_json_of_another_run_is_refused(tmp_path: Path) -> None:
    run, other = recorded(tmp_path / "run", compacted=True), recorded(tmp_path / "other", compacted=True)
    shutil.copy(other / "live.json", run / "live.json")
    with pytest.raises(FormatError, match="it is that of another run"):
        Reader(run)


@pytest.mark.parametrize("linked", ["tables", "tables/moments", "segments", "segments/moments"])
def test_compaction_follows_no_linked_folder_and_deletes_nothing_outside(tmp_path: Path, linked: str) -> None:
    run, outside = recorded(tmp_path / "run", compacted=True), tmp_path / "outside"
    (run / linked).rename(outside)
    (run / linked).symlink_to(outside)
    for number in range(10):
        (outside / f"{number:06d}-0.parquet").write_text("mine")
    tables = json.loads((run / "live.json").read_bytes())["tables"]
    for table in TABLES:
        tables[table]["replaced"] |= {f"{number:06d}-0.parquet": "0" * 16 for number in range(10)}
    forge(run / "live.json", tables=tables)
    before = files_of(outside)
    with pytest.raises(LayerscopeError, match="is a link or no folder"):
        compact(run)
    assert files_of(outside) == before


def test_only_what_live_json_lists_with_its_checksum_is_removed(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run")
    compact(run)
    mine = run / "tables/moments/000000-0.parquet"
    stranger = run / "tables/moments/000099-0.parquet"
    for path in (mine, stranger):
        path.write_text("somebody's own")
    tables = json.loads((run / "live.json").read_bytes())["tables"]
    tables["moments"]["replaced"] = {mine.name: "0" * 16}
    forge(run / "live.json", tables=tables)
    recorded_again = FolderSink(create(run, resume=True))
    put_steps(recorded_again, [9])
    recorded_again.close()
    assert (mine.exists(), stranger.exists()) == (True, True)
    assert steps_of(Reader(run)) == {*range(6), 9}


@pytest.mark.parametrize(
    "file", ["run.json", "live.json", "graph.json", "sessions/r0-s2.json", "segments/metrics/r0-s1-000001.arrow"]
)
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_links_and_pipes_are_neither_read_nor_waited_for(tmp_path: Path, file: str, kind: str) -> None:
    run = recorded(tmp_path / "run")
    (run / file).rename(tmp_path / "outside")
    (run / file).symlink_to(tmp_path / "outside") if kind == "link" else os.mkfifo(run / file)
    code = """
import sys
from layerscope.errors import LayerscopeError
from layerscope.runs import Run
try:
    run = Run(sys.argv[1])
    run.metrics(); run.status(); run.graph()
    sys.exit(0 if run.problems else 1)
except LayerscopeError as error:
    sys.exit(0 if "link" in str(error) else 1)
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    assert (
        subprocess.run([sys.executable, "-c", code, str(run)], timeout=60, env=environment, check=False).returncode == 0
    )


def test_forged_batches_with_right_checksums_are_validated(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run")
    path = run / "segments/metrics/r0-s1-000001.arrow"
    content, chance = path.read_bytes(), random.Random(1)
    starts = [*frames_of(content), len(content)]
    for _ in range(300):
        payloads = [bytearray(content[a + FRAME.size : b]) for a, b in pairwise(starts)]
        changed = payloads[chance.randrange(1, len(payloads))]
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
        path.write_bytes(b"".join(framed(memoryview(each)) + each for each in payloads))
        Reader(run).metrics()  # whatever it says: it ends neither this process nor in a traceback


@pytest.mark.parametrize(
    ("table", "text", "other", "words"),
    [
        ("series", b"output", b"outpot", "its column 'kind' says 'outpot'"),
        ("series", b"train", b"brain", "its column 'mode' says 'brain'"),
        ("steps", b'["', b"[:", "which is no list"),
    ],
)
def test_forged_names_and_lists_with_right_checksums_are_told(
    tmp_path: Path, table: str, text: bytes, other: bytes, words: str
) -> None:
    run = recorded(tmp_path / "run")
    file = min((run / "segments" / table).iterdir())
    before = file.read_bytes()
    assert text in before
    file.write_bytes(before.replace(text, other))
    sign_segment(file, frames(before))
    opened = Run(run)
    opened.series()
    opened.steps()
    assert any(words in problem for problem in opened.problems)


def test_a_compressed_batch_is_not_decoded(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run")
    path = run / "segments/metrics/r0-s1-000001.arrow"
    content = path.read_bytes()
    head_end = frames_of(content)[1]
    schema = pa.ipc.read_schema(pa.py_buffer(content[FRAME.size : head_end]))
    rows = 1_000_000
    columns = [pa.array([0] * rows, kind) if kind != pa.string() else pa.array(["x"] * rows) for kind in schema.types]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as stream:
        stream.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
    packed = pa.BufferReader(sink.getvalue())
    pa.ipc.read_schema(packed)
    message = pa.ipc.read_message(packed).serialize()
    path.write_bytes(content[:head_end] + framed(memoryview(message)) + message.to_pybytes())
    reader = Reader(run)
    assert {row["step"] for row in reader.metrics().to_pylist()} == {3, 4, 5}
    assert "no plain record batch" in reader.problems()[0]


@pytest.mark.parametrize(("bomb", "words"), [("rows", "claims 2000000 rows"), ("texts", "encoded in a way")])
def test_a_part_that_would_take_much_memory_is_not_decoded(tmp_path: Path, bomb: str, words: str) -> None:
    run = recorded(tmp_path / "run", compacted=True)
    part = run / "tables/metrics/000001-0.parquet"
    rows, text = (2_000_000, "x") if bomb == "rows" else (60_000, "x" * 100_000)
    names = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([text]))
    schema = pq.read_schema(part)
    columns = [
        names if field.name == "name" else pa.array(np.zeros(rows)).cast(field.type).cast(field.type)
        for field in schema
        if field.name != "type"
    ]
    kept = [field for field in schema if field.name != "type"]
    about = {"format": "layerscope-part", "version": "1", "table": "metrics"}
    table = pa.table(columns, names=[field.name for field in kept]).replace_schema_metadata(about)
    with pq.ParquetWriter(part, table.schema, store_schema=False) as writer:
        writer.add_key_value_metadata(about)
        writer.write_table(table, row_group_size=rows)
    assert part.stat().st_size < 1 << 20
    sign_part(run, "metrics", part.name, chunks(part.read_bytes()), rows)
    reader = Reader(run)
    assert {row["step"] for row in reader.metrics().to_pylist()} == {3, 4, 5}
    assert words in reader.problems()[0]


@pytest.mark.parametrize("value", [float("inf"), 10**400, "1" * 10, None, [1], float("nan")])
@pytest.mark.parametrize(
    ("file", "key"), [("run.json", "created_s"), ("live.json", "generation"), ("live.json", "tables")]
)
def test_numbers_that_are_none_are_an_error_of_ours(tmp_path: Path, file: str, key: str, value: object) -> None:
    run = recorded(tmp_path / "run")
    forge(run / file, **{key: value})
    if (file, value) == ("run.json", "1" * 10):
        return  # a number all the same
    with pytest.raises(FormatError, match=f"{file} is damaged"):
        Reader(run)


def test_nesting_and_size_of_json_are_bounded(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run")
    content = {"format": "layerscope-run", "version": 1}
    deep = sealed({**content, "info": 0})
    for inside in (b"[" * 200_000 + b"]" * 200_000, b"[" * MOST_NESTED + b"]" * MOST_NESTED):
        rest = deep[32:].replace(b'"info": 0', b'"info": ' + inside)
        (run / "run.json").write_bytes(f'{{"checksum": "{checksum_text(rest)}",'.encode() + rest)
        with pytest.raises(FormatError, match="nested more than 64 times"):
            Reader(run)
    with (run / "run.json").open("r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(FormatError, match=r"it has 1,099,511,627,776 bytes, more than"):
        Reader(run)


def test_a_file_cut_while_it_is_read_ends_no_process(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run")
    reader = Reader(run)
    before = steps_of(reader)
    for path in (run / "segments").rglob("*.arrow"):
        os.truncate(path, 0)
    assert steps_of(reader) == before


def test_segments_beyond_the_memory_they_may_take_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources._IN_MEMORY, "_limit", 1)
    loaded: list[str] = []
    again = Segment._read_again

    def counted(self: Segment, directory: Directory) -> list[pa.RecordBatch]:
        loaded.append(self.path.name)
        return again(self, directory)

    monkeypatch.setattr(Segment, "_read_again", counted)
    run = recorded(tmp_path / "run")
    reader = Reader(run)
    assert steps_of(reader) == set(range(6))
    assert loaded
    compact(run)
    assert steps_of(reader) == set(range(6))


@pytest.mark.parametrize("file", ["operations.arrow", "values.safetensors", "gradients.safetensors", "trace.json"])
def test_a_flipped_bit_in_a_trace_is_told(tmp_path: Path, file: str) -> None:
    run = create(tmp_path / "run")
    run.lock.release()
    values = {0: np.arange(6.0).reshape(2, 3), 3: np.ones(4, np.float32)}
    folder = write_trace(run.path, StoredTrace(graphs.transformer(1), values, values))
    sound, chance = read_trace(folder), random.Random(file)
    assert np.array_equal(sound.values[0], values[0])
    content = (folder / file).read_bytes()
    for _ in range(50):
        (folder / file).write_bytes(flipped(content, chance.randrange(len(content)), chance.randrange(8)))
        with pytest.raises(FormatError, match=rf"{file} is damaged") as caught:
            read_trace(folder)
        assert str(caught.value).count("is damaged") == 1


@pytest.mark.parametrize(
    ("file", "read"),
    [
        ("run.json", lambda run: read_manifest(run)),
        ("live.json", lambda run: read_live(run, read_manifest(run).id)),
        ("graph.json", lambda run: read_graph(run, read_manifest(run).id)),
        ("sessions/r0-s1.json", lambda run: read_sessions(run, read_manifest(run).id)),
    ],
)
def test_an_error_about_a_damaged_file_names_the_damage_once(tmp_path: Path, file: str, read: Harm) -> None:
    path = recorded(tmp_path / "run") / file
    path.write_bytes(flipped(path.read_bytes(), 60, 1))
    try:
        _, (problem,) = read(tmp_path / "run")  # type: ignore[misc]  # only sessions are returned with problems
    except FormatError as error:
        problem = str(error)
    assert problem.startswith(f"{path} is damaged: ")
    assert problem.count("is damaged") == 1
    assert "a key is missing" not in problem


MAKING = """
import os, sys
from layerscope.store.files import Directory, checksum_text
from layerscope.store.folder import create
done, fatal = 0, int(sys.argv[2])
def deadly(function):
    def call(*arguments, **options):
        global done
        done += 1
        if done == fatal:
            os._exit(9)
        return function(*arguments, **options)
    return call
for name in ("mkdir", "fsync", "rename", "unlink"):
    setattr(os, name, deadly(getattr(os, name)))
create(sys.argv[1], resume=True)
os._exit(0)
"""


@pytest.mark.parametrize("there", [False, True])
def test_a_recorder_killed_while_it_makes_the_folder_can_be_resumed(tmp_path: Path, there: bool) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    for fatal in range(1, 200, 3):
        run = tmp_path / str(fatal) / "run"
        if there:
            run.mkdir(parents=True)
        code = subprocess.run(
            [sys.executable, "-c", MAKING, str(run), str(fatal)], env=environment, check=False
        ).returncode
        sink = FolderSink(create(run, resume=True))
        put_steps(sink, [1])
        sink.close()
        reader = Reader(run)
        assert (steps_of(reader), reader.problems()) == ({1}, [])
        if code == 0:
            break
    assert code == 0 and fatal > 20


def test_a_half_made_folder_of_an_earlier_version_is_finished(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "segments/moments").mkdir(parents=True)
    (run / "live.json").write_text('{"format": "layerscope-live"')
    create(run, resume=True, info={"lr": 1}).lock.release()
    assert Reader(run).manifest.info == {"lr": 1}
