"""Parts: sorted Parquet files written by compaction; their writer and their reader."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, cached_property, lru_cache, partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from layerscope.errors import FormatError
from layerscope.model import summary_spec
from layerscope.model.lru_cache import LRUCache
from layerscope.model.records import Ids, Ints
from layerscope.store.columns import dtype_of, lengths, numbers, values
from layerscope.store.files import TEMPORARY, Directory, checksum, damaged, opened, read_range
from layerscope.store.format import BY_SERIES, KEPT, NULLABLE, PARTS, SCHEMA, TEXTS, VERSION, PartEntry, check_column
from layerscope.store.manifests import check_version, unreadable
from layerscope.store.part_index import PartIndex, check_pages, described, whole_numbers
from layerscope.store.row_filter import RowFilter

ROW_GROUP = {table: 2_048 if table == "bits" else 16_384 for table in SCHEMA}
_FLOATS = ["scale", "value", *summary_spec.SUMS, *summary_spec.EXTREMES]
_GROUPS_AT_ONCE = 8
_GROUP_BYTES = 1 << 24  # of a row group in memory
_CONTENT_BYTES = 1 << 20  # of a row group: bytes read for one array
Task = Callable[[], list[pa.Table]]
Handle = Callable[[], int]  # returns the handle to read a file with
_UNREADABLE = (pa.ArrowException, OSError, ValueError, MemoryError)
#: Bounds of a part; docs/format.md states them.
MOST_FOOTER = 256 << 20
MOST_NUMBERS = 1 << 22  # of a column chunk, in lists
MOST_CHUNK = 1 << 26  # bytes of a numeric column chunk in memory
MOST_TEXT = 1 << 28  # of a chunk of strings or bytes, except kept values, which can be larger
MOST_KEPT = 3 << 30
MOST_EQUAL = 1 << 20  # rows of a table that is read whole, besides two per byte of the file
_FOOTER_END = 8  # its length, and the magic bytes


def write_part(directory: Directory, file: str, table: str, pieces: Iterable[pa.Table]) -> PartEntry:
    """Writes a part from sorted pieces of a few row groups each; returns its entry of live.json."""
    schema = SCHEMA[table].with_metadata({"format": "layerscope-part", "version": str(VERSION), "table": table})
    temporary, rows = file + TEMPORARY, 0
    with os.fdopen(directory.create(temporary, anew=True), "wb") as opened_file:
        with pq.ParquetWriter(opened_file, schema, **_options(table)) as writer:
            for piece in pieces:
                for group in _row_groups(piece.cast(schema)):
                    most = _GROUP_BYTES * group.num_rows // max(group.nbytes, 1)
                    writer.write_table(group, row_group_size=min(ROW_GROUP[table], max(most, 1)))
                rows += piece.num_rows
        opened_file.flush()
        os.fsync(opened_file.fileno())
    with directory.open(temporary) as handle:
        footer = _footer(handle, os.fstat(handle).st_size)
        metadata = pq.read_metadata(pa.BufferReader(footer))
        inside = described(metadata, table, lambda start, size: checksum(read_range(handle, start, size)))
        entry = PartEntry(file, rows, os.fstat(handle).st_size, checksum(footer), *inside)
    directory.rename(temporary, file)
    return entry


def _footer(handle: int, size: int) -> bytes:
    """The footer of a Parquet file; the result for a damaged file matches no checksum."""
    length = int.from_bytes(read_range(handle, size - _FOOTER_END, 4), "little") + _FOOTER_END
    return read_range(handle, size - length, length) if _FOOTER_END < length <= min(size, MOST_FOOTER) else b""


def footer_sum(directory: Directory, name: str) -> int:
    """The checksum of the footer of a part on disk."""
    with directory.open(name) as handle:
        return int(checksum(_footer(handle, os.fstat(handle).st_size)))


def _row_groups(piece: pa.Table) -> list[pa.Table]:
    """A piece split where its content fills a row group; rows without content are not split."""
    if "content" not in piece.column_names or piece.num_rows == 0:
        return [piece]
    sizes = np.concatenate([lengths(chunk) for chunk in piece["content"].chunks if len(chunk)])
    group = (np.cumsum(sizes) - sizes) // _CONTENT_BYTES
    starts = np.flatnonzero(np.diff(group, prepend=-1))
    return [piece.slice(a, b - a) for a, b in pairwise([*starts.tolist(), piece.num_rows])]


def _options(table: str) -> dict[str, object]:
    options: dict[str, object] = {"compression": "zstd", "compression_level": 3, "write_page_checksum": True}
    whole = whole_numbers(table)
    listed = [f"{name}.list.element" for name in ("samples", "shape") if name in SCHEMA[table].names]
    options["use_dictionary"] = [*whole, *listed]  # not for strings: a dictionary could expand without limit
    if table in BY_SERIES:
        options["use_dictionary"] = [*(name for name in whole if name != "step"), *listed]
        split = [name for name in _FLOATS if name in SCHEMA[table].names]
        options["use_byte_stream_split"] = split  # groups the bytes that rarely change
        options["column_encoding"] = {"step": "DELTA_BINARY_PACKED"}
        # A column that is constant in a row group is not read; float columns rarely are.
        options["write_statistics"] = whole
    return options


#: Cache of row groups: a series and its neighbors need the same ones.
RowGroupCache = LRUCache[object, pa.Table]


class _Verified:
    """A part as a file for Arrow: chunk by chunk, each verified by its checksum and copied into memory."""

    closed = False

    def __init__(self, part: ParquetPart) -> None:
        self.handle = -1
        self._part = part
        self._offset = 0

    def seek(self, offset: int, whence: int = 0) -> int:
        self._offset = (0, self._offset, self._part.size_bytes)[whence] + offset
        return self._offset

    def tell(self) -> int:
        return self._offset

    def read(self, count: int) -> bytes:
        given, column = self._part.index.chunks.get((self._offset, count), (-1, 0))
        content = read_range(self.handle, self._offset, count) if given >= 0 else b""
        if checksum(content) != given:
            raise OSError("its bytes do not match their checksum")
        self._part.check_pages(self._offset, column, content)
        return content

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        pass


class ParquetPart:
    """One compacted file, its row groups indexed by series and step. Each read opens the file; no handle stays open."""

    def __init__(self, folder: Path, table: str, entry: PartEntry, cache: RowGroupCache | None = None) -> None:
        self.path = folder / PARTS / table / entry.file
        self.entry = entry
        self.rows = entry.rows
        self.size_bytes = entry.size
        self._folder = folder
        self._cache = cache if cache is not None else RowGroupCache(0)
        self.table = self._table = table
        self._key = (self.path, entry.footer, checksum(entry.chunks))
        self._faults: dict[int, str] = {}  # row group → why it is skipped
        self._sound: set[int] = set()  # first bytes of chunks whose pages were checked
        self._idle: list[tuple[pq.ParquetFile, _Verified]] = []
        try:
            self._metadata = pq.read_metadata(pa.BufferReader(self._read_footer()))
            self._schema = self._metadata.schema.to_arrow_schema()
            self._names = frozenset(self._schema.names)
            self.index = PartIndex(entry, table, self._metadata.num_columns)
        except (FileNotFoundError, FormatError):
            raise
        except _UNREADABLE as error:
            raise self._damaged(_reason(error)) from None
        self._check()
        self._series, self._step = self.index.bounds("series"), self.index.bounds("step")

    def _damaged(self, reason: str) -> FormatError:
        return damaged(
            self.path, reason, f"Its {self.rows} rows are left out. Restore the file from a copy of the run."
        )

    def _read_footer(self) -> bytes:
        with opened(self._folder, PARTS, self._table) as directory, directory.open(self.entry.file) as handle:
            size = os.fstat(handle).st_size
            if size != self.entry.size:
                raise ValueError(f"it has {size} bytes instead of {self.entry.size}")
            footer = _footer(handle, size)
        if checksum(footer) != self.entry.footer:
            raise ValueError("its footer does not match its checksum")
        return footer

    @property
    def problem(self) -> str | None:
        """What was skipped in the part and why, or None."""
        if not self._faults:
            return None
        rows, (group, reason) = sum(map(self.rows_of, self._faults)), next(iter(self._faults.items()))
        return f"{self.path} is damaged: {rows} rows were left out (in row group {group} {reason})."

    @contextmanager
    def _reader(self, handle: Handle) -> Iterator[pq.ParquetFile]:
        """A reader that no other thread uses, because reading changes its state."""
        try:
            reader, source = self._idle.pop()
        except IndexError:
            source = _Verified(self)
            options = {"page_checksum_verification": True, "pre_buffer": False}
            reader = pq.ParquetFile(pa.PythonFile(source, mode="r"), metadata=self._metadata, **options)
        source.handle = handle()
        yield reader
        self._idle.append((reader, source))

    def check_pages(self, start: int, column: int, content: bytes) -> None:
        """Rejects a verified chunk that would take too much memory; each is checked once."""
        if start in self._sound:
            return
        plain = self._metadata.schema.column(column).physical_type == "BYTE_ARRAY"
        most = (MOST_KEPT if self._table in KEPT else MOST_TEXT) if plain else MOST_CHUNK
        try:
            check_pages(content, plain=plain, most_bytes=most, most_values=MOST_NUMBERS)
        except (ValueError, IndexError) as error:
            raise OSError(str(error)) from None
        self._sound.add(start)

    def _check(self) -> None:
        schema, metadata = self._schema, self._schema.metadata or {}
        about = {key.decode("utf-8", "replace"): text.decode("utf-8", "replace") for key, text in metadata.items()}
        if about.get("format") != "layerscope-part" or about.get("table") != self._table:
            raise self._damaged(f"it is Parquet, but no part of {self._table}")
        check_version(self.path, int(about["version"][:9]) if about.get("version", "").isdecimal() else None)
        if self._metadata.num_rows != self.rows:
            raise self._damaged(f"it has {self._metadata.num_rows} rows instead of {self.rows}")
        if self._table not in BY_SERIES and self.rows > MOST_EQUAL + 2 * self.size_bytes:
            raise self._damaged(f"it claims {self.rows} rows in {self.size_bytes} bytes")
        if len(self.index.rows) != self._metadata.num_row_groups:
            raise self._damaged(f"it has {self._metadata.num_row_groups} row groups")
        known = SCHEMA[self._table]
        if missing := [name for name in known.names if name not in schema.names and name not in NULLABLE]:
            raise self._damaged(f"it lacks the columns {', '.join(missing)}")
        for column in schema:
            if column.name in known.names and column.type != known.field(column.name).type:
                raise self._damaged(f"its column {column.name!r} is {column.type}")

    @property
    def largest_series(self) -> int:
        """The largest series number of any row, -1 if there is no row."""
        return int(self._series[1].max(initial=-1))

    @property
    def last_step(self) -> int:
        """The largest step of any row, -1 without rows; read from the index."""
        largest = int(self._step[1].max(initial=-1))
        if largest < np.iinfo(np.int64).max:
            return largest
        return int(self._whole("step", np.int64).max(initial=-1))  # its writer stored no statistics

    @cached_property
    def names(self) -> frozenset[str]:
        """Distinct values of the column `name`."""
        columns = (table["name"].unique() for task in self.tasks(["name"], RowFilter()) for table in task())
        return frozenset(name for names in columns for name in names.to_pylist())

    def series_numbers(self) -> Ids:
        """The series number of every row."""
        return np.asarray(self._whole("series", np.int32), np.int32)

    def step_numbers(self) -> Ints:
        """The step of every row."""
        return np.asarray(self._whole("step", np.int64), np.int64)

    def row_bytes(self) -> Ints:
        """Approximate bytes per row in memory: the average of its row group."""
        groups = [self._metadata.row_group(group) for group in range(self._metadata.num_row_groups)]
        rows = np.array(self.index.rows, np.int64)
        return np.repeat(np.array([group.total_byte_size for group in groups], np.int64) // np.maximum(rows, 1), rows)

    def _whole(self, column: str, dtype: type) -> Ids | Ints:
        arrays = [values(table[column]) for task in self.tasks([column], RowFilter()) for table in task()]
        return np.concatenate([np.zeros(0, dtype), *arrays])

    def groups(self, row_filter: RowFilter) -> list[int]:
        """The row groups that may contain a selected row."""
        groups: list[int] = np.flatnonzero(row_filter.blocks(self._series, self._step)).tolist()
        return [group for group in groups if group not in self._faults] if self._faults else groups

    def rows_of(self, group: int) -> int:
        """Rows of a row group."""
        return self.index.rows[group]

    def alike(self, group: int, columns: Iterable[str]) -> dict[str, int | None]:
        """The columns known to be constant in a row group, and their values."""
        return self.index.alike(group, [name for name in columns if name in self._names])

    def tasks(self, columns: list[str], row_filter: RowFilter) -> list[Task]:
        """Tasks that read the selected rows, with the columns in the given order, for several threads."""
        groups = self.groups(row_filter)
        shares = [groups[start : start + _GROUPS_AT_ONCE] for start in range(0, len(groups), _GROUPS_AT_ONCE)]
        return [partial(self.read, share, columns, row_filter) for share in shares]

    def read(self, groups: list[int], columns: list[str], row_filter: RowFilter) -> list[pa.Table]:
        """The selected rows of some row groups."""
        names = self._needed(columns, row_filter)
        with ExitStack() as stack:

            @cache
            def handle() -> int:  # opened at most once, if something is not cached
                directory = stack.enter_context(opened(self._folder, PARTS, self._table))
                return stack.enter_context(directory.open(self.entry.file))

            tables = [self._rows(group, names, row_filter, handle) for group in groups]
        return [self._complete(table, columns) for table in tables if table is not None and table.num_rows]

    def _rows(self, group: int, names: list[str], row_filter: RowFilter, handle: Handle) -> pa.Table | None:
        """The selected rows of a row group, or None if it is damaged."""
        try:
            return _chosen(self._group(group, names, row_filter, handle), names, row_filter)
        except (FileNotFoundError, FormatError):
            raise
        except _UNREADABLE as error:
            if isinstance(error, OSError) and error.errno:  # of the system, not of the file
                raise unreadable(self.path, error) from None
            self._faults[group] = _reason(error)
            return None

    def is_cached(self, columns: list[str], row_filter: RowFilter) -> bool:
        """Whether all needed row groups are cached, so that no thread is needed."""
        names = self._needed(columns, row_filter)
        return all((*self._key, group, *names) in self._cache for group in self.groups(row_filter))

    def _needed(self, columns: list[str], row_filter: RowFilter) -> list[str]:
        keys = () if row_filter.everything else ("series", "step")
        return [name for name in dict.fromkeys((*columns, *keys)) if name in self._names]

    def _group(self, group: int, names: list[str], row_filter: RowFilter, handle: Handle) -> pa.Table:
        def read() -> pa.Table:
            alike = self.alike(group, names)
            read = [name for name in names if name not in alike]
            with self._reader(handle) as reader:
                others = _trusted(reader.read_row_group(group, read, use_threads=False), self.rows_of(group))
            if not alike:
                return others
            rows = self.rows_of(group)
            kinds = {name: self._schema.field(name).type for name in alike}
            arrays = [_same(kinds[name], alike[name], rows) if name in alike else others[name] for name in names]
            return pa.table(arrays, names=names)

        one_series = row_filter.series is not None and len(row_filter.series) == 1
        return self._cache.get((*self._key, group, *names), read) if one_series else read()

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
    """A column of one repeated integer, or of nulls, shared by many row groups."""
    return pa.nulls(rows, kind) if value is None else numbers(np.full(rows, value, dtype_of(kind)))


def _trusted(table: pa.Table, rows: int) -> pa.Table:
    """A decoded table, after the checks that checksums do not cover."""
    if table.num_columns and table.num_rows != rows:
        raise ValueError(f"it has {table.num_rows} rows instead of {rows}")
    for name in table.column_names:
        if name in TEXTS:
            table[name].validate(full=True)
        check_column(name, table[name])
    return table


def _chosen(table: pa.Table, names: list[str], row_filter: RowFilter) -> pa.Table:
    if row_filter.everything:
        return table
    series, step = (values(table[name]) if name in names else None for name in ("series", "step"))
    hits = row_filter.rows(series, step)
    if hits is None or len(hits) == table.num_rows:
        return table
    if len(hits) and hits[-1] - hits[0] == len(hits) - 1:  # as for one series
        return table.slice(hits[0], len(hits))
    return table.take(numbers(hits))


def _reason(error: BaseException) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
