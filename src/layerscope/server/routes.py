"""Requests → records: what is asked for, checked, read and sent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from layerscope.query.run import History
from layerscope.records import KINDS_WITH, Ints
from layerscope.server import findings, graph, heatmap, lean, training, wire
from layerscope.server.asked import axis_of, chosen, every_of, format_of, integer, screen_of, share, step_of
from layerscope.server.catalogue import Catalogue, Opened, metric_curves, step_range
from layerscope.server.compare import Comparing
from layerscope.server.customview import OwnView
from layerscope.server.messages import EventEntry, LimitedStatistic, RunList, SeriesEntry, SiteList, Timeline
from layerscope.server.tensors import Tensors
from layerscope.server.traces import Traces
from layerscope.store.passes import pass_folders
from layerscope.version import __version__
from layerscope.viz.compare import Held, HistogramsView, histograms_view
from layerscope.viz.histogram import HistogramView, histogram_view
from layerscope.viz.limits import FORMATS
from layerscope.viz.scalar import ScalarView, scalar_view

Answer = TypeVar("Answer")
MOST_EVENTS = 1000


def routes(catalogue: Catalogue, own_view: OwnView | None = None) -> list[Route]:
    """Everything the page can ask for. The functions block, so Starlette runs them in its thread pool."""

    def runs(request: Request) -> Response:
        entries = tuple(catalogue.entries())
        return sent(RunList(catalogue.title, __version__, entries))

    def of_run(answer: Callable[[Opened, str, Request], object]) -> Callable[[Request], Response]:
        def endpoint(request: Request) -> Response:
            name = request.path_params["name"]
            opened = catalogue.open(name)
            with opened.lock:
                response = sent(answer(opened, name, request))
            catalogue.quiet.later("memory", lean.tidy)
            return response

        return endpoint

    def place(name: str) -> tuple[Path, object]:
        opened = catalogue.open(name)
        with opened.lock:
            return opened.run.path, opened.run.revision

    def scalar_of(opened: Opened, name: str, request: Request) -> ScalarView:
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
        *training.routes(catalogue, of_run, sent),
    ]


def sent(record: object) -> Response:
    """A record, or its message, as a response that no cache keeps."""
    message = record if isinstance(record, bytes) else wire.encode(record)
    return Response(message, media_type=wire.MEDIA_TYPE, headers={"Cache-Control": "no-store"})


def sites(opened: Opened, name: str, request: Request | None = None) -> bytes:
    """What can be shown of the run, as a message: it is long, and the same from one step of a live run to the next."""
    series = opened.run.reader.series()
    about = (name, opened.run.statistics, len(pass_folders(opened.run.path)))
    kept = opened.sites
    if kept is None or kept[0] is not series or kept[1] != about:
        columns = series.select(SeriesEntry.__slots__).to_pydict()
        limited = tuple(LimitedStatistic(*one) for one in KINDS_WITH.items() if one[0] in about[1])
        of_sites = SiteList(*about[:2], tuple(map(SeriesEntry, *columns.values())), about[2], FORMATS, limited)
        kept = opened.sites = (series, about, wire.encode(of_sites))
    return kept[2]


def timeline(opened: Opened, name: str, request: Request) -> Timeline:
    """The run's metrics and events; the range of its steps is that of the whole run, whatever part is shown."""
    screen, smooth = screen_of(request), share(request, "smooth")
    curves = metric_curves(opened.run)
    steps: Ints = np.unique(np.concatenate([np.zeros(0, np.int64), *(steps for steps, _ in curves.values())]))
    events = opened.run.events().arrow().select(["step", "level", "text"])
    newest = events.slice(max(0, len(events) - MOST_EVENTS)).to_pylist()
    first, last = step_range(opened.run, steps) or (None, None)
    return Timeline(
        run=name,
        first_step=first,
        last_step=last,
        metrics=tuple(scalar_view(metric, *curve, screen, smooth) for metric, curve in curves.items()),
        events=tuple(EventEntry(**event) for event in newest),
    )


def scalar(opened: Opened, name: str, request: Request) -> ScalarView:
    """One statistic of one series."""
    stat = chosen(request, "stat", opened.run.statistics)
    history = history_of(opened, request)
    curve, smooth = history.curve(stat), share(request, "smooth")
    return scalar_view(stat, *curve, screen_of(request), smooth, history.broken(stat))


def histogram(opened: Opened, name: str, request: Request) -> HistogramView:
    """The histogram over time of one series."""
    which = series_of(request)
    format_ = format_of(request, opened.dtype(*which))
    return histogram_view(history_of(opened, request), axis_of(request), screen_of(request), format_)


def step_histogram(opened: Opened, name: str, request: Request) -> HistogramsView:
    """The histogram of one series at the last recorded step at or before the one asked for."""
    which = series_of(request)
    held = [Held(name, history_of(opened, request))]
    bins, format_ = screen_of(request).height, format_of(request, opened.dtype(*which))
    return histograms_view(held, step_of(request), axis_of(request), bins, format_)


def history_of(opened: Opened, request: Request) -> History:
    """The rows of the series that is asked for, or some of them."""
    return opened.history(*series_of(request)).thinned(every_of(request))


def series_of(request: Request) -> tuple[int, int]:
    """Number and rank of the series that is asked for."""
    return integer(request, "series", None, 0), integer(request, "rank", 0, 0)
