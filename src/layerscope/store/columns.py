"""Columns of a run: conversions between numpy and Arrow, and text as storable UTF-8."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from layerscope.model.records import Bytes, Flags, Ints

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")  # Python stores a pair as one character


def storable(text: str) -> str:
    r"""The text with each lone surrogate escaped: U+DC80 becomes the six characters `\udc80`."""
    return _LONE_SURROGATE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def json_text(content: object, indent: int | None = None) -> str:
    """JSON with storable strings only."""
    separators = (",", ":") if indent is None else None
    text = json.dumps(content, indent=indent, ensure_ascii=False, separators=separators)
    return _LONE_SURROGATE.sub(lambda match: f"\\\\u{ord(match[0]):04x}", text)


_HEADER, _COMPRESSION, _DATA = 2, 3, 1  # fields of the flatbuffers tables Message, RecordBatch and DictionaryBatch


def is_compressed(message: pa.ipc.Message) -> bool:
    """Whether the buffers of a batch are compressed: a few bytes could expand without limit."""
    content = message.metadata.to_pybytes()
    batch = _table(content, struct.unpack_from("<I", content, 0)[0], _HEADER)
    if message.type == "dictionary":
        batch = _table(content, batch, _DATA)
    return _field(content, batch, _COMPRESSION) is not None


def _table(content: bytes, table: int, number: int) -> int:
    """Offset of the table that a field refers to."""
    field = _field(content, table, number)
    if field is None:
        raise ValueError("its message lacks a part")
    return field + int(struct.unpack_from("<I", content, field)[0])


def _field(content: bytes, table: int, number: int) -> int | None:
    """Offset of a field of a flatbuffers table, or None."""
    entries = table - struct.unpack_from("<i", content, table)[0]
    if entries < 0:
        raise ValueError("its message is no flatbuffers table")
    size = struct.unpack_from("<H", content, entries)[0]
    if 4 + 2 * number >= size:
        return None
    offset = struct.unpack_from("<H", content, entries + 4 + 2 * number)[0]
    return table + offset if offset else None


Numbers = npt.NDArray[Any]  # of any of the types below
_TYPES: dict[np.dtype[Any], pa.DataType] = {
    np.dtype(np.int32): pa.int32(),
    np.dtype(np.int64): pa.int64(),
    np.dtype(np.uint8): pa.uint8(),
    np.dtype(np.float64): pa.float64(),
}
_DTYPES: dict[pa.DataType, np.dtype[Any]] = {kind: dtype for dtype, kind in _TYPES.items()}


def dtype_of(kind: pa.DataType) -> np.dtype[Any]:
    """The numpy dtype of a numeric Arrow type."""
    return _DTYPES[kind]


def numbers(values: Numbers, null: Flags | None = None) -> pa.Array:
    """An Arrow array on the memory of a numpy array, with nulls at the flags."""
    valid = None if null is None else pa.py_buffer(np.packbits(~null, bitorder="little"))
    return pa.Array.from_buffers(_TYPES[values.dtype], len(values), [valid, pa.py_buffer(np.ascontiguousarray(values))])


def flags(values: Flags) -> pa.Array:
    """An Arrow array of flags."""
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, pa.py_buffer(np.packbits(values, bitorder="little"))])


def texts(values: Sequence[str]) -> pa.Array:
    """An Arrow array of strings; lone surrogates are escaped as by `storable`."""
    encoded = [value.encode("utf-8", "backslashreplace") for value in values]
    offsets = np.array([0, *accumulate(map(len, encoded))], np.int32)
    return pa.Array.from_buffers(
        pa.string(), len(values), [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded))]
    )


def lists(values: Sequence[Sequence[int]]) -> pa.Array:
    """An Arrow array of lists of integers."""
    offsets = np.array([0, *accumulate(map(len, values))], np.int32)
    flat = np.array([number for value in values for number in value], np.int64)
    return pa.ListArray.from_arrays(numbers(offsets), numbers(flat))


def binary(offsets: Ints, content: Bytes) -> pa.Array:
    """An Arrow array whose row i is `content[offsets[i]:offsets[i + 1]]`."""
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(np.ascontiguousarray(content))]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)


def large_binary(offsets: Ints, content: bytes) -> pa.Array:
    """The same with 64-bit offsets."""
    return pa.Array.from_buffers(
        pa.large_binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(content)]
    )


def values(column: pa.Array | pa.ChunkedArray) -> Numbers:
    """A numeric column as a numpy array, without a copy if it is one chunk. Nulls are ignored."""
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    dtype = _DTYPES[column.type]
    pieces = [_piece(chunk, dtype) for chunk in chunks if len(chunk)]
    if len(pieces) == 1:
        return pieces[0]
    return np.concatenate(pieces) if pieces else np.zeros(0, dtype)


def valid(column: pa.ChunkedArray) -> Flags:
    """Which values of a column are not null."""
    pieces = [np.ones(0, np.bool_), *(_valid_piece(chunk) for chunk in column.chunks)]
    return np.concatenate(pieces)


def filled(column: pa.ChunkedArray) -> Numbers:
    """The values of an integer column, with -1 for null."""
    if column.null_count == 0:
        return values(column)
    minus_one = np.array(-1, _DTYPES[column.type])
    if column.null_count == len(column):
        return np.full(len(column), minus_one)
    return np.where(valid(column), values(column), minus_one)


def lengths(column: pa.Array) -> Ints:
    """Size of every row of a large-binary column."""
    bounds: Ints = np.frombuffer(column.buffers()[1], np.int64, len(column) + 1, column.offset * 8)
    return bounds[1:] - bounds[:-1]


def _valid_piece(chunk: pa.Array) -> Flags:
    bits = chunk.buffers()[0]
    if bits is None:
        return np.ones(len(chunk), np.bool_)
    unpacked = np.unpackbits(np.frombuffer(bits, np.uint8), count=chunk.offset + len(chunk), bitorder="little")
    return unpacked[chunk.offset :].astype(np.bool_)


def _piece(chunk: pa.Array, dtype: np.dtype[Any]) -> Numbers:
    return np.frombuffer(chunk.buffers()[1], dtype, len(chunk), chunk.offset * dtype.itemsize)
