"""Runs made to harm who opens them: links, pipes and devices at every place of a run, bombs, forged names."""

from __future__ import annotations

import json
import math
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from layerscope.model.records import Event
from layerscope.store.folder import create
from layerscope.store.writer import FolderSink
from tests.damage.runs import make_runs
from tests.damage.signing import FRAME, chunks, frame_head, frames, rewrite, sign_json, sign_part

_KEYS = (("run.json", "created_s"), ("live.json", "generation"))
CANARY = "canary-7f3a"  # stands in every file outside, in no answer
NESTED = 200_000
GOOD = ("good-a", "good-b", "good-c")
PLACES = (
    "run.json",
    "live.json",
    "graph.json",
    "sessions",
    "sessions/{session}",
    "segments",
    "segments/moments",
    "segments/moments/{segment}",
    "segments/metrics",
    "tables",
    "tables/moments",
    "tables/moments/{part}",
    "tables/metrics",
    "traces",
    "traces/000001",
    "traces/000001/trace.json",
    "traces/000001/operations.arrow",
    "traces/000001/values.safetensors",
    "writer-r0.lock",
    "compact.lock",
)


def _word(place: str) -> str:
    return place.replace("/", "-").replace("{", "").replace("}", "")


def make_hostile(folder: Path) -> tuple[Path, Path]:
    """A folder with three good runs and the hostile ones, and a folder outside with what must not be touched."""
    project, outside = folder / "project", folder / "outside"
    project.mkdir()
    model = make_runs(folder / "model")["compacted"]
    _mark(model, outside / "run")
    (outside / "canary.json").write_text(json.dumps({"format": "layerscope-live", "word": CANARY}))
    (outside / "canary.lock").write_text(CANARY)
    for name in GOOD:
        shutil.copytree(model, project / name)
    for name, spoil in hostile(outside / "run").items():
        shutil.copytree(model, project / name)
        spoil(project / name)
    return project, outside


def _mark(model: Path, target: Path) -> None:
    """A copy of the run with the canary in its names, texts and traces: it would show wherever it is read."""
    shutil.copytree(model, target)
    sink = FolderSink(create(target, resume=True), compact=False)
    sink.put(Event(1, "note", CANARY, 1.0))
    sink.close()
    for file in target.rglob("*.json"):
        text = file.read_text().replace("layer.", f"{CANARY}.").replace('"model": "', f'"model": "{CANARY}')
        file.write_text(text)
        sign_json(file)


def hostile(outside: Path) -> dict[str, Callable[[Path], None]]:
    """What is done to a good run, by the name of the hostile one it becomes."""
    made: dict[str, Callable[[Path], None]] = {}
    for place in PLACES:
        made[f"link-{_word(place)}"] = _linked(place, outside)
        made[f"pipe-{_word(place)}"] = _piped(place)
    return made | BOMBS | HARMLESS


def _file(run: Path, place: str) -> Path:
    """The place in a run, with the name that its first file there has."""
    folder, _, last = place.rpartition("/")
    if not last.startswith("{"):
        return run / place
    return sorted(path for path in (run / folder).iterdir() if path.is_file())[0]


def _removed(path: Path) -> Path:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    return path


def _linked(place: str, outside: Path) -> Callable[[Path], None]:
    def spoil(run: Path) -> None:
        target = _file(outside, place)
        if place.endswith(".lock"):
            target = outside.parent / "canary.lock"
        _removed(_file(run, place)).symlink_to(target)

    return spoil


def _piped(place: str) -> Callable[[Path], None]:
    return lambda run: os.mkfifo(_removed(_file(run, place)))


def _device(run: Path) -> None:
    path = _removed(run / "live.json")
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))  # /dev/zero, which never ends
    except OSError:  # only an administrator may
        path.mkdir()


def _written(place: str, text: str) -> Callable[[Path], None]:
    def spoil(run: Path) -> None:
        _file(run, place).write_bytes(text.encode("utf-8", "surrogateescape"))

    return spoil


def _changed(place: str, old: str, new: str) -> Callable[[Path], None]:
    """A JSON file with another text in it, and the checksum of that."""

    def spoil(run: Path) -> None:
        file = _file(run, place)
        text = file.read_text()
        assert old in text, text[:300]
        file.write_text(text.replace(old, new, 1))
        sign_json(file)

    return spoil


def _with(place: str, value: str) -> Callable[[Path], None]:
    """A JSON file with one more value, and the right checksum."""
    return _changed(place, '"version": ', f'"x": {value}, "version": ')


def _long_part(run: Path) -> None:
    """A small Parquet file of 20 million equal rows."""
    rows = 2_000_000
    _replace_part(run, "metrics", {name: pa.repeat(pa.scalar(*given), rows) for name, given in _FILLER.items()}, 10)


def _many_groups(run: Path) -> None:
    """A small Parquet file of many row groups of an allowed size: 16 million rows."""
    columns = {name: pa.repeat(pa.scalar(*given), 16_384) for name, given in _FILLER.items()}
    _replace_part(run, "metrics", columns, 1_000, ["rank", "session", "step"])


def _wide_part(run: Path) -> None:
    """A small Parquet file in which one long text stands for 16,384 of them: a gigabyte and more."""
    columns = {name: pa.repeat(pa.scalar(*given), 16_384) for name, given in _FILLER.items()}
    columns["name"] = pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int8()), 16_384), ["x" * 200_000])
    _replace_part(run, "metrics", columns, 4)


