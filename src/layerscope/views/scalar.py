"""Curves over the steps, and how many rows of a run fall into one column of the screen."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from layerscope.model.records import Flags, Floats, Ints
from layerscope.query.tables import at_or_before
from layerscope.views.open_run import OpenRun, SeriesNumber

JOINED_GAPS = 2.0  # columns further apart than this many usual gaps do not touch: nothing was recorded between them


@dataclass(frozen=True, slots=True)
class Screen:
    """The room a view has, in pixels, and the steps it shows; `None` is the first or last step there is."""

    width: int = 800
    height: int = 96
    first: int | None = None
    last: int | None = None
    every: int = 1  # the first of each this many steps is shown
    smooth: float = 0.0  # weight that the running mean of a curve gives to what was before

    def shows(self, steps: Ints) -> slice:
        """The rows that are shown, of rows in ascending order of steps; none where no step is in sight.

        The last one before the first step in sight is among them: a crosshair between the two shows it.
        """
        start = 0 if self.first is None else int(np.searchsorted(steps, self.first))
        stop = len(steps) if self.last is None else int(np.searchsorted(steps, self.last, side="right"))
        if start >= stop or self.first is None:
            return slice(start, max(start, stop))
        return slice(at_or_before(steps, self.first), stop)


@dataclass(frozen=True, slots=True)
class Columns:
    """Rows grouped to columns of the screen; a column covers `left` to `right` on the axis of steps."""

    of_row: Ints
    starts: Ints  # first row of each column
    first_steps: Ints
    last_steps: Ints
    left: Floats
    right: Floats

    def __len__(self) -> int:
        return len(self.starts)


def columns(steps: Ints, width: int) -> Columns:
    """At most `width` columns for rows in ascending order of steps; one column per step where they fit."""
    distinct = np.unique(steps)
    if len(distinct) <= width:
        place = np.searchsorted(distinct, steps)
    else:
        place = (steps - steps[0]) * width // (steps[-1] - steps[0] + 1)
    starts = np.flatnonzero(np.diff(place, prepend=-1))
    of_row = np.cumsum(np.diff(place, prepend=-1) > 0) - 1
    first = steps[starts]
    last = steps[np.append(starts[1:], len(steps)) - 1] if len(steps) else first
    left, right = _extents(first, last, distinct)
    return Columns(of_row, starts, first, last, left, right)


def _extents(first: Ints, last: Ints, distinct: Ints) -> tuple[Floats, Floats]:
    """Ends of the columns: half-way to the neighbor, unless that is far away."""
    usual = float(np.median(np.diff(distinct))) if len(distinct) > 1 else 1.0
    half = np.minimum(first[1:] - last[:-1], usual * JOINED_GAPS) / 2.0
    left: Floats = np.asarray(first - usual / 2.0, np.float64)
    right: Floats = np.asarray(last + usual / 2.0, np.float64)
    left[1:], right[:-1] = first[1:] - half, last[:-1] + half
    return left, right


WIDEST = 1e8  # ratio of weights within one piece of a running mean


@dataclass(frozen=True, slots=True)
class ScalarView:
    """A statistic or metric over the steps: lowest, highest and last value of each column of the screen.

    When `thinned` is false every column is one step and the three are the same number.
    """

    name: str
    thinned: bool
    points: int  # values behind the columns
    first_steps: Ints
    last_steps: Ints
    low: Floats  # NaN where a column has no finite value
    high: Floats
    last: Floats  # as it is, NaN and infinite values too
    not_finite: Ints  # in each column: values that are NaN or infinite, or are of tensors that hold such elements
    smooth: Floats  # running mean at the end of each column; empty where none is asked for


def metrics_in_order(columns: list[str]) -> list[str]:
    """Names of the metrics in a table of them, losses first: they are what a training is judged by.

    >>> metrics_in_order(["step", "time_s", "accuracy", "eval_loss", "loss"])
    ['loss', 'eval_loss', 'accuracy']
    """
    names = [name for name in columns if name not in ("step", "time_s", "type")]
    return sorted(names, key=lambda name: ("loss" not in name.lower(), name.lower() not in ("loss", "train_loss")))


def scalar_view(name: str, steps: Ints, values: Floats, screen: Screen, broken: Flags | None = None) -> ScalarView:
    """The values as a view; steps ascend.

    `broken` says which values are of tensors that hold NaN or Inf: statistics are of their finite elements.
    """
    shown = screen.shows(steps)
    curve = smoothed(values, screen.smooth)[shown] if screen.smooth else np.zeros(0)
    steps, values = steps[shown], values[shown]
    grouped = columns(steps, screen.width)
    bad = ~np.isfinite(values)
    finite = np.where(bad, np.nan, values)
    ends = np.append(grouped.starts[1:], len(steps)) - 1
    if len(steps) == 0:
        low = high = last = finite
        not_finite = np.zeros(0, np.int64)
    else:
        low, high = np.fmin.reduceat(finite, grouped.starts), np.fmax.reduceat(finite, grouped.starts)
        last = values[ends]
        marked = bad if broken is None else bad | broken[shown]
        not_finite = np.add.reduceat(marked.astype(np.int64), grouped.starts)
    return ScalarView(
        name=name,
        thinned=len(grouped) < len(steps),
        points=len(steps),
        first_steps=grouped.first_steps,
        last_steps=grouped.last_steps,
        low=low,
        high=high,
        last=last,
        not_finite=not_finite,
        smooth=curve[ends] if len(curve) else curve,
    )


def series_scalar(run: OpenRun, which: SeriesNumber, stat: str, screen: Screen) -> ScalarView:
    """One statistic of one series over the steps."""
    run.require_statistic(stat)
    history = run.history(which).thinned(screen.every)
    return scalar_view(stat, *history.curve(stat), screen, history.broken(stat))


def smoothed(values: Floats, weight: float) -> Floats:
    """The running mean with exponentially falling weights, free of the bias of its start; over NaN and Inf it stays.

    >>> smoothed(np.array([1.0, np.nan, 3.0]), 0.5).round(3).tolist()
    [1.0, 1.0, 2.333]
    """
    finite = np.flatnonzero(np.isfinite(values))
    sums, total = np.empty(len(finite)), np.empty(len(finite))
    length = max(1, min(len(finite), int(np.log(WIDEST) / -np.log(weight))))
    falling = weight ** np.arange(length)
    before = np.zeros(2)
    for first in range(0, len(finite), length):  # in pieces: over many steps the weights leave what a float can hold
        piece = values[finite[first : first + length]]
        scale = falling[: len(piece)]
        for at, (out, of) in enumerate(((sums, piece), (total, np.ones(len(piece))))):
            out[first : first + len(piece)] = scale * (weight * before[at] + np.cumsum(of / scale))
            before[at] = out[first + len(piece) - 1]
    curve = np.full(len(values), np.nan)
    curve[finite] = sums / total
    last = np.maximum.accumulate(np.where(np.isnan(curve), 0, np.arange(len(curve))))
    return np.asarray(curve[last])
