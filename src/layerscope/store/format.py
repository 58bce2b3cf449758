"""Names, schemas and JSON files of a run folder; docs/format.md is the specification."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from layerscope.errors import FormatError
from layerscope.stats import spec
from layerscope.store.text import json_text

VERSION = 1
KEPT = ("sample_stats", "values")  # of single samples: rows of any size
BY_SERIES = ("moments", "extras", "bits", *KEPT)  # the large ones: their rows are found by series and step
TABLES = ("series", "dependencies", *BY_SERIES, "kpis", "costs", "events", "steps")

RUN = "run.json"
LIVE = "live.json"
GRAPH = "graph.json"
SESSIONS = "sessions"
SEGMENTS = "segments"
PARTS = "tables"
COMPACT_LOCK = "compact.lock"
ASIDE = ".aside"  # ending of a file not yet renamed to what it will be

_SESSION_NAME = re.compile(r"r(\d+)-s(\d+)\.json")
_SEGMENT_NAME = re.compile(r"r(\d+)-s(\d+)-(\d+)\.arrow")
_PART_NAME = re.compile(r"\d{6,}-\d+\.parquet")

_TEXT = pa.string()
_MOMENTS = [(name, pa.int64() if name in spec.COUNTS else pa.float64()) for name in spec.MOMENTS]
_SAMPLED = [("step", pa.int64()), ("series", pa.int32()), ("samples", pa.list_(pa.int64()))]
_COLUMNS: dict[str, list[tuple[str, pa.DataType]]] = {
    "series": [
        ("series", pa.int32()),
        *((name, _TEXT) for name in ("site", "port", "kind", "mode", "context", "local", "reading", "dtype")),
        ("shape", pa.list_(pa.int64())),
    ],
    "moments": [
        ("step", pa.int64()),
        ("series", pa.int32()),
        ("alias", pa.int32()),
        ("scale", pa.float64()),
        ("merged", pa.int32()),
        *_MOMENTS,
    ],
    "extras": [("step", pa.int64()), ("series", pa.int32()), ("name", _TEXT), ("value", pa.float64())],
    "bits": [("step", pa.int64()), ("series", pa.int32()), ("m", pa.uint8()), ("counts", pa.binary())],
    "kpis": [
        ("step", pa.int64()),
        ("name", _TEXT),
        ("value", pa.float64()),
        ("time_s", pa.float64()),
        ("type", _TEXT),  # null in files of writers that knew no types of steps
    ],
    "costs": [
        ("step", pa.int64()),
        ("step_s", pa.float64()),
        ("recording_s", pa.float64()),
        ("summaries", pa.int64()),
        ("bytes", pa.int64()),
    ],
    "events": [("step", pa.int64()), ("level", _TEXT), ("text", _TEXT), ("time_s", pa.float64())],
    "steps": [
        ("step", pa.int64()),
        ("type", _TEXT),
        ("iterations", pa.int64()),
        ("batch", pa.int64()),
        *((name, _TEXT) for name in ("graphs", "samples", "categories", "losses")),  # lists as JSON
        ("reason", _TEXT),
    ],
    "dependencies": [("number", pa.int64()), ("nodes", _TEXT), ("links", _TEXT)],  # lists as JSON
    "values": [
        *_SAMPLED,
        ("dtype", _TEXT),
        ("shape", pa.list_(pa.int64())),
        ("content", pa.large_binary()),
    ],
    "sample_stats": [*_SAMPLED, ("content", pa.large_binary())],
}

#: Columns of each table in a segment, where rank and session are in the name.
SEGMENT_SCHEMA = {table: pa.schema(columns) for table, columns in _COLUMNS.items()}
#: Columns of each table in Parquet and in what a reader returns.
SCHEMA = {
    table: pa.schema([("rank", pa.int32()), ("session", pa.int32()), *columns]) for table, columns in _COLUMNS.items()
}


@dataclass(frozen=True, slots=True, order=True)
class SegmentName:
    """What the name of a segment says; sorts in the order of recording."""

    session: int
    number: int
    rank: int

    def __str__(self) -> str:
        return f"r{self.rank}-s{self.session}-{self.number:06d}.arrow"

    @staticmethod
    def parse(name: str) -> SegmentName | None:
        """The parsed name, None if it is no segment's."""
        found = _SEGMENT_NAME.fullmatch(name)
        return found and SegmentName(rank=int(found[1]), session=int(found[2]), number=int(found[3]))


@dataclass(frozen=True, slots=True, order=True)
class SessionName:
    """One recorder's turn at a run."""

    rank: int
    session: int

    def __str__(self) -> str:
        return f"r{self.rank}-s{self.session}.json"

    @staticmethod
    def parse(name: str) -> SessionName | None:
        """The parsed name, None if it is no session's."""
        found = _SESSION_NAME.fullmatch(name)
        return found and SessionName(int(found[1]), int(found[2]))


