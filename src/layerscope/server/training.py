"""What the page asks beside tensors: metrics by type of step, notes, and the tree of parameters."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from layerscope.errors import LayerscopeError
from layerscope.query.rows import curves
from layerscope.query.run import Run
from layerscope.records import Floats, Ints, Kind
from layerscope.server.asked import runs_of, screen_of, share
from layerscope.server.catalogue import Catalogue, Opened
from layerscope.viz.scalar import scalar_view
from layerscope.viz.training import (
    MetricChart,
    MetricCurve,
    MetricsView,
    NetworkView,
    NotesView,
    in_groups,
    network_view,
    split_metric,
)

Answer = Callable[[Opened, str, Request], object]
MOST_NOTES = 5000
TOLD = ("note", "warning", "drop", "skipped", "kept")


def routes(
    catalogue: Catalogue, of_run: Callable[[Answer], Callable[[Request], Response]], send: Callable[[object], Response]
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
                by_type = _by_type(opened.run)
        except (LayerscopeError, OSError):  # the list of runs says why
            continue
        for (name, type_), (steps, values) in by_type.items():
            types.setdefault(type_)
            ends += [int(steps[0]), int(steps[-1])]
            view = scalar_view(name, steps, values, screen, smooth)
            found.setdefault(name, []).append(MetricCurve(run, type_, view))
    charts = tuple(MetricChart(*split_metric(name), tuple(found[name])) for name in in_groups(found))
    return MetricsView(min(ends, default=None), max(ends, default=None), tuple(sorted(types)), charts)


def _by_type(run: Run) -> dict[tuple[str, str], tuple[Ints, Floats]]:
    """Steps and values of every metric in steps of each type; the last value of a step counts."""
    found = curves(run.reader.metrics(), "name", "type")
    return {(name, type_): curve for (name, type_), curve in found.items()}


def notes(opened: Opened, name: str, request: Request) -> NotesView:
    """What was noted while training."""
    rows = [row for row in opened.run.events().arrow().to_pylist() if row["level"] in TOLD]
    newest = rows[-MOST_NOTES:]
    return NotesView(
        run=name,
        steps=np.array([row["step"] for row in newest], np.int64),
        times=np.array([row["time_s"] for row in newest], np.float64),
        levels=tuple(row["level"] for row in newest),
        texts=tuple(row["text"] for row in newest),
        left_out=len(rows) - len(newest),
    )


def network(opened: Opened, name: str, request: Request) -> NetworkView:
    """The modules and parameters of the watched model."""
    rows = opened.run.series().arrow().to_pylist()
    shapes = {row["site"]: tuple(row["shape"]) for row in rows if row["kind"] == Kind.WEIGHT.value}
    return network_view(name, opened.run.graph(), list(shapes.items()))
