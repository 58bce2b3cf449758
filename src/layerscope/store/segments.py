"""Segments: append-only files of one table, framed Arrow batches; their writer and their reader."""

from __future__ import annotations

import contextlib
import os
import struct
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from xxhash import xxh3_64

from layerscope.errors import FormatError
from layerscope.model.records import Ids, Ints
from layerscope.store.columns import is_compressed, lengths, numbers, values
from layerscope.store.files import Directory, checksum, damaged, opened, read_buffer, read_range
from layerscope.store.format import NULLABLE, SCHEMA, SEGMENT_SCHEMA, SEGMENTS, VERSION, SegmentName, check_column
from layerscope.store.manifests import check_version
from layerscope.store.row_filter import RowFilter

ROLL_BYTES = 64 << 20
ROLL_S = 60.0
MAGIC = b"\xabLSframe"
FRAME = struct.Struct("<8sQQQ")  # magic bytes, size of the payload, its checksum, checksum of these three
MOST_BYTES = 1 << 32  # of a segment; docs/format.md states it
_SOUGHT = 1000  # candidate positions of the next frame after a damaged one
_FEW_RUNS = 8  # up to this many runs of rows, slicing costs less than a gather


def framed(payload: memoryview) -> bytes:
    """The frame header of a payload."""
    head = FRAME.pack(MAGIC, len(payload), checksum(payload), 0)[:24]
    return head + checksum(head).to_bytes(8, "little")


def _frame_at(content: bytes | memoryview, offset: int) -> tuple[int, int] | None:
    """Size and checksum of the payload of the frame at an offset, or None."""
    magic, size, given, own = FRAME.unpack_from(content, offset)
    return (size, given) if magic == MAGIC and own == checksum(content[offset : offset + 24]) else None


def digest_of(directory: Directory, name: str) -> int:
    """`Segment.digest` of a file: the checksum of the headers of its whole frames."""
    digest, offset = xxh3_64(), 0
    with directory.open(name) as handle:
        size = os.fstat(handle).st_size
        while len(head := read_range(handle, offset, FRAME.size)) == FRAME.size:
            frame = _frame_at(head, 0)
            if frame is None or offset + FRAME.size + frame[0] > size:
                break
            digest.update(head)
            offset += FRAME.size + frame[0]
    return int(digest.intdigest())


class SegmentWriter:
    """Appends record batches of one table, and starts a new segment if the current one is full or old."""

    def __init__(self, folder: Path, run: str, table: str, name: tuple[int, int]) -> None:
        self._folder = folder
        self._table = table
        self._rank, self._session = name
        about = {"format": "layerscope-segment", "version": VERSION, "run": run, "table": table}
        self._about = {**about, "rank": self._rank, "session": self._session}
        self._number = 0
        self._handle: int | None = None
        self._size = 0  # bytes of whole frames in the last segment
        self._opened_s = 0.0

    @property
    def written(self) -> tuple[int, int]:
        """Number of segments, and bytes of the last."""
        return self._number, self._size

    def write(self, batch: pa.RecordBatch) -> None:
        """Writes one batch to the file; after an OSError the batch is not in the table."""
        if self._handle is not None and (self._size >= ROLL_BYTES or time.monotonic() - self._opened_s >= ROLL_S):
            self.end()
        try:
            if self._handle is None:
                self._open()
            self._append(batch.serialize())
        except OSError:
            self.end()
            raise

    def end(self) -> None:
        """Closes the segment; the next batch starts a new one."""
        handle, self._handle = self._handle, None
        if handle is not None:
            with contextlib.suppress(OSError):  # the segment is abandoned, even if closing fails
                os.close(handle)

    def _open(self) -> None:
        about = {**self._about, "number": self._number + 1, "before": self._size}
        metadata = {key: str(value) for key, value in about.items()}
        head = SEGMENT_SCHEMA[self._table].with_metadata(metadata).serialize()
        name = str(SegmentName(session=self._session, number=self._number + 1, rank=self._rank))
        with opened(self._folder, SEGMENTS, self._table) as directory:
            self._handle = directory.create(name)
        self._number += 1
        self._size = 0
        self._opened_s = time.monotonic()
        self._append(head)

    def _append(self, payload: pa.Buffer) -> None:
        assert self._handle is not None
        content = memoryview(payload)
        parts = [memoryview(framed(content)), content]
        while parts:
            written = os.writev(self._handle, parts)
            while parts and written >= len(parts[0]):
                written -= len(parts.pop(0))
            if parts:
                parts[0] = parts[0][written:]
        self._size += FRAME.size + len(content)


class _Index(NamedTuple):
    """Index of a batch whose rows are not in memory: number of rows, and the columns that locate them."""

    rows: int
    size: int  # in bytes
    content: Ints | None  # bytes per row of a column that can be large
    step: Ints | None
    series: Ids | None


