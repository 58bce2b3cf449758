"""The order of rows, and which of several rows for the same step counts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from layerscope.records import Flags, Ids, Ints
from layerscope.store.columns import flags, numbers, values
from layerscope.store.format import KEPT
from layerscope.store.wanted import packed

#: What a table is sorted by; rows alike in all of it keep the order of writing. Events stay as they came.
SORT_KEYS = {
    "series": ("rank", "series"),
    "moments": ("series", "rank", "step", "session"),
    "bits": ("series", "rank", "step", "session"),
    "extras": ("series", "rank", "name", "step", "session"),
    "metrics": ("name", "rank", "step", "session"),
    **dict.fromkeys(KEPT, ("series", "step", "rank", "session")),  # a series too large for memory is cut by steps
    "costs": ("rank", "step", "session"),
    "steps": ("rank", "step", "session"),
    "dependencies": (),
    "events": (),
}


def key_columns(table: pa.Table, names: Sequence[str]) -> list[Ids | Ints]:
    """Columns as numbers that sort as the columns do."""
    return [_numbers(table.column(name)) for name in names]


def _numbers(column: pa.ChunkedArray) -> Ids | Ints:
    if not pa.types.is_string(column.type):
        return values(column)
    coded = column.combine_chunks().dictionary_encode()
    if isinstance(coded, pa.ChunkedArray):
        coded = coded.combine_chunks()
    order = np.argsort(np.array(coded.dictionary.to_pylist(), dtype=object), kind="stable")
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return np.asarray(rank[values(coded.indices)])


def in_order(kind: str, table: pa.Table) -> pa.Table:
    """The rows of a table in its order."""
    names = SORT_KEYS[kind]
    if not names or table.num_rows < 2:
        return table
    key = packed(*key_columns(table, names))
    if bool(np.all(key[1:] >= key[:-1])):
        return table
    return table.combine_chunks().take(numbers(np.argsort(key, kind="stable")))


def without_earlier(kind: str, table: pa.Table) -> pa.Table:
    """An ordered table without the rows that a later session recorded again: later wins."""
    session = values(table.column("session"))
    if len(session) == 0 or session.min() == session.max():
        return table
    *names, _ = SORT_KEYS[kind]
    counts = latest(packed(*key_columns(table, names)), session)
    return table if counts.all() else table.filter(flags(counts))


def latest(key: Ints, session: Ids) -> Flags:
    """Which rows are of the last session of their key; rows are sorted by key, then session."""
    last = np.append(np.flatnonzero(key[1:] != key[:-1]), len(key) - 1)
    length = np.diff(last, prepend=-1)
    return np.asarray(session == np.repeat(session[last], length))


def places(of: Sequence[Ids | Ints], among: Sequence[Ids | Ints]) -> Ints:
    """Where each row of `of` is found in `among`, by all columns: the last such place, -1 where there is none."""
    count = len(among[0])
    if count == 0:
        return np.full(len(of[0]), -1, np.int64)
    columns = [np.concatenate((a, b)).astype(np.int64) for a, b in zip(among, of, strict=True)]
    key = packed(*columns)
    ours, theirs = key[count:], key[:count]
    order = np.argsort(theirs, kind="stable")
    place = np.searchsorted(theirs, ours, side="right", sorter=order) - 1
    found = order[np.maximum(place, 0)]
    return np.where((place >= 0) & (theirs[found] == ours), found, -1)
