"""Parts: the sorted Parquet files that compaction makes, as they are written and as they are read."""

from __future__ import annotations

import mmap
import os
import stat
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property, lru_cache, partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from layerscope.records import Ids, Ints
from layerscope.stats import spec
from layerscope.store.columns import dtype_of, lengths, numbers, values
from layerscope.store.format import ASIDE, BY_SERIES, SCHEMA, VERSION, check_version, damaged, sync_folder
from layerscope.store.wanted import Wanted

ROW_GROUP = {table: 2_048 if table == "bits" else 16_384 for table in SCHEMA}
_FLOATS = ["scale", "value", *spec.SUMS, *spec.EXTREMES]
_GROUPS_AT_ONCE = 8
_CONTENT_BYTES = 1 << 20  # of a row group: what is read to find one array
Task = Callable[[], list[pa.Table]]
_UNREADABLE = (pa.ArrowException, OSError)


def write_part(path: Path, table: str, pieces: Iterable[pa.Table]) -> int:
    """Writes a part from sorted pieces, each a few row groups long; gives the number of rows."""
    schema = SCHEMA[table].with_metadata({"format": "layerscope-part", "version": str(VERSION), "table": table})
    aside = path.with_name(path.name + ASIDE)
    rows = 0
    with aside.open("wb") as file:
        with pq.ParquetWriter(file, schema, **_options(table)) as writer:
            for piece in pieces:
                for group in _row_groups(piece.cast(schema)):
                    writer.write_table(group, row_group_size=ROW_GROUP[table])
                rows += piece.num_rows
        file.flush()
        os.fsync(file.fileno())
    aside.rename(path)
    sync_folder(path.parent)
    return rows


def _row_groups(piece: pa.Table) -> list[pa.Table]:
    """A piece cut where its content would fill a row group; any number of rows without content is one."""
    if "content" not in piece.column_names or piece.num_rows == 0:
        return [piece]
    sizes = np.concatenate([lengths(chunk) for chunk in piece["content"].chunks if len(chunk)])
    group = (np.cumsum(sizes) - sizes) // _CONTENT_BYTES
    starts = np.flatnonzero(np.diff(group, prepend=-1))
    return [piece.slice(a, b - a) for a, b in pairwise([*starts.tolist(), piece.num_rows])]


def _options(table: str) -> dict[str, object]:
    options: dict[str, object] = {"compression": "zstd", "compression_level": 3, "write_page_checksum": True}
    if table in BY_SERIES:
        names = [name for name in SCHEMA[table].names if name not in ("step", "counts", "content")]
        split = [name for name in _FLOATS if name in names]
        listed = [f"{name}.list.element" for name in ("samples", "shape")]
        options["use_dictionary"] = [name for name in (*names, *listed) if name not in split]
        options["use_byte_stream_split"] = split  # the bytes that hardly change lie side by side
        options["column_encoding"] = {"step": "DELTA_BINARY_PACKED"}
        # What is alike in a whole row group need not be read; numbers that are not whole hardly ever are.
        options["write_statistics"] = [field.name for field in SCHEMA[table] if pa.types.is_integer(field.type)]
    return options


class Lately:
    """Row groups that were read last: what one series needs of them, its neighbours need too. Threads share it."""

    def __init__(self, most_bytes: int = 0) -> None:
        self._most_bytes = most_bytes
        self._tables: dict[object, tuple[pa.Table, int]] = {}  # and their bytes
        self._bytes = 0
        self._lock = threading.Lock()

    def holds(self, keys: Iterable[object]) -> bool:
        """Whether all of these are at hand."""
        return all(key in self._tables for key in keys)

    def get(self, key: object, read: Callable[[], pa.Table]) -> pa.Table:
        """The table of that key, read if it is not at hand."""
        with self._lock:
            kept = self._tables.pop(key, None)
            if kept is not None:
                self._tables[key] = kept  # as the newest
                return kept[0]
        table = read()
        size = table.nbytes
        with self._lock:
            self._bytes += size - self._tables.pop(key, (None, 0))[1]  # another thread may have read it, too
            self._tables[key] = (table, size)
            while self._bytes > self._most_bytes:
                self._bytes -= self._tables.pop(next(iter(self._tables)))[1]
        return table