class Segment:
    """The whole batches of one segment, copied into memory; follows the file while it grows.

    `forget` frees the memory except for an index; a later read reads the file again.
    """

    def __init__(self, folder: Path, run: str, table: str, name: SegmentName) -> None:
        self.path = folder / SEGMENTS / table / str(name)
        self.name = name
        self.before = 0  # bytes of the previous segment
        self._folder = folder
        self._file = str(name)
        self._run = run
        self._table = table
        self._schema: pa.Schema | None = None
        self._batches: list[pa.RecordBatch] | None = []
        self._index: list[_Index] = []
        self._position = 0
        self._digest = xxh3_64()
        self._faults: dict[int, str] = {}  # offset → why the frame there was skipped

    @property
    def rows(self) -> int:
        """Number of rows read so far."""
        return sum(batch.rows for batch in self._index)

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole frames read so far."""
        return self._position

    @property
    def digest(self) -> int:
        """Checksum of everything read so far."""
        return int(self._digest.intdigest())

    @property
    def problem(self) -> str | None:
        """What was skipped in the segment and why, or None."""
        if not self._faults:
            return None
        offset, reason = next(iter(self._faults.items()))
        return f"{self.path} is damaged: {len(self._faults)} batches were left out (at byte {offset} {reason})."

    def grew(self, directory: Directory) -> bool:
        """Whether the file grew since the last read. FileNotFoundError if the segment is gone."""
        try:
            return directory.stat(self._file).st_size > self._position
        except FormatError:
            return True  # `follow` reports the problem

    def follow(self, directory: Directory) -> None:
        """Reads the batches appended since the last read. FileNotFoundError if the segment is gone."""
        name = self._file
        size = directory.stat(name).st_size
        if size <= self._position:
            return
        if size > MOST_BYTES:
            raise damaged(self.path, f"it has {size:,} bytes, more than the {MOST_BYTES:,} that are allowed")
        if self._batches is None:
            self._batches = self._read_again(directory)
        with directory.open(name) as handle:
            content = read_buffer(handle, self._position, size - self._position)
        self._position += self._take(content)

    def forget(self) -> None:
        """Frees the memory of the rows; concurrent readers keep theirs."""
        self._batches = None

    def load(self) -> list[pa.RecordBatch]:
        """The batches, read again after `forget`. FileNotFoundError if the segment is gone."""
        batches = self._batches
        if batches is None:
            with opened(self._folder, SEGMENTS, self._table) as directory:
                batches = self._batches = self._read_again(directory)
        return batches

    def _read_again(self, directory: Directory) -> list[pa.RecordBatch]:
        again = Segment(self._folder, self._run, self._table, self.name)
        again.follow(directory)
        if len(again._index) < len(self._index):
            raise damaged(self.path, "it has changed since it was read")
        assert again._batches is not None
        return again._batches[: len(self._index)]

    def _take(self, buffer: pa.Buffer) -> int:
        """Parses the whole frames of the content; returns their end."""
        content, offset = memoryview(buffer), 0
        while offset + FRAME.size <= len(content):
            frame = _frame_at(content, offset)
            if frame is None:
                self._faults.setdefault(self._position + offset, "there is no frame")
                offset = _next_frame(bytes(content), offset)
                continue
            size, given = frame
            end = offset + FRAME.size + size
            if end > len(content):
                break  # a truncated tail: being written, or the writer was killed
            payload = buffer.slice(offset + FRAME.size, size)
            self._digest.update(content[offset : offset + FRAME.size])
            if checksum(payload) != given:
                self._faults[self._position + offset] = "its bytes do not match their checksum"
            else:
                self._decode(payload, self._position + offset)
            offset = end
        return min(offset, len(content))

    def _decode(self, payload: pa.Buffer, offset: int) -> None:
        try:
            if self._schema is None:
                if offset:
                    raise damaged(self.path, "its head is damaged")
                self._schema = self._checked(pa.ipc.read_schema(payload))
            else:
                batch = _batch(payload, self._schema)
                self._index.append(_indexed(batch, payload.size))
                assert self._batches is not None
                self._batches.append(batch)
        except (pa.ArrowException, OSError, ValueError, TypeError, IndexError, struct.error) as error:
            self._faults[offset] = " ".join(str(error).split())[:200]

    def _checked(self, schema: pa.Schema) -> pa.Schema:
        about = {key.decode(): value.decode() for key, value in (schema.metadata or {}).items()}
        if about.get("format") != "layerscope-segment" or not about.get("version", "").isdecimal():
            raise damaged(self.path, "it is an Arrow stream, but no segment of a run", "Remove it from the run.")
        check_version(self.path, int(about["version"][:9]))
        expected = {"run": self._run, "table": self._table, "rank": str(self.name.rank)}
        expected |= {"session": str(self.name.session), "number": str(self.name.number)}
        if any(about.get(key) != value for key, value in expected.items()):
            raise damaged(self.path, "its name does not fit its content", "Give it back its name.")
        known = SEGMENT_SCHEMA[self._table]
        if missing := [name for name in known.names if name not in schema.names and name not in NULLABLE]:
            raise damaged(self.path, f"it lacks the columns {', '.join(missing)}")
        for column in schema:
            if column.name in known.names and column.type != known.field(column.name).type:
                raise damaged(self.path, f"its column {column.name!r} is {column.type}")
        self.before = int(about.get("before", "0")[:15])
        return schema

    @property
    def last_step(self) -> int:
        """The largest step of any row, -1 if there is no row."""
        return max((int(batch.step.max(initial=-1)) for batch in self._index if batch.step is not None), default=-1)

    @property
    def names(self) -> frozenset[str]:
        """Distinct values of the column `name`."""
        columns = (table["name"].unique() for table in self.read(["name"], RowFilter()))
        return frozenset(name for names in columns for name in names.to_pylist())

    def alike(self, group: int, columns: Iterable[str]) -> dict[str, int | None]:
        """The columns that are constant over all rows; a segment is one row group."""
        of_name = {"rank": self.name.rank, "session": self.name.session}
        return {name: of_name[name] for name in columns if name in of_name}

    def series_numbers(self) -> Ids:
        """The series number of every row, in the order of writing."""
        columns = [batch.series for batch in self._index if batch.series is not None]
        return np.concatenate(columns) if columns else np.zeros(0, np.int32)

    def step_numbers(self) -> Ints:
        """The step of every row."""
        columns = [batch.step for batch in self._index if batch.step is not None]
        return np.concatenate(columns) if columns else np.zeros(0, np.int64)

    def row_bytes(self) -> Ints:
        """Approximate bytes per row; exact for `content`."""
        sizes = [_row_bytes(batch) for batch in self._index]
        return np.concatenate(sizes) if sizes else np.zeros(0, np.int64)

    def read(self, columns: list[str], row_filter: RowFilter) -> list[pa.Table]:
        """The selected rows, with the columns in the given order."""
        batches: list[pa.RecordBatch] = []
        own = [name for name in columns if self._schema is not None and name in self._schema.names]
        for index, batch in zip(self._index, self.load(), strict=False):  # another thread may be following
            hits = row_filter.rows(index.series, index.step)
            if hits is None:
                batches.append(batch.select(own))
            elif len(hits):
                batches.extend(_pick(batch.select(own), hits))
        return [self._complete(pa.Table.from_batches(batches), columns)] if batches else []

    def _complete(self, table: pa.Table, columns: list[str]) -> pa.Table:
        """The table with rank and session from the name, and nulls for columns of newer versions."""
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


def _batch(payload: pa.Buffer, schema: pa.Schema) -> pa.RecordBatch:
    """The record batch of a payload, fully validated: a checksum detects damage, not malice."""
    message = pa.ipc.read_message(payload)
    if message.type != "record batch" or is_compressed(message):
        raise ValueError("it is no plain record batch")
    batch = pa.ipc.read_record_batch(message, schema)
    batch.validate(full=True)
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        check_column(name, column)
    return batch


def _next_frame(content: bytes, offset: int) -> int:
    """Offset of the next frame, or the end."""
    for _ in range(_SOUGHT):
        offset = content.find(MAGIC, offset + 1)
        if offset < 0 or offset + FRAME.size > len(content):
            break
        if _frame_at(content, offset) is not None:
            return offset
    return len(content)


def _indexed(batch: pa.RecordBatch, size: int) -> _Index:
    names = batch.schema.names
    step, series = (values(batch.column(name)).copy() if name in names else None for name in ("step", "series"))
    content = lengths(batch.column("content")) if "content" in names else None
    return _Index(batch.num_rows, size, content, step, series)


def _row_bytes(batch: _Index) -> Ints:
    content = np.zeros(batch.rows, np.int64) if batch.content is None else batch.content
    return np.asarray(content + (batch.size - int(content.sum())) // max(batch.rows, 1))


def _pick(batch: pa.RecordBatch, hits: Ints) -> list[pa.RecordBatch]:
    """The rows at the given ascending indices."""
    breaks = np.flatnonzero(np.diff(hits) != 1) + 1
    if len(breaks) >= _FEW_RUNS:
        return [batch.take(numbers(hits))]
    starts, ends = np.append(0, breaks), np.append(breaks, len(hits))
    return [batch.slice(hits[a], b - a) for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]
