"""What the page asks beside tensors: metrics by type of step, notes, and the tree of parameters."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from layerscope.errors import LayerscopeError
from layerscope.model.records import KINDS_WITH, Floats, Ints, Kind
from layerscope.query.history import History
from layerscope.query.run_tables import statistics
from layerscope.query.tables import curves
from layerscope.server import background, wire
from layerscope.server.catalogue import Catalogue, OpenRunEntry, metric_curves, step_range
from layerscope.server.messages import EventEntry, LimitedStatistic, RunList, SeriesEntry, SiteList, Timeline
from layerscope.server.query_params import (
    axis_of,
    chosen,
    every_of,
    format_of,
    integer,
    runs_of,
    screen_of,
    share,
    step_of,
)
from layerscope.server.routes import findings, graph, heatmap
from layerscope.server.routes.compare import Comparing
from layerscope.server.routes.custom_view import OwnView
from layerscope.server.routes.tensors import Tensors
from layerscope.server.routes.traces import Traces
from layerscope.store.reader import Reader
from layerscope.store.traces import pass_folders
from layerscope.version import __version__
from layerscope.views.compare import HistogramsView, RunHistory, histograms_view
from layerscope.views.histogram import FORMATS, HistogramView, histogram_view
from layerscope.views.scalar import ScalarView, scalar_view
from layerscope.views.training import (
    MetricChart,
    MetricCurve,
    MetricsView,
    NetworkView,
    NotesView,
    in_groups,
    network_view,
    split_metric,
)

TrainingAnswer = Callable[[OpenRunEntry, str, Request], object]
MOST_NOTES = 5000
TOLD = ("note", "warning", "drop", "skipped", "kept")


def training_routes(
    catalogue: Catalogue,
    of_run: Callable[[TrainingAnswer], Callable[[Request], Response]],
    send: Callable[[object], Response],
) -> list[Route]:
    """Everything that can be asked."""
    return [
        Route("/api/metrics", lambda request: send(metrics(catalogue, request))),
        Route("/api/run/{name:path}/notes", of_run(notes)),
        Route("/api/run/{name:path}/network", of_run(network)),
    ]


def metrics(catalogue: Catalogue, request: Request) -> MetricsView:
    """Every metric of the runs, a curve for each run and type of step."""
    screen, smooth = screen_of(request), share(request, "smooth")
    found: dict[str, list[MetricCurve]] = {}
    types: dict[str, None] = {}
    ends: list[int] = []
    for run in runs_of(request):
        try:
            opened = catalogue.open(run)
            with opened.lock:
                by_type = _by_type(opened.reader)
        except (LayerscopeError, OSError):  # the list of runs says why
            continue
        for (name, type_), (steps, values) in by_type.items():
            types.setdefault(type_)
            ends += [int(steps[0]), int(steps[-1])]
            view = scalar_view(name, steps, values, screen, smooth)
            found.setdefault(name, []).append(MetricCurve(run, type_, view))
    charts = tuple(MetricChart(*split_metric(name), tuple(found[name])) for name in in_groups(found))
    return MetricsView(min(ends, default=None), max(ends, default=None), tuple(sorted(types)), charts)


def _by_type(reader: Reader) -> dict[tuple[str, str], tuple[Ints, Floats]]:
    """Steps and values of every metric in steps of each type; the last value of a step counts."""
    found = curves(reader.metrics(), "name", "type")
    return {(name, type_): curve for (name, type_), curve in found.items()}


def notes(opened: OpenRunEntry, name: str, request: Request) -> NotesView:
    """What was noted while training."""
    rows = [row for row in opened.reader.events().to_pylist() if row["level"] in TOLD]
    newest = rows[-MOST_NOTES:]
    return NotesView(
        run=name,
        steps=np.array([row["step"] for row in newest], np.int64),
        times=np.array([row["time_s"] for row in newest], np.float64),
        levels=tuple(row["level"] for row in newest),
        texts=tuple(row["text"] for row in newest),
        left_out=len(rows) - len(newest),
    )


def network(opened: OpenRunEntry, name: str, request: Request) -> NetworkView:
    """The modules and parameters of the watched model."""
    rows = opened.reader.series().to_pylist()
    shapes = {row["site"]: tuple(row["shape"]) for row in rows if row["kind"] == Kind.WEIGHT.value}
    return network_view(name, opened.reader.graph(), list(shapes.items()))


Answer = TypeVar("Answer")
MOST_EVENTS = 1000


def routes(catalogue: Catalogue, own_view: OwnView | None = None) -> list[Route]:
    """Everything the page can ask for. The functions block, so Starlette runs them in its thread pool."""

    def runs(request: Request) -> Response:
        entries = tuple(catalogue.entries())
        return sent(RunList(catalogue.title, __version__, entries))

    def of_run(answer: Callable[[OpenRunEntry, str, Request], object]) -> Callable[[Request], Response]:
        def endpoint(request: Request) -> Response:
            name = request.path_params["name"]
            opened = catalogue.open(name)
            with opened.lock:
                response = sent(answer(opened, name, request))
            catalogue.quiet.later("memory", background.tidy)
            return response

        return endpoint

    def place(name: str) -> tuple[Path, object]:
        opened = catalogue.open(name)
        with opened.lock:
            return opened.reader.folder, opened.reader.revision()

    def scalar_of(opened: OpenRunEntry, name: str, request: Request) -> ScalarView:
        view = scalar(opened, name, request)
        matrices.read_ahead(opened, heatmap.question_about(opened, *series_of(request), view.name))
        return view

    matrices = heatmap.Matrices(catalogue.quiet)
    return [
        Route("/api/runs", runs),
        Route("/api/run/{name:path}/sites", of_run(sites)),
        Route("/api/run/{name:path}/timeline", of_run(timeline)),
        Route("/api/run/{name:path}/scalar", of_run(scalar_of)),
        Route("/api/run/{name:path}/histogram", of_run(histogram)),
        Route("/api/run/{name:path}/step-histogram", of_run(step_histogram)),
        *Traces().routes(of_run),
        *graph.routes(of_run, matrices),
        *heatmap.routes(of_run, matrices),
        *findings.routes(place, catalogue.diagnoses, sent),
        *Comparing(catalogue, matrices, sent).routes(),
        *Tensors(catalogue, sent, own_view).routes(),
        *training_routes(catalogue, of_run, sent),
    ]


def sent(record: object) -> Response:
    """A record, or its message, as a response that no cache keeps."""
    message = record if isinstance(record, bytes) else wire.encode(record)
    return Response(message, media_type=wire.MEDIA_TYPE, headers={"Cache-Control": "no-store"})


def sites(opened: OpenRunEntry, name: str, request: Request | None = None) -> bytes:
    """What can be shown of the run, as a message: it is long, and the same from one step of a live run to the next."""
    series = opened.reader.series()
    about = (name, statistics(opened.reader), len(pass_folders(opened.reader.folder)))
    kept = opened.sites
    if kept is None or kept[0] is not series or kept[1] != about:
        columns = series.select(SeriesEntry.__slots__).to_pydict()
        limited = tuple(LimitedStatistic(*one) for one in KINDS_WITH.items() if one[0] in about[1])
        of_sites = SiteList(*about[:2], tuple(map(SeriesEntry, *columns.values())), about[2], FORMATS, limited)
        kept = opened.sites = (series, about, wire.encode(of_sites))
    return kept[2]


def timeline(opened: OpenRunEntry, name: str, request: Request) -> Timeline:
    """The run's metrics and events; the range of its steps is that of the whole run, whatever part is shown."""
    screen, smooth = screen_of(request), share(request, "smooth")
    curves = metric_curves(opened.reader)
    steps: Ints = np.unique(np.concatenate([np.zeros(0, np.int64), *(steps for steps, _ in curves.values())]))
    events = opened.reader.events().select(["step", "level", "text"])
    newest = events.slice(max(0, len(events) - MOST_EVENTS)).to_pylist()
    first, last = step_range(opened.reader, steps) or (None, None)
    return Timeline(
        run=name,
        first_step=first,
        last_step=last,
        metrics=tuple(scalar_view(metric, *curve, screen, smooth) for metric, curve in curves.items()),
        events=tuple(EventEntry(**event) for event in newest),
    )


