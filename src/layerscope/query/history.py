"""History: what was recorded of series over the steps, as tables, charts, named tensors and rules read it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from layerscope.model import summary_spec
from layerscope.model.lru_cache import LRUCache
from layerscope.model.records import BATCH_STATISTICS, SINGULAR_MAX, Flags, Floats, Ints
from layerscope.query import tables
from layerscope.stats import derived
from layerscope.store.reader import Reader, Steps, encoded

SeriesNumbers = tuple[int, ...]  # of one tensor: it has several series where its dtype or mode changed
_ROWS_AT_ONCE = 2_048  # of moments: they lie together on disk, and cost little more to read than one of them
_BLOCKS = 32  # of neighboring series, cached
_TENSORS = 64  # whose histories are cached
_NO_INTS = np.zeros(0, np.int64)
_NO_BITS = derived.EncodedRows(np.zeros(0, np.uint8), np.zeros(1, np.int64), np.zeros(0, np.uint8), *[np.zeros(0)] * 2)


class Points(NamedTuple):
    """Values of one custom statistic: row i is of series `owner[i]` at step `steps[i]`; by series, then step."""

    owner: Ints
    steps: Ints
    values: Floats

    def rows(self, rows: Ints | slice) -> Points:
        """Some of the rows."""
        return Points(self.owner[rows], self.steps[rows], self.values[rows])


@dataclass(frozen=True, slots=True)
class History:
    """Summaries of some series, a row for each series and step, sorted by series, then step.

    Row i belongs to row `owner[i]` of the table of series that the history was read for. Custom statistics have steps
    of their own: they may be missing where there is a summary, or be there without one.
    """

    steps: Ints
    moments: Mapping[str, Floats]
    bits: derived.EncodedRows = field(default_factory=lambda: _NO_BITS)
    custom: Mapping[str, Points] = field(default_factory=dict)
    owner: Ints = field(default_factory=lambda: _NO_INTS)

    def stat(self, name: str) -> Floats:
        """One built-in statistic of each row."""
        return derived.statistic(name, self.moments.__getitem__)

    def curve(self, name: str) -> tuple[Ints, Floats]:
        """Steps and values of one statistic; a custom one may be missing at some steps, or at all."""
        if name in derived.STATS:
            return self.steps, self.stat(name)
        points = self.custom.get(name)
        return (_NO_INTS, np.zeros(0)) if points is None else (points.steps, points.values)

    def at(self, step: int) -> dict[str, float]:
        """Every statistic at one step, of a history of one series."""
        statistics: dict[str, float] = {}
        rows = np.flatnonzero(self.steps == step)[-1:]
        if len(rows):
            row = {name: column[rows] for name, column in self.moments.items()}
            statistics = {name: float(derived.statistic(name, row.__getitem__)[0]) for name in derived.STATS}
        for name, points in self.custom.items():
            values = points.values[points.steps == step]
            if len(values):
                statistics[name] = float(values[-1])
        return statistics

    def broken(self, name: str) -> Flags | None:
        """At which values of a statistic the tensor holds NaN or Inf; None for a custom one."""
        if name not in derived.STATS:
            return None
        return self.stat("nan") + self.stat("pos_inf") + self.stat("neg_inf") > 0

    def thinned(self, every: int) -> History:
        """The first summary of each `every` steps, of a history of one series."""
        if every == 1:
            return self
        custom = {name: points.rows(tables.first_of_each(points.steps, every)) for name, points in self.custom.items()}
        return replace(self._rows(tables.first_of_each(self.steps, every)), custom=custom)

    def of(self, owner: int) -> History:
        """The history of one of the series."""
        rows = np.arange(*np.searchsorted(self.owner, (owner, owner + 1)))
        own = {name: slice(*np.searchsorted(points.owner, (owner, owner + 1))) for name, points in self.custom.items()}
        custom = {name: self.custom[name].rows(rows) for name, rows in own.items() if rows.start < rows.stop}
        return replace(self._rows(rows), custom=custom)

    def _rows(self, rows: Ints) -> History:
        bits = self.bits.take(rows) if len(self.bits.m) else self.bits
        moments = {name: moment[rows] for name, moment in self.moments.items()}
        owner = self.owner[rows] if len(self.owner) else self.owner
        return replace(self, steps=self.steps[rows], moments=moments, bits=bits, owner=owner)

    def points(self, name: str) -> Points:
        """Series, steps and values of a moment or a custom statistic."""
        if name in self.moments:
            return Points(self.owner, self.steps, self.moments[name])
        return self.custom.get(name, Points(_NO_INTS, _NO_INTS, np.zeros(0)))

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return self.bits.nbytes + self.steps.nbytes + sum(moment.nbytes for moment in self.moments.values())


def read_history(
    reader: Reader,
    series: pa.Table,
    steps: Steps = None,
    *,
    columns: Sequence[str] | None = summary_spec.MOMENTS,
    custom: Sequence[str] | None = (),
    bits: bool = False,
) -> History:
    """The history of the given rows of the run's table of series.

    `columns` are the moments to read, None for no summaries at all; `custom` the custom statistics, None for all.
    """
    numbers = None if len(series) == len(reader.series()) else np.unique(tables.ints(series, "series"))
    points: dict[str, Points] = {}
    if custom is None or len(custom):  # read first: they are written after moments
        rows, owner = in_series_order(reader.custom_statistics(numbers, steps, custom), series)
        values = Points(owner, tables.ints(rows, "step"), tables.floats(rows, "value"))
        of_name = tables.rows_of_each(rows, "name")
        names = dict.fromkeys((*BATCH_STATISTICS, SINGULAR_MAX, *(name for (name,) in of_name)))
        points = {name: values.rows(of_name[name,]) for name in names if (name,) in of_name}
    if columns is None:
        return History(_NO_INTS, {}, custom=points)
    rows, owner = in_series_order(reader.moments(numbers, steps, columns, bits=bits), series)
    moments = {name: tables.floats(rows, name) for name in columns}
    counts = derived.EncodedRows(*encoded(rows), moments["min"], moments["max"]) if bits else _NO_BITS
    return History(tables.ints(rows, "step"), moments, counts, points, owner)


def in_series_order(rows: pa.Table, series: pa.Table) -> tuple[pa.Table, Ints]:
    """The rows that belong to the given series, in the order of these, and for each row the row of its series.

    Rows of one series must be in order, as the reader gives them; so must be the series, by rank and number.
    """
    if not series.num_rows:
        return rows.slice(0, 0), _NO_INTS
    known, keys = ((tables.ints(table, "rank") << 32) | tables.ints(table, "series") for table in (series, rows))
    first = np.flatnonzero(np.diff(keys, prepend=-1))  # of each run of rows of one series
    place = np.minimum(np.searchsorted(known, keys[first]), len(known) - 1)
    place[known[place] != keys[first]] = -1
    owner = np.repeat(place, np.diff(np.append(first, len(keys))))
    if (place < 0).any() or (place[1:] < place[:-1]).any():
        order = np.argsort(owner, kind="stable")
        order = order[owner[order] >= 0]
        rows, owner = rows.take(pa.array(order)), owner[order]
    return rows, owner


def united(parts: Sequence[History]) -> History:
    """Histories of the series of one tensor as one history, by step."""
    if len(parts) == 1:
        return parts[0]
    steps = np.concatenate([_NO_INTS, *(part.steps for part in parts)])
    order = np.argsort(steps, kind="stable")
    moments = {
        name: np.concatenate([np.zeros(0), *(part.moments[name] for part in parts)])[order]
        for name in summary_spec.MOMENTS
    }
    custom = {}
    for name in dict.fromkeys(name for part in parts for name in part.custom):
        points = Points(*map(np.concatenate, zip(*(p.custom[name] for p in parts if name in p.custom), strict=True)))
        custom[name] = points.rows(np.argsort(points.steps, kind="stable"))
    return History(steps[order], moments, custom=custom)


class HistoryCache:
    """Histories of the tensors of one rank, read a block of neighboring series at a time; without bit-counts."""

    def __init__(self, reader: Reader, series: pa.Table, steps: int) -> None:
        self._reader, self._series = reader, series
        self._numbers = tables.ints(series, "series")
        self._width = max(_ROWS_AT_ONCE // max(steps, 1), 1)
        self._blocks: LRUCache[int, tuple[int, History]] = LRUCache(_BLOCKS)
        self._tensors: LRUCache[SeriesNumbers, History] = LRUCache(_TENSORS)

    def of(self, numbers: SeriesNumbers) -> History:
        """The history of the tensor that has these series."""
        return self._tensors.get(numbers, lambda: united([self._of(number) for number in numbers]))

    def _of(self, number: int) -> History:
        first, history = self._blocks.get(number // self._width, lambda: self._read(number // self._width))
        return history.of(int(np.searchsorted(self._numbers, number)) - first)

    def _read(self, block: int) -> tuple[int, History]:
        """The first row of the table of series that is in the block, and the history of all its rows in it."""
        first, last = np.searchsorted(self._numbers, (block * self._width, (block + 1) * self._width)).tolist()
        return first, read_history(self._reader, self._series.slice(first, last - first), custom=None)
