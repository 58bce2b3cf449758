"""Segments: the append-only Arrow streams of one table, as they are written and as they are read."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from layerscope.records import Ids, Ints
from layerscope.store.columns import lengths, numbers, values
from layerscope.store.format import SCHEMA, SEGMENT_SCHEMA, SEGMENTS, VERSION, SegmentName, check_version, damaged
from layerscope.store.wanted import Wanted

ROLL_BYTES = 64 << 20
ROLL_S = 60.0
END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_FEW_RUNS = 8  # cutting slices costs less than a gather for as many runs of rows
_KEYS_OF_NAME = ("rank", "session")  # columns that a segment has in its name


class SegmentWriter:
    """Appends record batches of one table, and rolls to a new segment when one is full or old."""

    def __init__(self, folder: Path, table: str, rank: int, session: int) -> None:
        self._folder = folder / SEGMENTS / table
        self._names = (rank, session)
        about = {"format": "layerscope-segment", "version": VERSION, "table": table, "rank": rank, "session": session}
        metadata = {key: str(value) for key, value in about.items()}
        self._head = SEGMENT_SCHEMA[table].with_metadata(metadata).serialize().to_pybytes()
        self._number = 0
        self._handle: int | None = None
        self._size = 0
        self._batches = 0
        self._opened_s = 0.0

    def write(self, batch: pa.RecordBatch) -> None:
        """Hands one batch to the system; after an OSError the batch is not in the table."""
        if self._handle is not None and (self._size >= ROLL_BYTES or time.monotonic() - self._opened_s >= ROLL_S):
            self.end()
        try:
            if self._handle is None:
                self._open()
            self._append(memoryview(batch.serialize()))
        except OSError:
            self.abandon()
            raise
        self._batches += 1

    def end(self) -> None:
        """Closes the segment, marked as whole."""
        try:
            if self._handle is not None:
                self._append(memoryview(END_OF_STREAM))
        finally:
            self._close()

    def abandon(self) -> None:
        """Closes the segment as it is; the next batch goes to a new one."""
        opened = self._handle is not None
        with contextlib.suppress(OSError):  # it is given up, whether or not the system takes note of that
            self._close()
            if opened and self._batches == 0:  # there is nothing in it to read
                self._path().unlink(missing_ok=True)

    def _path(self) -> Path:
        rank, session = self._names
        return self._folder / str(SegmentName(session=session, number=self._number, rank=rank))

    def _open(self) -> None:
        self._number += 1
        self._size = self._batches = 0
        self._handle = os.open(self._path(), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        self._opened_s = time.monotonic()
        self._append(memoryview(self._head))

    def _append(self, content: memoryview) -> None:
        assert self._handle is not None
        while len(content):
            written = os.write(self._handle, content)
            self._size += written
            content = content[written:]

    def _close(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            os.close(handle)


class _Batch(NamedTuple):
    """One record batch, with the columns by which rows are found."""

    rows: pa.RecordBatch
    step: Ints | None
    series: Ids | None


class Segment:
    """The whole batches of one segment; follows it while it grows."""

    def __init__(self, path: Path, table: str, name: SegmentName) -> None:
        self.path = path
        self.name = name
        self._table = table
        self._schema: pa.Schema | None = None
        self._batches: list[_Batch] = []
        self._position = 0
        self._ended = False

    @property
    def rows(self) -> int:
        """Rows read so far."""
        return sum(batch.rows.num_rows for batch in self._batches)

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole messages read so far."""
        return self._position

    def follow(self) -> None:
        """Takes in the batches that were appended since the last look. FileNotFoundError if the segment is gone."""
        if self._ended or self.path.stat().st_size <= self._position:
            return
        with pa.memory_map(str(self.path)) as file:  # the mapping outlives the file's handle
            content = pa.BufferReader(file.read_buffer().slice(self._position))
        start = self._position
        try:
            if self._schema is None:
                self._schema = self._checked(pa.ipc.read_schema(content))
                self._position = start + content.tell()
            while True:
                batch = pa.ipc.read_record_batch(pa.ipc.read_message(content), self._schema)
                self._batches.append(self._indexed(batch))
                self._position = start + content.tell()
        except EOFError:  # a clean end: of what there is, or of the stream
            self._ended = self._schema is not None and content.tell() - (self._position - start) == len(END_OF_STREAM)
        except (pa.ArrowInvalid, OSError):
            pass  # a cut tail: being written just now, or its writer was killed

    def _checked(self, schema: pa.Schema) -> pa.Schema:
        about = {key.decode(): value.decode() for key, value in (schema.metadata or {}).items()}
        if about.get("format") != "layerscope-segment" or not about.get("version", "").isdigit():
            raise damaged(self.path, "it is an Arrow stream, but no segment of a run", "Remove it from the run.")
        check_version(self.path, int(about["version"]))
        expected = {"table": self._table, "rank": str(self.name.rank), "session": str(self.name.session)}
        if any(about.get(key) != value for key, value in expected.items()):
            raise damaged(self.path, "its name does not fit its content", "Give it back its name.")
        known = SEGMENT_SCHEMA[self._table]
        for column in schema:
            if column.name in known.names and column.type != known.field(column.name).type:
                raise damaged(self.path, f"its column {column.name!r} is {column.type}")
        return schema

    def _indexed(self, batch: pa.RecordBatch) -> _Batch:
        step, series = (
            values(batch.column(name)) if name in batch.schema.names else None for name in ("step", "series")
        )
        return _Batch(batch, step, series)

    @property
    def last_step(self) -> int:
        """The largest step of any row, -1 if there is no row."""
        return max((int(batch.step.max(initial=-1)) for batch in self._batches if batch.step is not None), default=-1)

    @property
    def names(self) -> frozenset[str]:
        """What occurs in the column `name`."""
        found = (table["name"].unique() for table in self.read(["name"], Wanted()))
        return frozenset(name for names in found for name in names.to_pylist())

    def alike(self, group: int, columns: Iterable[str]) -> dict[str, int | None]:
        """Those of the columns that are the same in all rows; a segment is one group of rows."""
        of_name = {"rank": self.name.rank, "session": self.name.session}
        return {name: of_name[name] for name in columns if name in of_name}

    def series_numbers(self) -> Ids:
        """The series number of every row, in the order of writing."""
        columns = [batch.series for batch in self._batches if batch.series is not None]
        return np.concatenate(columns) if columns else np.zeros(0, np.int32)

    def step_numbers(self) -> Ints:
        """The step of every row."""
        columns = [batch.step for batch in self._batches if batch.step is not None]
        return np.concatenate(columns) if columns else np.zeros(0, np.int64)

    def row_bytes(self) -> Ints:
        """About how many bytes every row takes; those of `content` to the byte."""
        sizes = [_row_bytes(batch.rows) for batch in self._batches]
        return np.concatenate(sizes) if sizes else np.zeros(0, np.int64)

    def read(self, columns: list[str], wanted: Wanted) -> list[pa.Table]:
        """The wanted rows, with the columns in the order asked for."""
        found: list[pa.RecordBatch] = []
        own = [name for name in columns if self._schema is not None and name in self._schema.names]
        for batch in list(self._batches):  # another thread may be following
            hits = wanted.rows(batch.series, batch.step)
            if hits is None:
                found.append(batch.rows.select(own))
            elif len(hits):
                found.extend(_pick(batch.rows.select(own), hits))
        return [self._complete(pa.Table.from_batches(found), columns)] if found else []

    def _complete(self, table: pa.Table, columns: list[str]) -> pa.Table:
        """The table with rank and session from the name, and nulls for columns that an older writer did not know."""
        constants = {"rank": self.name.rank, "session": self.name.session}
        arrays = []
        for name in columns:
            kind = SCHEMA[self._table].field(name).type
            if name in constants:
                arrays.append(numbers(np.full(table.num_rows, constants[name], np.int32)))
            elif name in table.column_names:
                arrays.append(table.column(name))
            else:
                arrays.append(pa.nulls(table.num_rows, kind))
        return pa.table(arrays, names=columns)


def _row_bytes(batch: pa.RecordBatch) -> Ints:
    if "content" not in batch.schema.names:
        return np.full(batch.num_rows, batch.nbytes // max(batch.num_rows, 1), np.int64)
    content = lengths(batch.column("content"))
    others: int = (batch.nbytes - int(content.sum())) // max(batch.num_rows, 1)
    return content + others


def _pick(batch: pa.RecordBatch, hits: Ints) -> list[pa.RecordBatch]:
    """The rows at the given ascending places."""
    breaks = np.flatnonzero(np.diff(hits) != 1) + 1
    if len(breaks) >= _FEW_RUNS:
        return [batch.take(numbers(hits))]
    starts, ends = np.append(0, breaks), np.append(breaks, len(hits))
    return [batch.slice(hits[a], b - a) for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]
