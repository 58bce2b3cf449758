"""Histograms of one series over the steps, and the limits of number formats on the exponent axis."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from layerscope.model.number_formats import RANGES
from layerscope.model.records import Bytes, Floats, Ints
from layerscope.stats import derived
from layerscope.stats.derived import lost
from layerscope.views.open_run import OpenRun, SeriesNumber
from layerscope.views.scalar import Columns, Screen, columns
from layerscope.views.scales import Axis, AxisKind, magnitudes, value_axis

if TYPE_CHECKING:
    from layerscope.query.history import History


NO_FORMAT = "none"
FORMATS = tuple(RANGES)
USUAL_FORMAT = "float16"  # for tensors in formats that are wide anyway


@dataclass(frozen=True, slots=True)
class Limits:
    """What a number format can hold, and how many elements of each column, or run, it would lose."""

    format: str
    smallest: float  # above zero
    smallest_normal: float
    largest: float
    to_zero: Floats  # elements nearer to zero than to the smallest
    subnormal: Floats
    too_large: Floats


def limits_of(magnitudes: derived.BitRows, format_: str) -> Limits | None:
    """The limits of a format; None for no format."""
    if format_ == NO_FORMAT:
        return None
    limits = RANGES[format_]
    to_zero, subnormal, too_large = lost(magnitudes, limits).T.copy()
    return Limits(format_, limits.smallest, limits.smallest_normal, limits.largest, to_zero, subnormal, too_large)


def usual_format(dtype: str) -> str:
    """The format whose limits matter for a tensor: its own where that is narrow."""
    return dtype if dtype in RANGES and dtype != "float32" else USUAL_FORMAT


Cells = npt.NDArray[np.float32]

SHARES = (0.05, 0.25, 0.5, 0.75, 0.95)
NOTHING = 1e-6  # less than this of one element is the rounding of an interpolation
SHADES = 255  # of a bin with something in it; an empty one has shade 0


@dataclass(frozen=True, slots=True)
class HistogramView:
    """Histogram over time: how many elements lie in each bin of each column, and what lies outside the bins.

    Bins are drawn equally high, whatever their edges. On the exponent axis everything is about magnitudes, and zeros,
    which have none, are only in `zeros`; on the others they are also in the bin that holds zero.
    """

    axis: AxisKind
    points: int  # summaries behind the columns
    first_steps: Ints
    last_steps: Ints
    left: Floats  # where a column begins and ends on the axis of steps
    right: Floats
    summaries: Ints  # added up in each column
    edges: Floats  # one more than bins
    ticks: Floats
    counts: Cells  # column after column, bins from low to high
    shades: Bytes  # of the counts, logarithmic: one element among a million is seen
    most: float  # that one summary has in one bin, on average over its column
    below: Floats  # elements under the first edge, per column
    above: Floats
    zeros: Floats
    zero_shades: Bytes  # of the zeros, on the same scale
    nan: Floats
    pos_inf: Floats
    neg_inf: Floats
    total: Floats  # all elements of the column
    smallest: Floats  # true extremes of the finite elements
    largest: Floats
    shares: tuple[float, ...]
    quantiles: Floats  # column after column, one per share
    limits: Limits | None  # on the exponent axis


def series_histogram(
    run: OpenRun, which: SeriesNumber, axis: AxisKind, screen: Screen, format_: str | None = None
) -> HistogramView:
    """The histogram over time of one series; without a format with the limits of the one that suits it."""
    format_ = format_ or usual_format(run.series(which)["dtype"])
    return histogram_view(run.history(which).thinned(screen.every), axis, screen, format_)


def histogram_view(
    history: History, axis: AxisKind, screen: Screen, format_: str = NO_FORMAT, laid: Axis | None = None
) -> HistogramView:
    """Every summary of one series as a histogram over time, on a given axis or the one that suits it."""
    shown = screen.shows(history.steps)
    grouped = columns(history.steps[shown], screen.width)
    bits = history.bits.decoded(shown.start + np.append(grouped.starts, len(grouped.of_row)))
    bits = magnitudes(bits) if axis is AxisKind.EXPONENT else bits
    of_columns = _Moments(history, shown, grouped)
    zeros = np.zeros(len(grouped)) if axis is AxisKind.EXPONENT else of_columns.added("zeros")
    laid = laid or value_axis(axis, bits, float(zeros.sum()), screen.height)
    counts = binned(bits, laid.edges, zeros)
    cells = counts[:, 1:-1].astype(np.float32)
    summaries = np.bincount(grouped.of_row, minlength=len(grouped))
    means = np.divide(cells, summaries[:, None], dtype=np.float32)
    most = float(means.max(initial=1.0))
    extremes = ("abs_min", "abs_max") if axis is AxisKind.EXPONENT else ("min", "max")
    return HistogramView(
        axis=axis,
        points=len(grouped.of_row),
        first_steps=grouped.first_steps,
        last_steps=grouped.last_steps,
        left=grouped.left,
        right=grouped.right,
        summaries=summaries,
        edges=laid.edges,
        ticks=laid.ticks,
        counts=cells.ravel(),
        shades=_shades(means, np.float32(most)).ravel(),
        most=most,
        below=counts[:, 0],
        above=counts[:, -1],
        zeros=of_columns.added("zeros"),
        zero_shades=_shades(of_columns.added("zeros") / summaries, np.float32(most)),
        nan=of_columns.added("nan"),
        pos_inf=of_columns.added("pos_inf"),
        neg_inf=of_columns.added("neg_inf"),
        total=of_columns.added("count"),
        smallest=of_columns.extreme(extremes[0], np.fmin),
        largest=of_columns.extreme(extremes[1], np.fmax),
        shares=SHARES,
        quantiles=derived.quantiles(bits, zeros, np.array(SHARES)).ravel(),
        limits=limits_of(bits, format_) if axis is AxisKind.EXPONENT else None,
    )


def shaded(view: HistogramView, most: float) -> HistogramView:
    """The same with the shades of a larger number of elements per bin, which others may have."""
    means = view.counts.reshape(len(view.summaries), -1) / view.summaries[:, None]
    zeros = _shades(view.zeros / view.summaries, np.float32(most))
    return replace(view, shades=_shades(means, np.float32(most)).ravel(), zero_shades=zeros, most=most)


def _shades(counts: Cells | Floats, most: np.float32 | Floats) -> Bytes:
    share = np.log1p(counts) / np.log1p(np.maximum(most, 1))
    return np.where(counts > 0, 1 + np.minimum(share * SHADES, SHADES - 1), 0).astype(np.uint8)


class _Moments:
    """Moments of the columns, from those of the rows."""

    def __init__(self, history: History, shown: slice, grouped: Columns) -> None:
        self._history, self._shown, self._grouped = history, shown, grouped

    def added(self, name: str) -> Floats:
        rows = self._history.stat(name)[self._shown]
        return np.bincount(self._grouped.of_row, rows, len(self._grouped)).astype(np.float64)

    def extreme(self, name: str, combine: np.ufunc) -> Floats:
        rows = self._history.stat(name)[self._shown]
        result: Floats = combine.reduceat(rows, self._grouped.starts) if len(rows) else rows
        return result


def binned(bits: derived.BitRows, edges: Floats, zeros: Floats) -> Floats:
    """Counts below the first edge, in each bin, and above the last edge, (columns, bins + 2)."""
    below = derived.cumulative(bits, edges)
    everything = np.bincount(bits.row, bits.counts, bits.rows)
    counts = np.empty((bits.rows, len(edges) + 1))
    counts[:, 0] = below[:, 0]
    np.subtract(below[:, 1:], below[:, :-1], out=counts[:, 1:-1])
    counts[:, -1] = everything - below[:, -1]
    place = int(np.searchsorted(edges, 0.0, side="right"))
    if edges[-1] == 0.0:  # the last bin holds its upper edge too
        place -= 1
    counts[:, place] += zeros
    counts[counts < NOTHING] = 0.0
    return counts
