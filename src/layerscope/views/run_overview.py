"""A run at a glance: its line in the list of runs, its sites, timeline, metrics, notes and parameters."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from layerscope.graph.module_blocks import MODEL
from layerscope.model.records import KINDS_WITH, Floats, Ints, Kind
from layerscope.model.text import shape_text
from layerscope.query import tables
from layerscope.query.history import read_history
from layerscope.query.run_tables import statistics
from layerscope.store.reader import Reader
from layerscope.store.traces import trace_folders
from layerscope.views.findings import FindingCounts
from layerscope.views.histogram import FORMATS
from layerscope.views.open_run import OpenRun, Runs
from layerscope.views.scalar import ScalarView, Screen, metrics_in_order, scalar_view

SPARKLINE = 120  # points of a run's small curve
LONGEST_PROBLEM = 1000  # characters
MOST_EVENTS, MOST_NOTES = 1000, 5000
NOTED = ("note", "warning", "drop", "skipped", "kept")  # levels of events that are notes

MetricCurves = dict[str, tuple[Ints, Floats]]


@dataclass(frozen=True, slots=True)
class RunEntry:
    """One line of the list of runs."""

    name: str
    status: str  # "running", "finished", "stopped", or "unreadable"
    last_step: int | None
    metrics: tuple[str, ...]
    metric_values: Floats  # the last value of each
    sparkline: Floats  # the first metric, thinned
    problem: str | None  # what is wrong with the run, and what to do
    findings: FindingCounts | None = None  # None until it has been checked


@dataclass(frozen=True, slots=True)
class RunList:
    """The runs that are served."""

    folder: str
    version: str
    runs: tuple[RunEntry, ...]


@dataclass(frozen=True, slots=True)
class SeriesEntry:
    """One history that a run holds."""

    series: int
    rank: int
    site: str
    port: str
    kind: str
    mode: str
    context: str  # "" for none
    dtype: str
    phase: str
    local: str  # "" for the whole tensor
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LimitedStatistic:
    """A statistic that only tensors of some kinds have."""

    stat: str
    kinds: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SiteList:
    """Everything that can be shown of a run: its series, in the order of first appearance, and the statistics."""

    run: str
    stats: tuple[str, ...]
    series: tuple[SeriesEntry, ...]
    traces: int  # saved in it
    formats: tuple[str, ...]  # whose limits can be shown
    limited: tuple[LimitedStatistic, ...] = ()  # every kind has the other statistics
    left_out: int = 0  # series that a saved report has no room for


@dataclass(frozen=True, slots=True)
class EventEntry:
    """A note, a warning or a loss of rows at a step."""

    step: int
    level: str
    text: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """What is always in sight of a run: its metrics over the steps and what happened."""

    run: str
    first_step: int | None
    last_step: int | None
    metrics: tuple[ScalarView, ...]
    events: tuple[EventEntry, ...]


@dataclass(frozen=True, slots=True)
class MetricCurve:
    """One metric of one run in steps of one type."""

    run: str
    type: str
    view: ScalarView


@dataclass(frozen=True, slots=True)
class MetricChart:
    """One metric: `group/name` is called by its group and its name."""

    group: str
    name: str
    curves: tuple[MetricCurve, ...]


@dataclass(frozen=True, slots=True)
class MetricsView:
    """The metrics of several runs by group; what one of the runs lacks is just not there."""

    first_step: int | None
    last_step: int | None
    types: tuple[str, ...]
    charts: tuple[MetricChart, ...]


@dataclass(frozen=True, slots=True)
class NotesView:
    """Everything that was noted, in the order of time."""

    run: str
    steps: Ints
    times: Floats  # seconds since the epoch
    levels: tuple[str, ...]
    texts: tuple[str, ...]
    left_out: int  # older ones


@dataclass(frozen=True, slots=True)
class NetworkView:
    """Modules and parameters as a tree, parents before children: columns of its lines."""

    run: str
    names: tuple[str, ...]
    depths: tuple[int, ...]
    classes: tuple[str, ...]  # of a parameter its shape
    counts: Floats  # parameters, those of children included
    total: int


def run_entry(name: str, status: str, reader: Reader) -> RunEntry:
    """The line of one run in the list."""
    curves = metric_curves(reader)
    columns = [column for _, column in curves.values()]
    curve = columns[0] if columns else np.zeros(0)
    thinned = np.linspace(0, len(curve) - 1, min(len(curve), SPARKLINE)).astype(np.int64)
    return RunEntry(
        name=name,
        status=status,
        last_step=reader.last_step,
        metrics=tuple(curves),
        metric_values=np.array([column[-1] if len(column) else np.nan for column in columns]),
        sparkline=curve[thinned],
        problem=bounded_text(reader.problems()),
    )


def bounded_text(sentences: Sequence[str]) -> str | None:
    """Sentences as one text of bounded length that every encoding takes; None if there are none."""
    text = " ".join(sentences).encode("utf-8", "backslashreplace").decode()
    return (text if len(text) <= LONGEST_PROBLEM else f"{text[:LONGEST_PROBLEM]} …") or None


def metric_curves(reader: Reader) -> MetricCurves:
    """Steps and values of every metric, losses first."""
    curves = tables.curves_by_name(reader.metrics())
    return {metric: curves[metric] for metric in metrics_in_order(list(curves))}


def step_range(reader: Reader, curves: MetricCurves) -> tuple[int, int] | None:
    """The first and last step: of the metrics and of all that was recorded; None if there is nothing."""
    last = reader.last_step
    if last is None:
        return None
    small = [tables.ints(reader.overhead(), "step"), tables.ints(reader.steps(), "step")]
    starts = [int(steps.min()) for steps in (*small, *(steps for steps, _ in curves.values())) if len(steps)]
    if not starts:
        first_series = read_history(reader, reader.series().slice(0, 1), columns=["count"])
        starts = [int(first_series.steps.min(initial=last))]
    return min(starts), last


def site_list(run: OpenRun) -> SiteList:
    """What can be shown of the run: one record as long as that does not change, since it can be long."""
    series, stats, traces = run.reader.series(), statistics(run.reader), len(trace_folders(run.reader.folder))

    def make() -> SiteList:
        columns = series.select(SeriesEntry.__slots__).to_pydict()
        limited = tuple(LimitedStatistic(*one) for one in KINDS_WITH.items() if one[0] in stats)
        return SiteList(run.name, stats, tuple(map(SeriesEntry, *columns.values())), traces, FORMATS, limited)

    return run.sites.get("", make, (series, stats, traces))


def timeline(run: OpenRun, screen: Screen) -> Timeline:
    """The run's metrics and events; the range of its steps is that of the whole run, whatever part is shown."""
    curves = metric_curves(run.reader)
    events = run.reader.events().select(["step", "level", "text"])
    newest = events.slice(max(0, len(events) - MOST_EVENTS)).to_pylist()
    first, last = step_range(run.reader, curves) or (None, None)
    return Timeline(
        run=run.name,
        first_step=first,
        last_step=last,
        metrics=tuple(scalar_view(metric, *curve, screen) for metric, curve in curves.items()),
        events=tuple(EventEntry(**event) for event in newest),
    )


