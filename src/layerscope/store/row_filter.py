"""RowFilter: rows of a table by series and step; and how rows are sorted and compared by their keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from layerscope.model.records import Flags, Ids, Ints
from layerscope.store.columns import flags, numbers, values
from layerscope.store.format import KEPT

Steps = tuple[int, int] | Ints | None


@dataclass(frozen=True, slots=True)
class RowFilter:
    """Rows of the given series and of the given steps; None is all."""

    series: Ids | None = None  # ascending
    steps: Ints | None = None  # ascending
    first: int | None = None  # the first step of a range, with `last` its last one
    last: int | None = None

    @staticmethod
    def of(series: npt.ArrayLike | None, steps: Steps) -> RowFilter:
        """A filter from series numbers, and a range (first, last) or an array of steps."""
        chosen = None if series is None else np.unique(np.asarray(series, np.int32))
        if isinstance(steps, tuple):
            return RowFilter(chosen, None, *steps)
        listed = None if steps is None else np.unique(np.asarray(steps, np.int64))
        return RowFilter(chosen, listed)

    def with_series(self, series: Ids) -> RowFilter:
        """The same steps of other series."""
        return RowFilter(np.unique(series), self.steps, self.first, self.last)

    @property
    def everything(self) -> bool:
        """Whether it selects every row."""
        return self.series is None and self.steps is None and self.first is None and self.last is None

    def rows(self, series: Ids | None, step: Ints | None) -> Ints | None:
        """The selected rows, None for all."""
        masks: list[Flags] = []
        if self.series is not None and series is not None:
            masks.append(among(series, self.series))
        if self.steps is not None and step is not None:
            masks.append(among(step, self.steps))
        if self.first is not None and step is not None:
            masks.append(step >= self.first)
        if self.last is not None and step is not None:
            masks.append(step <= self.last)
        kept = np.logical_and.reduce(masks) if masks else np.ones(0, np.bool_)
        return None if kept.all() else np.flatnonzero(kept)

    def blocks(self, series: tuple[Ints, Ints], step: tuple[Ints, Ints]) -> Flags:
        """Which blocks of rows may contain a selected row, by their smallest and largest series and step."""
        may = np.ones(len(series[0]), np.bool_)
        for listed, (smallest, largest) in ((self.series, series), (self.steps, step)):
            if listed is not None:
                may &= np.searchsorted(listed, smallest, "left") < np.searchsorted(listed, largest, "right")
        if self.first is not None:
            may &= step[1] >= self.first
        if self.last is not None:
            may &= step[0] <= self.last
        return may


def among(values: Ids | Ints, listed: Ids | Ints) -> Flags:
    """Which values are listed; the list ascends."""
    if len(listed) == 1:
        return np.asarray(values == listed[0])
    if len(values) and len(listed):
        low, high = int(values.min()), int(values.max())
        if np.searchsorted(listed, high, "right") - np.searchsorted(listed, low) == high - low + 1:
            return np.ones(len(values), np.bool_)  # the list is contiguous: no lookup needed
    return np.isin(values, listed)


def packed(*columns: Ids | Ints) -> Ints:
    """One integer per row that sorts as the rows do, column by column."""
    key = np.zeros(len(columns[0]), np.int64)
    if len(key) == 0:
        return key
    used = 0
    for column in columns:
        low, high = int(column.min()), int(column.max())
        wide = (high - low).bit_length()
        used += wide
        if used > 62:
            return _ranked(columns)
        if wide:
            key = (key << wide) | (column.astype(np.int64) - low)
    return key


def _ranked(columns: tuple[Ids | Ints, ...]) -> Ints:
    """The same for columns whose combined range exceeds one integer."""
    _, ranks = np.unique(np.stack([column.astype(np.int64) for column in columns], 1), axis=0, return_inverse=True)
    return np.asarray(ranks.reshape(-1), np.int64)


#: Sort keys of each table; equal rows keep the order of writing. Events are not sorted.
SORT_KEYS = {
    "series": ("rank", "series"),
    "moments": ("series", "rank", "step", "session"),
    "bits": ("series", "rank", "step", "session"),
    "custom_statistics": ("series", "rank", "name", "step", "session"),
    "metrics": ("name", "rank", "step", "session"),
    **dict.fromkeys(KEPT, ("series", "step", "rank", "session")),  # a series too large for memory is split by steps
    "overhead": ("rank", "step", "session"),
    "steps": ("rank", "step", "session"),
    "dependencies": (),
    "events": (),
}


def key_columns(table: pa.Table, names: Sequence[str]) -> list[Ids | Ints]:
    """Columns as integers with the same order."""
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
    """The rows of a table in sort order."""
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
    """Mask of the rows of the last session of their key; rows are sorted by key, then session."""
    last = np.append(np.flatnonzero(key[1:] != key[:-1]), len(key) - 1)
    length = np.diff(last, prepend=-1)
    return np.asarray(session == np.repeat(session[last], length))


def places(of: Sequence[Ids | Ints], among: Sequence[Ids | Ints]) -> Ints:
    """For each row of `of` the last equal row of `among`, or -1."""
    count = len(among[0])
    if count == 0:
        return np.full(len(of[0]), -1, np.int64)
    columns = [np.concatenate((a, b)).astype(np.int64) for a, b in zip(among, of, strict=True)]
    key = packed(*columns)
    ours, theirs = key[count:], key[:count]
    order = np.argsort(theirs, kind="stable")
    at = np.searchsorted(theirs, ours, side="right", sorter=order) - 1
    row = order[np.maximum(at, 0)]
    return np.where((at >= 0) & (theirs[row] == ours), row, -1)
