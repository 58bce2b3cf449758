"""Requests → records: what is asked for, checked, read and sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from layerscope.query.run import History
from layerscope.records import Floats, Ints
from layerscope.server import wire
from layerscope.server.catalogue import Catalogue, Opened, step_range
from layerscope.server.messages import EventEntry, RunList, SeriesEntry, SiteList, Timeline
from layerscope.version import __version__
from layerscope.viz.axis import AxisKind
from layerscope.viz.histogram import HistogramView, histogram_view
from layerscope.viz.scalar import ScalarView, kpis_in_order, scalar_view
from layerscope.viz.screen import Screen

Answer = TypeVar("Answer")
MOST_EVENTS = 1000
FARTHEST_STEP = 2**53  # beyond it the page's numbers skip steps


def routes(catalogue: Catalogue) -> list[Route]:
    """Everything the page can ask for. The functions block, so Starlette runs them in its thread pool."""

    def runs(request: Request) -> Response:
        entries = tuple(catalogue.entries())
        return sent(RunList(catalogue.title, __version__, entries))

    def of_run(answer: Callable[[Opened, str, Request], object]) -> Callable[[Request], Response]:
        def endpoint(request: Request) -> Response:
            name = request.path_params["name"]
            opened = catalogue.open(name)
            with opened.lock:
                return sent(answer(opened, name, request))

        return endpoint

    return [
        Route("/api/runs", runs),
        Route("/api/run/{name:path}/sites", of_run(sites)),
        Route("/api/run/{name:path}/timeline", of_run(timeline)),
        Route("/api/run/{name:path}/scalar", of_run(scalar)),
        Route("/api/run/{name:path}/histogram", of_run(histogram)),
    ]


def sent(record: object) -> Response:
    """A record as a response that no cache keeps."""
    return Response(wire.encode(record), media_type=wire.MEDIA_TYPE, headers={"Cache-Control": "no-store"})


def sites(opened: Opened, name: str, request: Request) -> SiteList:
    """What can be shown of the run."""
    rows = opened.run.series().arrow().to_pylist()
    series = tuple(SeriesEntry(**{f: row[f] for f in SeriesEntry.__slots__}) for row in rows)
    return SiteList(name, opened.run.statistics, series)


def timeline(opened: Opened, name: str, request: Request) -> Timeline:
    """The run's KPIs and events; the range of its steps is that of the whole run, whatever part is shown."""
    screen = screen_of(request)
    table = opened.run.kpis().arrow()
    steps: Ints = table.column("step").to_numpy()
    views = []
    for kpi in kpis_in_order(table.column_names):
        column = table.column(kpi)
        given = np.asarray(column.is_valid().to_numpy(), np.bool_)
        values: Floats = column.drop_null().to_numpy().astype(np.float64)
        views.append(scalar_view(kpi, steps[given], values, screen))
    events = opened.run.events().arrow().select(["step", "level", "text"])
    newest = events.slice(max(0, len(events) - MOST_EVENTS)).to_pylist()
    first, last = step_range(opened.run, steps) or (None, None)
    return Timeline(
        run=name,
        first_step=first,
        last_step=last,
        kpis=tuple(views),
        events=tuple(EventEntry(**event) for event in newest),
    )


def scalar(opened: Opened, name: str, request: Request) -> ScalarView:
    """One statistic of one series."""
    stat = chosen(request, "stat", opened.run.statistics)
    return scalar_view(stat, *history_of(opened, request).curve(stat), screen_of(request))


def histogram(opened: Opened, name: str, request: Request) -> HistogramView:
    """The histogram over time of one series."""
    axis = AxisKind(chosen(request, "axis", tuple(kind.value for kind in AxisKind)))
    return histogram_view(history_of(opened, request), axis, screen_of(request))


def history_of(opened: Opened, request: Request) -> History:
    """The rows of the series that is asked for."""
    return opened.history(integer(request, "series", None, 0), integer(request, "rank", 0, 0))


def screen_of(request: Request) -> Screen:
    """The part and size of the picture that is asked for."""
    return Screen(
        width=integer(request, "width", 800, 1, 4096),
        height=integer(request, "height", 96, 4, 512),
        first=_optional(request, "first"),
        last=_optional(request, "last"),
    )


def _optional(request: Request, name: str) -> int | None:
    return integer(request, name, None, -FARTHEST_STEP) if name in request.query_params else None


def integer(request: Request, name: str, default: int | None, low: int, high: int = FARTHEST_STEP) -> int:
    """A whole number from the query, within its limits."""
    text = request.query_params.get(name)
    if text is None and default is not None:
        return default
    if text is None:
        raise HTTPException(400, f"The request lacks {name!r}.")
    try:
        number = int(text)
    except ValueError:
        raise HTTPException(400, f"{name!r} must be a whole number, not {text[:40]!r}.") from None
    if not low <= number <= high:
        raise HTTPException(400, f"{name!r} must lie between {low} and {high}, not {number}.")
    return number


def chosen(request: Request, name: str, among: tuple[str, ...]) -> str:
    """One of several words from the query."""
    text = request.query_params.get(name)
    if text not in among:
        raise HTTPException(400, f"{name!r} must be one of {', '.join(among)}, not {(text or '')[:40]!r}.")
    return text