def metrics_view(runs: Runs, screen: Screen) -> MetricsView:
    """Every metric of the runs, a curve for each run and type of step; the list of runs says which cannot be read."""
    charts: dict[str, list[MetricCurve]] = {}
    types: set[str] = set()
    ends: list[int] = []
    for one in runs:
        curves = tables.curves(one.run.reader.metrics(), "name", "type") if one.run else {}
        for (name, type_), (steps, values) in curves.items():
            types.add(type_)
            ends += [int(steps[0]), int(steps[-1])]
            charts.setdefault(name, []).append(MetricCurve(one.name, type_, scalar_view(name, steps, values, screen)))
    in_order = tuple(MetricChart(*split_metric(name), tuple(charts[name])) for name in in_groups(charts))
    return MetricsView(min(ends, default=None), max(ends, default=None), tuple(sorted(types)), in_order)


def notes_view(run: OpenRun) -> NotesView:
    """What was noted while training."""
    rows = [row for row in run.reader.events().to_pylist() if row["level"] in NOTED]
    newest = rows[-MOST_NOTES:]
    return NotesView(
        run=run.name,
        steps=np.array([row["step"] for row in newest], np.int64),
        times=np.array([row["time_s"] for row in newest], np.float64),
        levels=tuple(row["level"] for row in newest),
        texts=tuple(row["text"] for row in newest),
        left_out=len(rows) - len(newest),
    )


def split_metric(name: str) -> tuple[str, str]:
    """Group and name of a metric.

    >>> split_metric("accuracy/last"), split_metric("loss")
    (('accuracy', 'last'), ('', 'loss'))
    """
    group, _, rest = name.rpartition("/")
    return group, rest


def in_groups(names: Iterable[str]) -> list[str]:
    """Metrics by group, those without one first, losses before others."""
    return sorted(
        names, key=lambda name: (split_metric(name)[0] != "", "loss" not in name.lower(), split_metric(name)[0])
    )


def network_view(run: OpenRun) -> NetworkView:
    """The modules and parameters of the watched model as a tree."""
    rows = run.reader.series().to_pylist()
    parameters = {row["site"]: tuple(row["shape"]) for row in rows if row["kind"] == Kind.WEIGHT.value}
    graph = run.reader.graph()
    own: dict[str, int] = {"": 0}  # elements of each line without its children
    classes = {"": "model"}
    for module in graph.modules if graph else ():
        path = "" if module.path == MODEL else module.path
        for above in _chain(path):
            own.setdefault(above, 0)
            classes.setdefault(above, "")
        own[path], classes[path] = module.parameters, module.class_name
    for name, shape in parameters.items():
        owner = name.rpartition(".")[0]
        size = math.prod(shape)
        for path in _chain(owner):
            own.setdefault(path, 0)
            classes.setdefault(path, "")
        own[owner] = max(0, own[owner] - size)  # what has a line of its own is counted there
        own[name], classes[name] = size, shape_text(shape)
    total = dict.fromkeys(own, 0)
    for path, count in own.items():
        for above in _chain(path):
            total[above] = total.get(above, 0) + count
    order = {path: at for at, path in enumerate(own)}
    lines = sorted(own, key=lambda path: [order[above] for above in _chain(path)])
    return NetworkView(
        run=run.name,
        names=tuple(path.rpartition(".")[2] for path in lines),
        depths=tuple(path.count(".") + 1 if path else 0 for path in lines),
        classes=tuple(classes[path] for path in lines),
        counts=np.array([total[path] for path in lines], np.float64),
        total=total[""],
    )


def _chain(path: str) -> list[str]:
    """A path and all above it, the model first."""
    parts = path.split(".") if path else []
    return ["", *(".".join(parts[: at + 1]) for at in range(len(parts)))]