_FILLER = {
    **{name: (0, pa.int32()) for name in ("rank", "session")},
    "step": (1, pa.int64()),
    "name": ("loss", pa.string()),
    "value": (1.0, pa.float64()),
    "time_s": (1.0, pa.float64()),
    "type": ("step", pa.string()),
}


def _replace_part(
    run: Path, table: str, columns: dict[str, pa.Array], groups: int, dictionary: bool | list[str] = True
) -> None:
    """Other rows in the first part of a table, with right checksums."""
    part = _file(run, f"tables/{table}/{{part}}")
    about = pq.read_schema(part).metadata
    piece = pa.table(columns).replace_schema_metadata(about)
    rows = piece.num_rows
    with pq.ParquetWriter(
        part, piece.schema, compression="zstd", store_schema=False, use_dictionary=dictionary
    ) as writer:
        writer.add_key_value_metadata({key: value for key, value in about.items() if key != b"ARROW:schema"})
        for _ in range(groups):
            writer.write_table(piece, row_group_size=rows)
    sign_part(run, table, part.name, chunks(part.read_bytes()), groups * rows)


def _payload(forge: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    """Another batch at the end of a segment of metrics, with right checksums."""

    def spoil(run: Path) -> None:
        segment = _file(run, "segments/metrics/{segment}")
        content = segment.read_bytes()
        start, end = frames(content)[-1]
        forged = forge(content[start:end])
        segment.write_bytes(content[: start - FRAME.size] + frame_head(forged) + forged)

    return spoil


def _compressed(payload: bytes) -> bytes:
    """A batch of a few bytes that decompresses to hundreds of megabytes."""
    rows = 5_000_000
    schema = pa.schema([(name, given[1]) for name, given in _FILLER.items() if name not in ("rank", "session")])
    columns = [pa.repeat(pa.scalar(*_FILLER[name]), rows) for name in schema.names]
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(pa.record_batch(columns, schema=schema))
    _, batch = list(pa.ipc.MessageReader.open_stream(stream.getvalue()))[:2]
    return bytes(batch.serialize().to_pybytes())


def _rewritten(place: str, change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    """A JSON file with another content, and the checksum of that."""

    def spoil(run: Path) -> None:
        file = _file(run, place)
        content = json.loads(file.read_bytes())
        change(content)
        rewrite(file, content)

    return spoil


def _named(name: str) -> Callable[[Path], None]:
    """A live.json that says of a file anywhere that it is a part of the run, or one that compaction has replaced."""

    def change(live: dict[str, Any]) -> None:
        live["tables"]["moments"]["parts"][0]["file"] = name

    return _rewritten("live.json", change)


def _condemned(run: Path) -> None:
    """A live.json that says that all files of other runs, and those outside, were replaced: to be deleted."""

    def change(live: dict[str, Any]) -> None:
        names = (
            "../../../good-a/run.json",
            "../../../../outside/canary.json",
            "r0-s1-000001.arrow",
            "000001-0.parquet",
        )
        live["tables"]["moments"]["replaced"] = dict.fromkeys(names, "0" * 16)

    _rewritten("live.json", change)(run)


NEST = "[" * NESTED + "]" * NESTED
LONG = '"' + "y" * 80_000_000 + '"'
LARGE = "1" + "0" * 400
JSON_PLACES = ("run.json", "live.json", "graph.json", "traces/000001/trace.json", "sessions/{session}")
BOMBS: dict[str, Callable[[Path], None]] = {
    "device-live": _device,
    "bomb-rows": _long_part,
    "bomb-groups": _many_groups,
    "bomb-text": _wide_part,
    "bomb-batch": _payload(_compressed),
    "forged-batch": _payload(lambda payload: payload[: len(payload) // 2] + bytes(len(payload) // 2)),
    "forged-schema": _payload(lambda payload: pa.schema([("step", pa.int64())]).serialize().to_pybytes()),
    "not-utf8": _written("run.json", "\udcff"),
    **{f"raw-{_word(place)}": _written(place, NEST) for place in JSON_PLACES},
    **{f"nested-{_word(place)}": _with(place, NEST) for place in JSON_PLACES},
    **{f"long-{_word(place)}": _with(place, LONG) for place in ("run.json", "live.json")},
    **{f"infinite-{_word(place)}": _changed(place, f'"{key}": ', f'"{key}": Infinity, "x": ') for place, key in _KEYS},
    **{f"large-{_word(place)}": _changed(place, f'"{key}": ', f'"{key}": {LARGE}, "x": ') for place, key in _KEYS},
    "infinite-trace": _rewritten("traces/000001/trace.json", lambda said: said.update(elapsed_s=math.inf)),
    "large-trace": _rewritten("traces/000001/trace.json", lambda said: said.update(elapsed_s=10**400)),
    "texts-trace": _rewritten(
        "traces/000001/trace.json", lambda said: said.update(elapsed_s="long", model=[[1]], step="x")
    ),
    "large-version": _changed("run.json", '"version": ', f'"version": {LARGE}, "x": '),
    **{
        f"named-{at}": _named(name)
        for at, name in enumerate(("../../../good-a/run.json", "/etc/passwd", "a\0b", "x" * 10_000))
    },
    "condemned": _condemned,
}
HARMLESS = {"surrogate": _changed("run.json", '"name": "', '"name": "\\ud800')}
IN_TRACES = ("infinite-trace", "large-trace", "texts-trace")  # where the list of traces says it
