"""The same thing of several runs: curves on one axis of steps, histograms on one axis of values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from layerscope.model.records import Floats
from layerscope.query.tables import at_or_before
from layerscope.stats import derived
from layerscope.views.histogram import NO_FORMAT, HistogramView, Limits, binned, histogram_view, limits_of, shaded
from layerscope.views.scalar import ScalarView, Screen
from layerscope.views.scales import AxisKind, magnitudes, value_axis

if TYPE_CHECKING:
    from layerscope.query.history import History


@dataclass(frozen=True, slots=True)
class RunCurve:
    """One number of one run over the steps; None with the reason where the run does not have it."""

    run: str
    view: ScalarView | None
    lacking: str


@dataclass(frozen=True, slots=True)
class Curves:
    """One number of several runs."""

    name: str
    runs: tuple[RunCurve, ...]


@dataclass(frozen=True, slots=True)
class CompareView:
    """The metrics of several runs, and one statistic of the same tensor in each."""

    first_step: int | None
    last_step: int | None
    metrics: tuple[Curves, ...]
    tensor: Curves


@dataclass(frozen=True, slots=True)
class StepHistogram:
    """The histogram of one tensor at one step of one run; without a step where the run does not have it."""

    run: str
    step: int | None
    lacking: str
    counts: Floats  # elements in each bin
    numbers: Floats  # elements, below the first edge, above the last, zeros, NaN, infinite
    extremes: Floats  # smallest, largest (on the exponent axis of the magnitudes), mean, standard deviation


@dataclass(frozen=True, slots=True)
class HistogramsView:
    """Histograms of the same tensor in several runs, on one axis of values."""

    axis: AxisKind
    edges: Floats
    ticks: Floats
    runs: tuple[StepHistogram, ...]
    limits: Limits | None  # on the exponent axis


@dataclass(frozen=True, slots=True)
class RunOverTime:
    """The histogram over time of one tensor of one run; None with the reason where the run does not have it."""

    run: str
    view: HistogramView | None
    lacking: str


@dataclass(frozen=True, slots=True)
class OverTimeView:
    """Histograms over time of the same tensor in several runs, on one axis of values."""

    runs: tuple[RunOverTime, ...]


@dataclass(frozen=True, slots=True)
class RunHistory:
    """What a run has of a tensor: its history, or why there is none."""

    run: str
    history: History | None
    lacking: str = ""
    dtype: str = ""  # as it was in the training


def histograms_view(
    held: Sequence[RunHistory], step: int | None, axis: AxisKind, bins: int, format_: str = NO_FORMAT
) -> HistogramsView:
    """The histograms at the last recorded step at or before a step, of each run its own; without a step at the last."""
    rows = [
        None if one.history is None or not len(one.history.steps) else at_or_before(one.history.steps, step)
        for one in held
    ]
    parts = [_row(one, row) for one, row in zip(held, rows, strict=True)]
    parts = [magnitudes(part) for part in parts] if axis is AxisKind.EXPONENT else parts
    together = _together(parts)
    zeros = np.array([_number(one, row, "zeros") for one, row in zip(held, rows, strict=True)])
    counted = np.zeros(len(held)) if axis is AxisKind.EXPONENT else zeros
    laid = value_axis(axis, together, float(counted.sum()), bins, octaves=True)
    counts = binned(together, laid.edges, counted)
    ends = ("abs_min", "abs_max") if axis is AxisKind.EXPONENT else ("min", "max")
    runs = tuple(_histogram(one, row, counts[at], ends) for at, (one, row) in enumerate(zip(held, rows, strict=True)))
    limits = limits_of(together, format_) if axis is AxisKind.EXPONENT else None
    return HistogramsView(axis, laid.edges, laid.ticks, runs, limits)


def over_time_view(
    held: Sequence[RunHistory], axis: AxisKind, screen: Screen, format_: str = NO_FORMAT
) -> OverTimeView:
    """The histograms over time of all runs, on the axis that suits them together."""
    shown = [(one.history, screen.shows(one.history.steps)) for one in held if one.history is not None]
    parts = [history.bits.decoded(np.array([rows.start, rows.stop])) for history, rows in shown] or [_NOTHING]
    zeros = sum(float(history.stat("zeros")[rows].sum()) for history, rows in shown)
    together = _together([magnitudes(part) for part in parts] if axis is AxisKind.EXPONENT else parts)
    laid = value_axis(axis, together, 0.0 if axis is AxisKind.EXPONENT else zeros, screen.height)
    views = [histogram_view(one.history, axis, screen, format_, laid) if one.history else None for one in held]
    most = max((view.most for view in views if view is not None), default=1.0)
    alike = [None if view is None else shaded(view, most) for view in views]
    return OverTimeView(tuple(RunOverTime(one.run, view, one.lacking) for one, view in zip(held, alike, strict=True)))


_NOTHING = derived.BitRows(
    1, np.zeros(0, np.int64), np.zeros(0), np.zeros(0), np.zeros(0, np.int64), np.zeros(0, np.int32)
)


def _row(one: RunHistory, row: int | None) -> derived.BitRows:
    return _NOTHING if one.history is None or row is None else one.history.bits.decoded(np.array([row, row + 1]))


def _together(parts: list[derived.BitRows]) -> derived.BitRows:
    row = np.repeat(np.arange(len(parts)), [len(part.row) for part in parts])
    joined = [np.concatenate([getattr(part, name) for part in parts]) for name in ("low", "high", "counts", "exponent")]
    return derived.BitRows(len(parts), row, *joined)


def _number(one: RunHistory, row: int | None, stat: str) -> float:
    return 0.0 if one.history is None or row is None else float(one.history.stat(stat)[row])


def _histogram(one: RunHistory, row: int | None, counts: Floats, ends: tuple[str, str]) -> StepHistogram:
    of = [_number(one, row, stat) for stat in ("count", "zeros", "nan", "pos_inf", "neg_inf")]
    numbers = np.array([of[0], counts[0], counts[-1], of[1], of[2], of[3] + of[4]])
    extremes = np.array([_number(one, row, stat) for stat in (*ends, "mean", "std")])
    if one.history is None or row is None:
        lacking = one.lacking or "nothing was recorded of it"
        return StepHistogram(one.run, None, lacking, counts[1:-1], numbers, np.full(4, np.nan))
    return StepHistogram(one.run, int(one.history.steps[row]), "", counts[1:-1], numbers, extremes)