class Part:
    """One compacted file: mapped, its row groups known by series and step."""

    def __init__(self, path: Path, table: str, rows: int, lately: Lately | None = None) -> None:
        self.path = path
        self.rows = rows
        self._lately = lately or Lately()
        self._table = table
        self._lost = (
            "Restore the file from a copy of the run, or take its entry out of live.json "
            f"to open the run without its {rows} rows."
        )
        if stat.S_ISLNK(path.lstat().st_mode):
            raise damaged(path, "it is a link", self._lost)
        try:
            with path.open("rb") as file:  # the mapping outlives the file's handle
                about = os.fstat(file.fileno())
                self._key = (path, about.st_ino, about.st_mtime_ns)  # a run may be made again in the same place
                self._mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self._content = pa.py_buffer(self._mapped)
            self._metadata = self._opened(None).metadata
            self._found = self._metadata.schema.to_arrow_schema()
        except FileNotFoundError:
            raise
        except (*_UNREADABLE, ValueError) as error:  # nothing can be mapped of an empty file
            raise damaged(path, _reason(error), self._lost) from None
        self._names = frozenset(self._found.names)
        self._whole_numbers = {
            column.name: place for place, column in enumerate(self._found) if pa.types.is_integer(column.type)
        }
        self._idle: list[pq.ParquetFile] = []
        self._check()
        self._series = self._bounds("series", np.int32)
        self._step = self._bounds("step", np.int64)

    def _opened(self, metadata: pq.FileMetaData | None) -> pq.ParquetFile:
        options = {"page_checksum_verification": True, "pre_buffer": False}
        return pq.ParquetFile(pa.BufferReader(self._content), metadata=metadata, **options)

    @contextmanager
    def _reader(self) -> Iterator[pq.ParquetFile]:
        """A reader of the file that no other thread has at the moment, since reading changes it."""
        try:
            reader = self._idle.pop()
        except IndexError:
            reader = self._opened(self._metadata)
        yield reader
        self._idle.append(reader)

    @property
    def size_bytes(self) -> int:
        """Bytes of the file."""
        return int(self._content.size)

    def _check(self) -> None:
        found = self._found
        about = {key.decode(): value.decode() for key, value in (found.metadata or {}).items()}
        if about.get("format") != "layerscope-part" or about.get("table") != self._table:
            raise damaged(self.path, f"it is Parquet, but no part of {self._table}", self._lost)
        check_version(self.path, int(about["version"]) if about.get("version", "").isdigit() else None)
        if self._metadata.num_rows != self.rows:
            raise damaged(self.path, f"it has {self._metadata.num_rows} rows instead of {self.rows}", self._lost)
        known = SCHEMA[self._table]
        for column in found:
            if column.name in known.names and column.type != known.field(column.name).type:
                raise damaged(self.path, f"its column {column.name!r} is {column.type}", self._lost)

    def _bounds(self, column: str, dtype: type) -> tuple[Ints, Ints]:
        """Smallest and largest value of a column in every row group; the widest range where it is not known."""
        groups, limits = self._metadata.num_row_groups, np.iinfo(dtype)
        low, high = np.full(groups, limits.min, dtype), np.full(groups, limits.max, dtype)
        if column in self._whole_numbers:
            place = self._whole_numbers[column]
            for group in range(groups):
                known = self._metadata.row_group(group).column(place).statistics
                if known is not None and known.has_min_max:
                    low[group], high[group] = known.min, known.max
        return low, high

    @property
    def largest_series(self) -> int:
        """The largest series number of any row, -1 if there is no row."""
        return int(self._series[1].max(initial=-1))

    @property
    def last_step(self) -> int:
        """The largest step of any row, -1 if there is no row; known without reading them."""
        largest = int(self._step[1].max(initial=-1))
        if largest < np.iinfo(np.int64).max:
            return largest
        return int(self._whole("step", np.int64).max(initial=-1))  # whoever wrote it kept no statistics

    @cached_property
    def names(self) -> frozenset[str]:
        """What occurs in the column `name`."""
        found = (table["name"].unique() for task in self.tasks(["name"], Wanted()) for table in task())
        return frozenset(name for names in found for name in names.to_pylist())

    def series_numbers(self) -> Ids:
        """The series number of every row."""
        return np.asarray(self._whole("series", np.int32), np.int32)

    def step_numbers(self) -> Ints:
        """The step of every row."""
        return np.asarray(self._whole("step", np.int64), np.int64)

    def row_bytes(self) -> Ints:
        """About how many bytes every row takes in memory: as many as the others of its row group."""
        groups = [self._metadata.row_group(group) for group in range(self._metadata.num_row_groups)]
        rows = np.array([group.num_rows for group in groups], np.int64)
        return np.repeat(np.array([group.total_byte_size for group in groups], np.int64) // np.maximum(rows, 1), rows)

    def _whole(self, column: str, dtype: type) -> Ids | Ints:
        found = [values(table[column]) for task in self.tasks([column], Wanted()) for table in task()]
        return np.concatenate([np.zeros(0, dtype), *found])

    def groups(self, wanted: Wanted) -> list[int]:
        """The row groups that may hold a wanted row."""
        found: list[int] = np.flatnonzero(wanted.blocks(self._series, self._step)).tolist()
        return found

    def rows_of(self, group: int) -> int:
        """Rows of a row group."""
        return int(self._metadata.row_group(group).num_rows)

    def alike(self, group: int, columns: Iterable[str]) -> dict[str, int | None]:
        """Those of the columns that are known to be the same in all rows of a row group, and what they are there."""
        about = self._metadata.row_group(group)
        found: dict[str, int | None] = {}
        for name in columns:
            place = self._whole_numbers.get(name)
            kept = None if place is None else about.column(place).statistics
            if kept is None or not kept.has_null_count:
                continue  # an older writer kept none
            if kept.null_count == about.num_rows:
                found[name] = None
            elif kept.null_count == 0 and kept.has_min_max and kept.min == kept.max:
                found[name] = int(kept.min)
        return found

    def tasks(self, columns: list[str], wanted: Wanted) -> list[Task]:
        """The reading of the wanted rows, columns in the order asked for, in pieces that threads can share."""
        groups = self.groups(wanted)
        shares = [groups[start : start + _GROUPS_AT_ONCE] for start in range(0, len(groups), _GROUPS_AT_ONCE)]
        return [partial(self.read, share, columns, wanted) for share in shares]

    def read(self, groups: list[int], columns: list[str], wanted: Wanted) -> list[pa.Table]:
        """The wanted rows of some row groups."""
        names = self._needed(columns, wanted)
        try:
            tables = [_chosen(self._group(group, names, wanted), names, wanted) for group in groups]
        except _UNREADABLE as error:
            raise damaged(self.path, _reason(error), self._lost) from None
        if hasattr(mmap, "MADV_DONTNEED"):  # what was read stays in the system's cache, but is none of our memory
            self._mapped.madvise(mmap.MADV_DONTNEED)
        return [self._complete(table, columns) for table in tables if table.num_rows]

    def at_hand(self, columns: list[str], wanted: Wanted) -> bool:
        """Whether all wanted rows were read lately: no thread is worth waking for them."""
        names = self._needed(columns, wanted)
        return self._lately.holds((*self._key, group, *names) for group in self.groups(wanted))

    def _needed(self, columns: list[str], wanted: Wanted) -> list[str]:
        keys = () if wanted.everything else ("series", "step")
        return [name for name in dict.fromkeys((*columns, *keys)) if name in self._names]

    def _group(self, group: int, names: list[str], wanted: Wanted) -> pa.Table:
        def read() -> pa.Table:
            alike = self.alike(group, names)
            with self._reader() as reader:
                others = reader.read_row_group(group, [name for name in names if name not in alike], use_threads=False)
            if not alike:
                return others
            rows = self.rows_of(group)
            kinds = {name: self._found.field(name).type for name in alike}
            arrays = [_same(kinds[name], alike[name], rows) if name in alike else others[name] for name in names]
            return pa.table(arrays, names=names)

        one_series = wanted.series is not None and len(wanted.series) == 1
        return self._lately.get((*self._key, group, *names), read) if one_series else read()

    def _complete(self, table: pa.Table, columns: list[str]) -> pa.Table:
        if table.column_names == columns:
            return table.replace_schema_metadata(None)
        kinds = {name: SCHEMA[self._table].field(name).type for name in columns}
        arrays = [
            table.column(name) if name in table.column_names else pa.nulls(table.num_rows, kinds[name])
            for name in columns
        ]
        return pa.table(arrays, names=columns)


@lru_cache(32)
def _same(kind: pa.DataType, value: int | None, rows: int) -> pa.Array:
    """A column of one whole number, or of nulls; the same one serves many row groups."""
    return pa.nulls(rows, kind) if value is None else numbers(np.full(rows, value, dtype_of(kind)))


def _chosen(table: pa.Table, names: list[str], wanted: Wanted) -> pa.Table:
    if wanted.everything:
        return table
    series, step = (values(table[name]) if name in names else None for name in ("series", "step"))
    hits = wanted.rows(series, step)
    if hits is None or len(hits) == table.num_rows:
        return table
    if len(hits) and hits[-1] - hits[0] == len(hits) - 1:  # as those of one series are
        return table.slice(hits[0], len(hits))
    return table.take(numbers(hits))


def _reason(error: BaseException) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
