"""What the page asks of several runs at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from layerscope.errors import LayerscopeError
from layerscope.model.records import Floats, Ints
from layerscope.query.run_tables import statistics
from layerscope.server.catalogue import Catalogue, OpenRunEntry, metric_curves, step_range
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
from layerscope.server.routes.heatmap import Matrices, question_of
from layerscope.views import compare
from layerscope.views.heatmap import DifferenceView, difference_view
from layerscope.views.scalar import metrics_in_order, scalar_view

MetricCurves = dict[str, tuple[Ints, Floats]]


class Comparing:
    """The routes of the comparison of runs, given by `run=…&run=…`."""

    def __init__(self, catalogue: Catalogue, matrices: Matrices, send: Callable[[object], Response]) -> None:
        self._catalogue, self._matrices, self._send = catalogue, matrices, send

    def routes(self) -> list[Route]:
        """Everything that can be asked."""
        answers = {"curves": self.curves, "histograms": self.histograms, "over-time": self.over_time}
        answers |= {"difference": self.difference}
        return [Route(f"/api/compare/{name}", self._endpoint(answer)) for name, answer in answers.items()]

    def _endpoint(self, answer: Callable[[Request, list[str]], object]) -> Callable[[Request], Response]:
        def endpoint(request: Request) -> Response:
            return self._send(answer(request, runs_of(request)))

        return endpoint

    def curves(self, request: Request, names: list[str]) -> compare.CompareView:
        """Metrics of all runs, and one statistic of one tensor in each."""
        stat = request.query_params.get("stat", "")
        metrics: dict[str, MetricCurves] = {name: {} for name in names}
        ends: list[int] = []
        known: set[str] = set()  # an custom statistic of one run may be missing in the others
        held = []
        for one, opened in self._each(request, names):
            held.append(one)
            if opened is not None:
                known |= set(statistics(opened.reader))
                metrics[one.run] = metric_curves(opened.reader)
                steps = [np.zeros(0, np.int64), *(steps for steps, _ in metrics[one.run].values())]
                ends += step_range(opened.reader, np.unique(np.concatenate(steps))) or ()
        chosen(request, "stat", tuple(sorted(known)))
        return compare.CompareView(
            first_step=min(ends, default=None),
            last_step=max(ends, default=None),
            metrics=_metrics(metrics, request),
            tensor=compare.Curves(stat, tuple(_curve(one, stat, request) for one in held)),
        )

    def histograms(self, request: Request, names: list[str]) -> compare.HistogramsView:
        """One tensor at one step of every run."""
        held = [one for one, _ in self._each(request, names)]
        bins, format_ = screen_of(request).height, format_of(request, _dtype(held))
        return compare.histograms_view(held, step_of(request), axis_of(request), bins, format_)

    def over_time(self, request: Request, names: list[str]) -> compare.OverTimeView:
        """One tensor of every run over the steps."""
        held = [one for one, _ in self._each(request, names)]
        return compare.over_time_view(held, axis_of(request), screen_of(request), format_of(request, _dtype(held)))

    def difference(self, request: Request, names: list[str]) -> DifferenceView:
        """The heat map of the difference of two runs."""
        if len(names) != 2:
            raise HTTPException(400, f"A difference is of two runs, not of {len(names)}.")
        found = []
        for name in names:
            opened = self._catalogue.open(name)
            with opened.lock:
                matrix = self._matrices.of(opened.reader, question_of(request, opened.reader))
                found.append(matrix.thinned(every_of(request)))
        ratio = chosen(request, "how", ("difference", "ratio")) == "ratio"
        return difference_view((names[0], names[1]), (found[0], found[1]), screen_of(request), ratio=ratio)

    def _each(self, request: Request, names: list[str]) -> Iterator[tuple[compare.RunHistory, OpenRunEntry | None]]:
        """Every run and what it has of the tensor; one that was deleted or is damaged must not hide the others."""
        for name in names:
            try:
                opened = self._catalogue.open(name)
                with opened.lock:
                    one = _held(opened, name, request)
            except (LayerscopeError, OSError) as error:
                yield compare.RunHistory(name, None, str(error)), None
                continue
            with opened.lock:
                yield replace(one, history=one.history and one.history.thinned(every_of(request))), opened


def _dtype(held: list[compare.RunHistory]) -> str:
    return next((one.dtype for one in held if one.history is not None), "")


def _metrics(of_runs: dict[str, MetricCurves], request: Request) -> tuple[compare.Curves, ...]:
    screen, smooth = screen_of(request), share(request, "smooth")

    def curve(run: str, metric: str) -> compare.RunCurve:
        found = of_runs[run].get(metric)
        if found is None:
            return compare.RunCurve(run, None, f"the run has no metric {metric!r}")
        return compare.RunCurve(run, scalar_view(metric, *found, screen, smooth), "")

    names = metrics_in_order(list(dict.fromkeys(metric for curves in of_runs.values() for metric in curves)))
    return tuple(compare.Curves(metric, tuple(curve(run, metric) for run in of_runs)) for metric in names)


def _curve(held: compare.RunHistory, stat: str, request: Request) -> compare.RunCurve:
    if held.history is None:
        return compare.RunCurve(held.run, None, held.lacking)
    curve, smooth = held.history.curve(stat), share(request, "smooth")
    view = scalar_view(stat, *curve, screen_of(request), smooth, held.history.broken(stat))
    return compare.RunCurve(held.run, view, "")


def _held(opened: OpenRunEntry, name: str, request: Request) -> compare.RunHistory:
    """The history of the tensor that is asked for, by its names: numbers of series differ between runs."""
    asked = {each: request.query_params.get(each, "") for each in ("site", "port", "kind", "mode", "context")}
    rank = integer(request, "rank", 0, 0)
    series = opened.reader.series().to_pylist()
    matching = [
        row
        for row in series
        if row["rank"] == rank and all(row[each] == text for each, text in asked.items() if text or each != "port")
    ]
    if not matching:
        return compare.RunHistory(name, None, f"the run has no {asked['kind'] or 'tensor'} of {asked['site']!r}")
    newest = opened.history(matching[-1]["series"], rank)
    return compare.RunHistory(name, newest, dtype=matching[-1]["dtype"])
