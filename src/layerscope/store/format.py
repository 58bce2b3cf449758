"""Names, schemas and JSON files of a run folder; docs/format.md is the specification."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from layerscope.model import summary_spec
from layerscope.model.records import Kind, Mode, Phase

VERSION = 1
KEPT = ("sample_stats", "values")  # values and statistics of samples: rows of any size
BY_SERIES = ("moments", "custom_statistics", "bits", *KEPT)  # large tables: readers locate rows by series and step
TABLES = ("series", "dependencies", *BY_SERIES, "metrics", "overhead", "events", "steps")

RUN = "run.json"
LIVE = "live.json"
GRAPH = "graph.json"
SESSIONS = "sessions"
SEGMENTS = "segments"
PARTS = "tables"
COMPACT_LOCK = "compact.lock"

_SESSION_NAME = re.compile(r"r([0-9]{1,6})-s([0-9]{1,6})\.json")
_SEGMENT_NAME = re.compile(r"r([0-9]{1,6})-s([0-9]{1,6})-([0-9]{6,9})\.arrow")
_PART_NAME = re.compile(r"[0-9]{6,15}-[0-9]{1,9}\.parquet")
_LOCK_NAME = re.compile(r"writer-r[0-9]{1,6}\.lock")

_TEXT = pa.string()
_MOMENTS = [(name, pa.int64() if name in summary_spec.COUNTS else pa.float64()) for name in summary_spec.MOMENTS]
_SAMPLED = [("step", pa.int64()), ("series", pa.int32()), ("samples", pa.list_(pa.int64()))]
_COLUMNS: dict[str, list[tuple[str, pa.DataType]]] = {
    "series": [
        ("series", pa.int32()),
        *((name, _TEXT) for name in ("site", "port", "kind", "mode", "context", "local", "phase", "dtype")),
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
    "custom_statistics": [("step", pa.int64()), ("series", pa.int32()), ("name", _TEXT), ("value", pa.float64())],
    "bits": [("step", pa.int64()), ("series", pa.int32()), ("m", pa.uint8()), ("counts", pa.binary())],
    "metrics": [
        ("step", pa.int64()),
        ("name", _TEXT),
        ("value", pa.float64()),
        ("time_s", pa.float64()),
        ("type", _TEXT),  # null in files of writers without step types
    ],
    "overhead": [
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

TEXTS = frozenset(name for columns in _COLUMNS.values() for name, kind in columns if kind == _TEXT)
#: Columns that may have nulls; in any other a null is damage.
NULLABLE = frozenset(("alias", "scale", "value", "time_s", "type", "context", *summary_spec.MOMENTS))
#: Allowed texts of some columns; any other is damage.
_CHOICES = {name: frozenset(choices) for name, choices in (("kind", Kind), ("mode", Mode), ("phase", Phase))}
#: Item types of the columns of `steps` that are JSON lists; `dependencies` parses those of graphs.
_LISTS: dict[str, type] = {"graphs": int, "samples": int, "categories": str, "losses": str}

#: Columns of each table in a segment; rank and session are in its name.
SEGMENT_SCHEMA = {table: pa.schema(columns) for table, columns in _COLUMNS.items()}
#: Columns of each table in Parquet and in results of a reader.
SCHEMA = {
    table: pa.schema([("rank", pa.int32()), ("session", pa.int32()), *columns]) for table, columns in _COLUMNS.items()
}


@dataclass(frozen=True, slots=True, order=True)
class SegmentName:
    """A parsed segment name; sorts in the order of recording."""

    session: int
    number: int
    rank: int

    def __str__(self) -> str:
        return f"r{self.rank}-s{self.session}-{self.number:06d}.arrow"

    @property
    def of(self) -> str:
        """The session as named in live.json."""
        return f"r{self.rank}-s{self.session}"

    @staticmethod
    def parse(name: str) -> SegmentName | None:
        """The parsed name, or None if it is not that of a segment."""
        match = _SEGMENT_NAME.fullmatch(name)
        parsed = match and SegmentName(rank=int(match[1]), session=int(match[2]), number=int(match[3]))
        return parsed if parsed and str(parsed) == name else None


@dataclass(frozen=True, slots=True, order=True)
class SessionName:
    """One recorder that wrote to a run."""

    rank: int
    session: int

    def __str__(self) -> str:
        return f"{self.of}.json"

    @property
    def of(self) -> str:
        """The session as named in live.json."""
        return f"r{self.rank}-s{self.session}"

    @staticmethod
    def parse(name: str) -> SessionName | None:
        """The parsed name, or None if it is not that of a session."""
        match = _SESSION_NAME.fullmatch(name)
        parsed = match and SessionName(int(match[1]), int(match[2]))
        return parsed if parsed and str(parsed) == name else None


@dataclass(frozen=True, slots=True)
class PartEntry:
    """A live compacted file: rows, bytes, checksum of the footer, and an index of its content."""

    file: str
    rows: int
    size: int  # in bytes
    footer: int
    chunks: bytes  # see docs/format.md
    groups: bytes


@dataclass(frozen=True, slots=True)
class TableFiles:
    """The entry of one table in live.json."""

    parts: tuple[PartEntry, ...] = ()
    replaced: Mapping[str, int] = field(
        default_factory=dict
    )  # segments and parts that may be removed → their checksums
    compacted: Mapping[str, int] = field(default_factory=dict)  # session → its last compacted segment


@dataclass(frozen=True, slots=True)
class Live:
    """The compacted files that count."""

    generation: int = 0
    tables: Mapping[str, TableFiles] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()  # tables unknown to this version

    def of(self, table: str) -> TableFiles:
        """The entry of one table."""
        return self.tables.get(table, TableFiles())


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of run.json."""

    name: str
    id: str
    created_s: float
    layerscope: str
    info: Mapping[str, Any]  # of the user: any JSON


def check_column(name: str, column: pa.Array | pa.ChunkedArray) -> None:
    """Raise ValueError for invalid values in a column: a checksum detects damage, not malice."""
    if column.null_count and name not in NULLABLE:
        raise ValueError(f"its column {name!r} has nulls")
    if name in _CHOICES and (strange := set(column.unique().to_pylist()) - _CHOICES[name]):
        raise ValueError(f"its column {name!r} says {min(strange)!r}")
    if name in _LISTS:
        for text in column.unique().to_pylist() if pa.types.is_string(column.type) else ():
            if not _is_list(text, _LISTS[name]):
                raise ValueError(f"its column {name!r} says {text[:100]!r}, which is no list")


def _is_list(text: str, of: type) -> bool:
    try:
        items = json.loads(text or "[]")
    except (ValueError, RecursionError):
        return False
    return isinstance(items, list) and all(type(each) is of for each in items)


def lock_name(rank: int) -> str:
    """Name of the lock file of a rank's recorder."""
    return f"writer-r{rank}.lock"


def part_name(generation: int, k: int) -> str:
    """Name of the k-th part of a table in a compaction."""
    return f"{generation:06d}-{k}.parquet"


def is_part_name(name: str) -> bool:
    """Whether a file name is that of a part."""
    return _PART_NAME.fullmatch(name) is not None


def is_lock_name(name: str) -> bool:
    """Whether a file name is that of a rank's lock."""
    return _LOCK_NAME.fullmatch(name) is not None