@dataclass(frozen=True, slots=True)
class PartEntry:
    """One compacted file that counts, and the segments whose rows it holds."""

    file: str
    rows: int
    replaces: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Live:
    """Which compacted files count."""

    generation: int = 0
    parts: Mapping[str, tuple[PartEntry, ...]] = field(default_factory=dict)

    def of(self, table: str) -> tuple[PartEntry, ...]:
        """The parts of one table, in the order of recording."""
        return self.parts.get(table, ())

    def replaced(self, table: str) -> frozenset[str]:
        """Names of the segments whose rows the parts of a table hold."""
        return frozenset(name for part in self.of(table) for name in part.replaces)


@dataclass(frozen=True, slots=True)
class Manifest:
    """What run.json says."""

    name: str
    id: str
    created_s: float
    layerscope: str
    info: Mapping[str, Any]  # the user's own: any JSON


def lock_name(rank: int) -> str:
    """Name of the file a rank's recorder holds a lock on."""
    return f"writer-r{rank}.lock"


def part_name(generation: int, k: int) -> str:
    """Name of the k-th part a compaction makes of a table."""
    return f"{generation:06d}-{k}.parquet"


def is_part_name(name: str) -> bool:
    """Whether a file name is one that a compaction gives."""
    return _PART_NAME.fullmatch(name) is not None


def sync_folder(folder: Path) -> None:
    """Makes renames and removals in a folder survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def replace_file(path: Path, content: bytes) -> None:
    """Puts a file in place as a whole: a reader sees the old one or the new one."""
    aside = path.with_name(f"{path.name}{ASIDE}-{os.getpid()}")
    with aside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)
    sync_folder(path.parent)


def write_json(path: Path, kind: str, content: Mapping[str, Any]) -> None:
    """Replaces a JSON file of the run, marked with its format and version."""
    marked = {"format": f"layerscope-{kind}", "version": VERSION, **content}
    replace_file(path, json_text(marked, indent=1).encode() + b"\n")


def read_json(path: Path, kind: str) -> dict[str, Any]:
    """Content of a JSON file of the run, after a look at its format and version."""
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise damaged(path, f"it is no whole JSON ({error})") from None
    if not isinstance(content, dict) or content.get("format") != f"layerscope-{kind}":
        raise damaged(path, f'it does not say "format": "layerscope-{kind}"')
    check_version(path, content.get("version"))
    return content


def check_version(path: Path, version: object) -> None:
    """Refuses a file of a format newer than this layerscope knows."""
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise damaged(path, f"its version is {version!r}")
    if version > VERSION:
        raise FormatError(
            f"{path} has format version {version}; this layerscope reads up to {VERSION}. "
            "Update layerscope to open this run."
        )


def damaged(path: Path, reason: str, way_out: str = "Restore the file from a copy of the run.") -> FormatError:
    """The error for a file that cannot be what it should be."""
    return FormatError(f"{path} is damaged: {reason}. {way_out}")


def read_manifest(folder: Path) -> Manifest:
    """What run.json says of the run."""
    path = folder / RUN
    try:
        content = read_json(path, "run")
        return Manifest(
            name=str(content["name"]),
            id=str(content["id"]),
            created_s=float(content["created_s"]),
            layerscope=str(content["layerscope"]),
            info=dict(content.get("info") or {}),
        )
    except (FileNotFoundError, NotADirectoryError):
        raise FormatError(
            f"{folder} is not a run: it has no {RUN}. Give the folder that a recorder wrote, "
            "or `layerscope ui` a folder of runs."
        ) from None
    except OSError as error:
        raise FormatError(f"{path} cannot be read: {error.strerror}. Check its permissions.") from None
    except (KeyError, TypeError, ValueError) as error:
        raise damaged(path, f"a key is missing or wrong ({error})") from None


def read_live(folder: Path) -> Live:
    """Which compacted files of the run count."""
    path = folder / LIVE
    try:
        content = read_json(path, "live")
        parts = {
            str(table): tuple(_entry(path, entry) for entry in entries) for table, entries in content["parts"].items()
        }
        return Live(int(content["generation"]), parts)
    except FileNotFoundError:
        raise damaged(path, "it is missing") from None
    except OSError as error:
        raise FormatError(f"{path} cannot be read: {error.strerror}. Check its permissions.") from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise damaged(path, f"a key is missing or wrong ({error})") from None


def _entry(path: Path, entry: Mapping[str, Any]) -> PartEntry:
    file, replaces = str(entry["file"]), tuple(str(name) for name in entry["replaces"])
    if not is_part_name(file) or not all(SegmentName.parse(name) for name in replaces):
        raise damaged(path, f"it names files that no part or segment can have ({file!r})")
    return PartEntry(file, int(entry["rows"]), replaces)


def write_live(folder: Path, live: Live) -> None:
    """Replaces live.json."""
    parts = {
        table: [{"file": part.file, "rows": part.rows, "replaces": list(part.replaces)} for part in entries]
        for table, entries in live.parts.items()
    }
    write_json(folder / LIVE, "live", {"generation": live.generation, "parts": parts})
