"""Checks and index of a Parquet part before its rows are decoded: pages, sizes, ranges of values."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from layerscope.model.records import Ints
from layerscope.store.format import NULLABLE, SCHEMA, PartEntry

_SIZE, _COMPRESSED, _DATA, _DICTIONARY, _DATA_V2 = 2, 3, 5, 7, 8  # fields of a page header
_PLAIN = 0
_OF_NUMBERS = frozenset((_PLAIN, 2, 3, 5, 8, 9))  # dictionary, run lengths, deltas of numbers, split bytes
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _STRUCT = 1, 2, 3, 4, 5, 6, 7, 8, 12  # of Thrift
_MOST_NESTED = 4

Struct = dict[int, "int | Struct"]


def check_pages(content: bytes, *, plain: bool, most_bytes: int, most_values: int) -> None:
    """Rejects a chunk whose pages are too large, or whose encoding could expand a few bytes without limit.

    `plain` is for strings and other bytes: no dictionary and no shared prefixes.
    """
    at = size = values = 0
    while at < len(content):
        head, at = _struct(content, at, 1)
        about = head.get(_DATA) or head.get(_DATA_V2) or head.get(_DICTIONARY)
        length, packed = head.get(_SIZE), head.get(_COMPRESSED)
        if not isinstance(about, dict) or not isinstance(length, int) or not isinstance(packed, int):
            raise ValueError("a page of it has no header")
        count, encoding = about.get(1), about.get(4 if _DATA_V2 in head else 2)
        if not isinstance(count, int) or min(count, length, packed) < 0:
            raise ValueError("a page of it has no size")
        size, values, at = size + length, values + count, at + packed
        if size > most_bytes or values > most_values:
            raise ValueError(f"it claims {values} values of {size} bytes")
        if encoding not in ((_PLAIN,) if plain else _OF_NUMBERS):
            raise ValueError(f"a page of it is encoded in a way ({encoding}) that may take any memory")


def _struct(content: bytes, at: int, depth: int) -> tuple[Struct, int]:
    """A struct of Thrift's compact protocol with numbers, strings and structs, and its end."""
    fields: Struct = {}
    number = 0
    while content[at]:
        kind, delta = content[at] & 15, content[at] >> 4
        at += 1
        if delta:
            number += delta
        else:
            number, at = _varint(content, at)
        if kind in (_TRUE, _FALSE):
            fields[number] = int(kind == _TRUE)
        elif kind in (_I16, _I32, _I64):
            value, at = _varint(content, at)
            fields[number] = value >> 1 ^ -(value & 1)
        elif kind == _STRUCT and depth < _MOST_NESTED:
            fields[number], at = _struct(content, at, depth + 1)
        elif kind == _BINARY:
            length, at = _varint(content, at)
            at += length
        elif kind in (_BYTE, _DOUBLE):
            at += 1 if kind == _BYTE else 8
        else:
            raise ValueError("a page of it has no readable header")
    return fields, at + 1


def _varint(content: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while content[at] & 128 and shift < 63:
        value |= (content[at] & 127) << shift
        shift, at = shift + 7, at + 1
    return value | content[at] << shift, at + 1


MOST_ROWS = 1 << 16  # of a row group; docs/format.md states it
_FIRST = 4  # after the magic bytes
_ANY = (np.iinfo(np.int64).min, np.iinfo(np.int64).max)
_NOTHING = (1, 0)


def whole_numbers(table: str) -> list[str]:
    """The integer columns of a table."""
    return [field.name for field in SCHEMA[table] if pa.types.is_integer(field.type)]


def described(metadata: pq.FileMetaData, table: str, checksum_of: Callable[[int, int], int]) -> tuple[bytes, bytes]:
    """The bytes of `chunks` and `groups` for a part just written, whose footer can be trusted."""
    chunks: list[tuple[int, int]] = []
    groups: list[list[int]] = []
    start, names = _FIRST, whole_numbers(table)
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        columns = [group.column(place) for place in range(group.num_columns)]
        for column in columns:
            chunks.append((column.total_compressed_size, checksum_of(start, column.total_compressed_size)))
            start += column.total_compressed_size
        known = {column.path_in_schema: column.statistics for column in columns}
        groups.append([group.num_rows, *(bound for name in names for bound in _bounds(known[name], group.num_rows))])
    return np.array(chunks, "<u8").tobytes(), np.array(groups, "<i8").tobytes()


def _bounds(statistics: pq.Statistics | None, rows: int) -> tuple[int, int]:
    if statistics is None or not statistics.has_null_count:
        return _ANY
    if statistics.null_count == rows:
        return _NOTHING
    return (statistics.min, statistics.max) if statistics.has_min_max and not statistics.null_count else _ANY


class PartIndex:
    """The chunks and row groups of a part. ValueError if live.json describes impossible ones."""

    def __init__(self, entry: PartEntry, table: str, columns: int) -> None:
        sizes, sums = np.frombuffer(entry.chunks, "<u8").reshape(-1, 2).T.tolist() or ([], [])
        self._names = {name: 1 + 2 * place for place, name in enumerate(whole_numbers(table))}
        self._groups = np.frombuffer(entry.groups, "<i8").reshape(-1, 1 + 2 * len(self._names))
        self.rows: list[int] = self._groups[:, 0].tolist()
        if len(sizes) != len(self.rows) * columns or sum(sizes) > entry.size:
            raise ValueError(f"live.json has {len(sizes)} chunks of {sum(sizes)} bytes")
        if sum(self.rows) != entry.rows or not all(0 <= rows <= MOST_ROWS for rows in self.rows):
            raise ValueError(f"it claims {sum(self.rows)} rows in {len(self.rows)} row groups")
        starts = np.cumsum([_FIRST, *sizes[:-1]]).tolist()
        #: (first byte, size) of a chunk → its checksum and the index of its column.
        self.chunks = {
            (start, size): (given, number % columns)
            for number, (start, size, given) in enumerate(zip(starts, sizes, sums, strict=False))
        }

    def bounds(self, column: str) -> tuple[Ints, Ints]:
        """Smallest and largest value of a column in every row group; the widest range if unknown."""
        place = self._names.get(column)
        if place is None:
            return np.full(len(self.rows), _ANY[0]), np.full(len(self.rows), _ANY[1])
        return self._groups[:, place], self._groups[:, place + 1]

    def alike(self, group: int, columns: Iterable[str]) -> dict[str, int | None]:
        """The columns that are constant in a row group, and their values."""
        known: dict[str, int | None] = {}
        for name in columns:
            place = self._names.get(name)
            low, high = _ANY if place is None else self._groups[group, place : place + 2].tolist()
            if low == high:
                known[name] = low
            elif (low, high) == _NOTHING and name in NULLABLE:
                known[name] = None
        return known