def scalar(opened: OpenRunEntry, name: str, request: Request) -> ScalarView:
    """One statistic of one series."""
    stat = chosen(request, "stat", statistics(opened.reader))
    history = history_of(opened, request)
    curve, smooth = history.curve(stat), share(request, "smooth")
    return scalar_view(stat, *curve, screen_of(request), smooth, history.broken(stat))


def histogram(opened: OpenRunEntry, name: str, request: Request) -> HistogramView:
    """The histogram over time of one series."""
    which = series_of(request)
    format_ = format_of(request, opened.dtype(*which))
    return histogram_view(history_of(opened, request), axis_of(request), screen_of(request), format_)


def step_histogram(opened: OpenRunEntry, name: str, request: Request) -> HistogramsView:
    """The histogram of one series at the last recorded step at or before the one asked for."""
    which = series_of(request)
    held = [RunHistory(name, history_of(opened, request))]
    bins, format_ = screen_of(request).height, format_of(request, opened.dtype(*which))
    return histograms_view(held, step_of(request), axis_of(request), bins, format_)


def history_of(opened: OpenRunEntry, request: Request) -> History:
    """The rows of the series that is asked for, or some of them."""
    return opened.history(*series_of(request)).thinned(every_of(request))


def series_of(request: Request) -> tuple[int, int]:
    """Number and rank of the series that is asked for."""
    return integer(request, "series", None, 0), integer(request, "rank", 0, 0)
