"""The pages of a Parquet column chunk: what decoding them would take, told by their own headers."""

from __future__ import annotations

_SIZE, _COMPRESSED, _DATA, _DICTIONARY, _DATA_V2 = 2, 3, 5, 7, 8  # fields of a page's header
_PLAIN = 0
_OF_NUMBERS = frozenset((_PLAIN, 2, 3, 5, 8, 9))  # dictionary, run lengths, deltas of numbers, split bytes
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _STRUCT = 1, 2, 3, 4, 5, 6, 7, 8, 12  # of Thrift
_MOST_NESTED = 4

Struct = dict[int, "int | Struct"]


def check_pages(content: bytes, *, plain: bool, most_bytes: int, most_values: int) -> None:
    """Refuses a chunk whose pages hold more than they may, or encodings of which few bytes could become many.

    `plain` is for texts and other bytes: no dictionary and no common beginnings.
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
    """A struct of Thrift's compact protocol that holds numbers, texts and structs, and where it ends."""
    found: Struct = {}
    number = 0
    while content[at]:
        kind, delta = content[at] & 15, content[at] >> 4
        at += 1
        if delta:
            number += delta
        else:
            number, at = _varint(content, at)
        if kind in (_TRUE, _FALSE):
            found[number] = int(kind == _TRUE)
        elif kind in (_I16, _I32, _I64):
            value, at = _varint(content, at)
            found[number] = value >> 1 ^ -(value & 1)
        elif kind == _STRUCT and depth < _MOST_NESTED:
            found[number], at = _struct(content, at, depth + 1)
        elif kind == _BINARY:
            length, at = _varint(content, at)
            at += length
        elif kind in (_BYTE, _DOUBLE):
            at += 1 if kind == _BYTE else 8
        else:
            raise ValueError("a page of it has no readable header")
    return found, at + 1


def _varint(content: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while content[at] & 128 and shift < 63:
        value |= (content[at] & 127) << shift
        shift, at = shift + 7, at + 1
    return value | content[at] << shift, at + 1
