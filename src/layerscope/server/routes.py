"""Everything the page can ask for: a route parses its parameters, calls one builder of `views/`, encodes the result."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from layerscope.errors import LayerscopeError
from layerscope.query.matrix import Question
from layerscope.server import background, wire
from layerscope.server.catalogue import Catalogue
from layerscope.server.custom_view import CustomView
from layerscope.server.query_params import (
    axis_of,
    chosen,
    every_of,
    format_of,
    integer,
    integers,
    question_of,
    runs_of,
    screen_of,
    series_of,
    step_of,
    tensor_of,
    tensor_query_of,
    value_of,
)
from layerscope.version import __version__
from layerscope.views import compare, heatmap, histogram, module_graph, run_overview, trace_page
from layerscope.views.findings import findings_view
from layerscope.views.open_run import OpenRun, Runs
from layerscope.views.samples import samples_view
from layerscope.views.scalar import ScalarView, series_scalar
from layerscope.views.tensors import DEFAULT_STAT, FORMS, TensorsRequest, TensorsView, named_tensor, tensors_view
from layerscope.views.wording import FIELDS

MOST_PANELS, MOST_COLUMNS = 2, 6
CUSTOM_PAGE_POLICY = (
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; "
    "img-src data: blob:; font-src data:; frame-ancestors 'self'"
)

#: Views of one run, which is locked meanwhile.
OF_RUN: Mapping[str, Callable[[OpenRun, Request], object]] = {
    "timeline": lambda run, request: run_overview.timeline(run, screen_of(request)),
    "notes": lambda run, request: run_overview.notes_view(run),
    "network": lambda run, request: run_overview.network_view(run),
    "histogram": lambda run, request: histogram.series_histogram(
        run, series_of(request), axis_of(request), screen_of(request), format_of(request)
    ),
    "step-histogram": lambda run, request: compare.step_histogram(
        run, series_of(request), step_of(request), axis_of(request), screen_of(request), format_of(request)
    ),
    "heatmap": lambda run, request: heatmap.heat_map(run, question_of(request), screen_of(request)),
    "graph": lambda run, request: module_graph.module_graph(run).view,
    "graph-groups": lambda run, request: module_graph.graph_groups(run, integers(request, "of")),
    "graph-numbers": lambda run, request: module_graph.graph_numbers(
        run, question_of(request), step_of(request), every_of(request), tensors="tensors" in request.query_params
    ),
    "traces": lambda run, request: trace_page.trace_list(run),
    "trace": lambda run, request: trace_page.trace_picture(_trace(run, request), rolled=_is_rolled(request)),
    "trace-groups": lambda run, request: trace_page.trace_groups(
        _trace(run, request), integers(request, "of"), rolled=_is_rolled(request)
    ),
    "trace-numbers": lambda run, request: trace_page.trace_numbers(
        _trace(run, request), chosen(request, "field", FIELDS), rolled=_is_rolled(request)
    ),
    "trace-overview": lambda run, request: _trace(run, request).overview,
    "operation": lambda run, request: trace_page.operation_view(
        _trace(run, request), integer(request, "op", None, 0), rolled=_is_rolled(request)
    ),
    "operations": lambda run, request: trace_page.operation_list(
        _trace(run, request), request.query_params.get("search", "")
    ),
    "value": lambda run, request: trace_page.operation_value(
        _trace(run, request),
        integer(request, "op", None, 0),
        chosen(request, "what", ("value", "gradient")),
        value_of(request),
    ),
}

#: Views of several runs, given by `run=…&run=…`; each is locked while it is read.
OF_RUNS: Mapping[str, Callable[[Runs, Request], object]] = {
    "metrics": lambda runs, request: run_overview.metrics_view(runs, screen_of(request)),
    "compare/curves": lambda runs, request: compare.compare_curves(
        runs, tensor_of(request), request.query_params.get("stat", ""), screen_of(request)
    ),
    "compare/histograms": lambda runs, request: compare.compare_histograms(
        runs, tensor_of(request), step_of(request), axis_of(request), screen_of(request), format_of(request)
    ),
    "compare/over-time": lambda runs, request: compare.compare_over_time(
        runs, tensor_of(request), axis_of(request), screen_of(request), format_of(request)
    ),
    "compare/difference": lambda runs, request: heatmap.difference(
        runs, question_of(request), screen_of(request), ratio=chosen(request, "how", ("difference", "ratio")) == "ratio"
    ),
}


def routes(catalogue: Catalogue, custom_view: CustomView | None = None) -> list[Route]:
    """Everything the page can ask for. The functions block, so Starlette runs them in its thread pool."""
    special = _SpecialRoutes(catalogue, custom_view)
    answers: dict[str, Callable[[Request], object]] = {
        "runs": lambda request: run_overview.RunList(catalogue.title, __version__, tuple(catalogue.entries())),
        "tensors": special.tensors,
        "tensors/samples": special.samples,
        "tensors/custom": special.custom_view,
        "tensors/custom-saved": lambda request: special.custom.saved(),
        "tensors/custom-page": special.custom_page,
        "run/{name:path}/findings": special.findings,
    }
    for name, view in OF_RUNS.items():
        answers[name] = _of_runs(catalogue, view)
    for name, view_of_run in {**OF_RUN, "sites": special.sites, "scalar": special.scalar}.items():
        answers[f"run/{{name:path}}/{name}"] = _of_run(catalogue, view_of_run)
    return [Route(f"/api/{place}", _endpoint(answer)) for place, answer in answers.items()]


def _endpoint(answer: Callable[[Request], object]) -> Callable[[Request], Response]:
    """What an answer makes as a response that no cache keeps."""

    def endpoint(request: Request) -> Response:
        record = answer(request)
        if isinstance(record, Response):
            return record
        message = record if isinstance(record, bytes) else wire.encode(record)
        return Response(message, media_type=wire.MEDIA_TYPE, headers={"Cache-Control": "no-store"})

    return endpoint


def _of_run(catalogue: Catalogue, view: Callable[[OpenRun, Request], object]) -> Callable[[Request], object]:
    def answer(request: Request) -> object:
        run = catalogue.open(request.path_params["name"])
        with run.lock:
            record = view(run, request)
            message = record if isinstance(record, bytes) else wire.encode(record)
        catalogue.idle.later("memory", background.tidy)
        return message

    return answer


def _of_runs(catalogue: Catalogue, view: Callable[[Runs, Request], object]) -> Callable[[Request], object]:
    def answer(request: Request) -> object:
        with closing(catalogue.each(runs_of(request))) as runs:
            return view(runs, request)

    return answer


def _trace(run: OpenRun, request: Request) -> trace_page.OpenTrace:
    return trace_page.open_trace(run, request.query_params.get("trace", ""))


def _is_rolled(request: Request) -> bool:
    return integer(request, "unrolled", 0, 0, 1) == 0


class _SpecialRoutes:
    """Routes that need more than one or several runs."""

    def __init__(self, catalogue: Catalogue, custom_view: CustomView | None) -> None:
        self._catalogue, self._custom = catalogue, custom_view

    def sites(self, run: OpenRun, request: Request) -> bytes:
        return self._catalogue.site_message(run)

    def scalar(self, run: OpenRun, request: Request) -> ScalarView:
        """One statistic of one series; its heat map, which may be looked at next, is read when the server is idle."""
        which, stat = series_of(request), request.query_params.get("stat", "")
        view = series_scalar(run, which, stat, screen_of(request))
        question = run.question(which, stat)
        if not run.has_matrix(question):
            self._catalogue.idle.later("heat map", lambda: _read_ahead(run, question))
        return view

    def findings(self, request: Request) -> object:
        """The findings of a run, without its lock: a check takes long."""
        run = self._catalogue.open(request.path_params["name"])
        with run.lock:
            folder, revision = run.reader.folder, run.reader.revision()
        return findings_view(run.name, self._catalogue.diagnoses.of(folder, revision))

    def tensors(self, request: Request) -> TensorsView:
        """A named tensor in the first runs, and one statistic of it over the steps in all of them."""
        given = request.query_params
        query = TensorsRequest(
            query=tensor_query_of(request),
            stat=given.get("stat") or DEFAULT_STAT,
            panels=integer(request, "panels", 1, 1, MOST_PANELS),
            form=given.get("form", FORMS[0]),
            index=integers(request, "at"),
        )
        graphs = self._catalogue.project_graphs()  # before a run is locked: it locks them all in turn
        custom_name = self._custom.name if self._custom else ""
        with closing(self._catalogue.each(runs_of(request))) as runs:
            return tensors_view(runs, query, graphs, screen_of(request), custom_name)

    def samples(self, request: Request) -> object:
        """Several tensors sample by sample, those given by `of=name@role`, in the first runs."""
        keys = request.query_params.getlist("of")[:MOST_COLUMNS]
        names = runs_of(request)[: integer(request, "panels", 1, 1, MOST_PANELS)]
        with closing(self._catalogue.each(names)) as runs:
            return samples_view(runs, tensor_query_of(request), keys, request.query_params.get("stat") or DEFAULT_STAT)

    @property
    def custom(self) -> CustomView:
        """The user's view; the error says how to give one."""
        if self._custom is None:
            raise HTTPException(404, "There is no custom view. Give one: `layerscope ui RUNS --view my_view.py`.")
        return self._custom

    def custom_view(self, request: Request) -> object:
        """What the user's view makes of the selection."""
        view, run = self.custom, self._catalogue.open(runs_of(request)[0])
        with run.lock:
            selection = named_tensor(run, tensor_query_of(request)).selection
        return view.result(selection, Path(run.reader.folder))

    def custom_page(self, request: Request) -> Response:
        """A page that the user's view made: its scripts run in a frame that has no origin and no network."""
        text = self.custom.page(integer(request, "number", None, 0))
        return HTMLResponse(text, headers={"Content-Security-Policy": CUSTOM_PAGE_POLICY, "Cache-Control": "no-store"})


def _read_ahead(run: OpenRun, question: Question) -> None:
    with contextlib.suppress(LayerscopeError, OSError), run.lock:  # the request for it reports the error
        if run.reader.status() != "running":  # else it is another one by the time it is request for
            run.matrix(question)
