"""The same thing of several runs: curves on one axis of steps, histograms on one axis of values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from layerscope.errors import LayerscopeError, SelectError
from layerscope.model.records import Floats
from layerscope.query.history import History
from layerscope.query.run_tables import statistics
from layerscope.query.tables import at_or_before
from layerscope.stats import derived
from layerscope.views.histogram import (
    NO_FORMAT,
    HistogramView,
    Limits,
    binned,
    histogram_view,
    limits_of,
    shaded,
    usual_format,
)
from layerscope.views.open_run import OpenRun, RunOrProblem, Runs, SeriesNumber
from layerscope.views.run_overview import MetricCurves, metric_curves, step_range
from layerscope.views.scalar import ScalarView, Screen, metrics_in_order, scalar_view
from layerscope.views.scales import AxisKind, magnitudes, value_axis


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
    is_broken: bool = False  # the run cannot be read


@dataclass(frozen=True, slots=True)
class TensorName:
    """A tensor by its names: numbers of series differ between runs."""

    site: str
    kind: str
    mode: str
    context: str = ""  # "" for none
    port: str = ""  # "" for any
    rank: int = 0


def compare_curves(runs: Runs, tensor: TensorName, stat: str, screen: Screen) -> CompareView:
    """Metrics of all runs, and one statistic of one tensor in each."""
    metrics: dict[str, MetricCurves] = {}
    ends: list[int] = []
    known: set[str] = set()  # a custom statistic of one run may be missing in the others
    curves = []
    for one in runs:
        history = run_history(one, tensor, screen)
        curves.append(_curve(history, stat, screen))
        metrics[one.name] = {}
        if one.run is not None and not history.is_broken:
            known |= set(statistics(one.run.reader))
            metrics[one.name] = metric_curves(one.run.reader)
            ends += step_range(one.run.reader, metrics[one.name]) or ()
    if stat not in known:
        raise SelectError(f"No run has a statistic {stat!r}. There are: {', '.join(sorted(known)) or 'none'}.")
    return CompareView(
        first_step=min(ends, default=None),
        last_step=max(ends, default=None),
        metrics=_metrics(metrics, screen),
        tensor=Curves(stat, tuple(curves)),
    )


def compare_histograms(
    runs: Runs, tensor: TensorName, step: int | None, axis: AxisKind, screen: Screen, format_: str | None = None
) -> HistogramsView:
    """One tensor at one step of every run; without a format with the limits of the one that suits it."""
    histories = [run_history(one, tensor, screen) for one in runs]
    return histograms_view(histories, step, axis, screen.height, format_ or _usual_format(histories))


def compare_over_time(
    runs: Runs, tensor: TensorName, axis: AxisKind, screen: Screen, format_: str | None = None
) -> OverTimeView:
    """One tensor of every run over the steps."""
    histories = [run_history(one, tensor, screen) for one in runs]
    return over_time_view(histories, axis, screen, format_ or _usual_format(histories))


def step_histogram(
    run: OpenRun, which: SeriesNumber, step: int | None, axis: AxisKind, screen: Screen, format_: str | None = None
) -> HistogramsView:
    """The histogram of one series at the last recorded step at or before a step."""
    history = RunHistory(run.name, run.history(which).thinned(screen.every))
    return histograms_view([history], step, axis, screen.height, format_ or usual_format(run.series(which)["dtype"]))


def run_history(one: RunOrProblem, tensor: TensorName, screen: Screen) -> RunHistory:
    """What a run has of a tensor; a run that was deleted or is damaged must not hide the others."""
    if one.run is None:
        return RunHistory(one.name, None, one.problem, is_broken=True)
    try:
        names = {name: text for name, text in asdict(tensor).items() if text != "" or name != "port"}
        rows = [row for row in one.run.reader.series().to_pylist() if names.items() <= row.items()]
        if not rows:
            return RunHistory(one.name, None, f"the run has no {tensor.kind or 'tensor'} of {tensor.site!r}")
        newest = one.run.history(SeriesNumber(rows[-1]["series"], tensor.rank))
        return RunHistory(one.name, newest.thinned(screen.every), dtype=rows[-1]["dtype"])
    except (LayerscopeError, OSError) as error:
        return RunHistory(one.name, None, str(error), is_broken=True)


def _usual_format(histories: Iterable[RunHistory]) -> str:
    return usual_format(next((one.dtype for one in histories if one.history is not None), ""))


def _metrics(of_runs: dict[str, MetricCurves], screen: Screen) -> tuple[Curves, ...]:
    def curve(run: str, metric: str) -> RunCurve:
        if metric not in of_runs[run]:
            return RunCurve(run, None, f"the run has no metric {metric!r}")
        return RunCurve(run, scalar_view(metric, *of_runs[run][metric], screen), "")

    names = metrics_in_order(list(dict.fromkeys(metric for curves in of_runs.values() for metric in curves)))
    return tuple(Curves(metric, tuple(curve(run, metric) for run in of_runs)) for metric in names)


def _curve(one: RunHistory, stat: str, screen: Screen) -> RunCurve:
    if one.history is None:
        return RunCurve(one.run, None, one.lacking)
    return RunCurve(one.run, scalar_view(stat, *one.history.curve(stat), screen, one.history.broken(stat)), "")


def histograms_view(
    histories: Sequence[RunHistory], step: int | None, axis: AxisKind, bins: int, format_: str = NO_FORMAT
) -> HistogramsView:
    """The histograms at the last recorded step at or before a step, of each run its own; without a step at the last."""
    rows = [
        None if one.history is None or not len(one.history.steps) else at_or_before(one.history.steps, step)
        for one in histories
    ]
    parts = [_row(one, row) for one, row in zip(histories, rows, strict=True)]
    parts = [magnitudes(part) for part in parts] if axis is AxisKind.EXPONENT else parts
    together = _together(parts)
    zeros = np.array([_number(one, row, "zeros") for one, row in zip(histories, rows, strict=True)])
    counted = np.zeros(len(histories)) if axis is AxisKind.EXPONENT else zeros
    laid = value_axis(axis, together, float(counted.sum()), bins, octaves=True)
    counts = binned(together, laid.edges, counted)
    ends = ("abs_min", "abs_max") if axis is AxisKind.EXPONENT else ("min", "max")
    each = zip(histories, rows, counts, strict=True)
    runs = tuple(_histogram(one, row, bins_of, ends) for one, row, bins_of in each)
    limits = limits_of(together, format_) if axis is AxisKind.EXPONENT else None
    return HistogramsView(axis, laid.edges, laid.ticks, runs, limits)


def over_time_view(
    histories: Sequence[RunHistory], axis: AxisKind, screen: Screen, format_: str = NO_FORMAT
) -> OverTimeView:
    """The histograms over time of all runs, on the axis that suits them together."""
    shown = [(one.history, screen.shows(one.history.steps)) for one in histories if one.history is not None]
    parts = [history.bits.decoded(np.array([rows.start, rows.stop])) for history, rows in shown] or [_NOTHING]
    zeros = sum(float(history.stat("zeros")[rows].sum()) for history, rows in shown)
    together = _together([magnitudes(part) for part in parts] if axis is AxisKind.EXPONENT else parts)
    laid = value_axis(axis, together, 0.0 if axis is AxisKind.EXPONENT else zeros, screen.height)
    views = [histogram_view(one.history, axis, screen, format_, laid) if one.history else None for one in histories]
    most = max((view.most for view in views if view is not None), default=1.0)
    alike = [None if view is None else shaded(view, most) for view in views]
    each = zip(histories, alike, strict=True)
    return OverTimeView(tuple(RunOverTime(one.run, view, one.lacking) for one, view in each))


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
