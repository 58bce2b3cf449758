"""Which rows of a table somebody wants, by series and step; and how keys of rows are compared."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from layerscope.records import Flags, Ids, Ints

Steps = tuple[int, int] | Ints | None


@dataclass(frozen=True, slots=True)
class Wanted:
    """Rows of the given series and of the given steps; None is all."""

    series: Ids | None = None  # ascending
    steps: Ints | None = None  # ascending
    first: int | None = None  # the first step of a range, with `last` its last one
    last: int | None = None

    @staticmethod
    def of(series: npt.ArrayLike | None, steps: Steps) -> Wanted:
        """What a caller asked for: series numbers, and a range (first, last) or an array of steps."""
        chosen = None if series is None else np.unique(np.asarray(series, np.int32))
        if isinstance(steps, tuple):
            return Wanted(chosen, None, *steps)
        listed = None if steps is None else np.unique(np.asarray(steps, np.int64))
        return Wanted(chosen, listed)

    def with_series(self, series: Ids) -> Wanted:
        """The same steps of other series."""
        return Wanted(np.unique(series), self.steps, self.first, self.last)

    @property
    def everything(self) -> bool:
        """Whether every row is wanted."""
        return self.series is None and self.steps is None and self.first is None and self.last is None

    def rows(self, series: Ids | None, step: Ints | None) -> Ints | None:
        """Places of the wanted rows, None if all are."""
        masks: list[Flags] = []
        if self.series is not None and series is not None:
            masks.append(_among(series, self.series))
        if self.steps is not None and step is not None:
            masks.append(_among(step, self.steps))
        if self.first is not None and step is not None:
            masks.append(step >= self.first)
        if self.last is not None and step is not None:
            masks.append(step <= self.last)
        kept = np.logical_and.reduce(masks) if masks else np.ones(0, np.bool_)
        return None if kept.all() else np.flatnonzero(kept)

    def blocks(self, series: tuple[Ints, Ints], step: tuple[Ints, Ints]) -> Flags:
        """Which blocks of rows can hold a wanted one, given their smallest and largest series and step."""
        may = np.ones(len(series[0]), np.bool_)
        for listed, (smallest, largest) in ((self.series, series), (self.steps, step)):
            if listed is not None:
                may &= np.searchsorted(listed, smallest, "left") < np.searchsorted(listed, largest, "right")
        if self.first is not None:
            may &= step[1] >= self.first
        if self.last is not None:
            may &= step[0] <= self.last
        return may


def _among(values: Ids | Ints, listed: Ids | Ints) -> Flags:
    if len(listed) == 1:
        return np.asarray(values == listed[0])
    if len(values) and len(listed):
        low, high = int(values.min()), int(values.max())
        if np.searchsorted(listed, high, "right") - np.searchsorted(listed, low) == high - low + 1:
            return np.ones(len(values), np.bool_)  # everything in between is listed: no need to look each up
    return np.isin(values, listed)


def packed(*columns: Ids | Ints) -> Ints:
    """One number for each row of several columns, in the same order as the rows compared column by column."""
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
    """The same for columns whose ranges do not fit one number together."""
    _, ranks = np.unique(np.stack([column.astype(np.int64) for column in columns], 1), axis=0, return_inverse=True)
    return np.asarray(ranks.reshape(-1), np.int64)
