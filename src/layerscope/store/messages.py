"""What Arrow's own reader does not tell of a message before it decodes it."""

from __future__ import annotations

import struct

import pyarrow as pa

_HEADER, _COMPRESSION, _DATA = 2, 3, 1  # fields of the flatbuffers tables Message, RecordBatch and DictionaryBatch


def is_compressed(message: pa.ipc.Message) -> bool:
    """Whether the buffers of a batch are compressed: a few bytes could become any number of them."""
    content = message.metadata.to_pybytes()
    batch = _table(content, struct.unpack_from("<I", content, 0)[0], _HEADER)
    if message.type == "dictionary":
        batch = _table(content, batch, _DATA)
    return _field(content, batch, _COMPRESSION) is not None


def _table(content: bytes, table: int, number: int) -> int:
    """Where the table is that a field of a table refers to."""
    field = _field(content, table, number)
    if field is None:
        raise ValueError("its message lacks a part")
    return field + int(struct.unpack_from("<I", content, field)[0])


def _field(content: bytes, table: int, number: int) -> int | None:
    """Where a field of a flatbuffers table is, None if the table lacks it."""
    entries = table - struct.unpack_from("<i", content, table)[0]
    if entries < 0:
        raise ValueError("its message is no flatbuffers table")
    size = struct.unpack_from("<H", content, entries)[0]
    if 4 + 2 * number >= size:
        return None
    offset = struct.unpack_from("<H", content, entries + 4 + 2 * number)[0]
    return table + offset if offset else None
