"""The samples of named tensors, read over many steps at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from layerscope.errors import LayerscopeError, SelectError
from layerscope.model.records import Dependencies, Ints, TensorType
from layerscope.query.tensor_query import ResolvedQuery, TensorQuery, resolve_query
from layerscope.server.catalogue import Catalogue
from layerscope.server.query_params import FARTHEST_STEP, integer, runs_of, screen_of, share
from layerscope.server.routes.custom_view import OwnView
from layerscope.views import tensors as views
from layerscope.views.compare import Curves, RunCurve
from layerscope.views.dependencies import NodePositions
from layerscope.views.samples import NOTHING, Kept, Row, RunSamples, SamplesView, per_sample, points, sample_column
from layerscope.views.scalar import scalar_view

if TYPE_CHECKING:
    from layerscope.query.named_tensors import NamedTensors


MOST_STEPS = 200  # whose samples make the points


def sampled(graph: Dependencies) -> tuple[str, ...]:
    """Keys of the tensors of an iteration that may have samples: `name@role`, or the name alone."""
    return tuple(
        f"{node.name}@{role}" if role else node.name
        for node in graph.nodes
        if node.type is not TensorType.PARAMETER
        for role, shape in node.roles
        if shape
    )


def first_two(there: ResolvedQuery, choices: tuple[str, ...]) -> tuple[str, ...]:
    """What to begin with: the selected tensor, and the loss of each sample."""
    chosen = there.selection
    own = f"{chosen.node}@{chosen.role}" if chosen.role else chosen.node
    wanted = [own if own in choices else "", *(key for key in choices if "loss" in key.lower()), *choices]
    return tuple(dict.fromkeys(filter(None, wanted)))[:2]


def no_samples(run: str, problem: str) -> RunSamples:
    """What is told of a run without any."""
    nothing = np.zeros(0)
    return RunSamples(run, problem, 0, (), (), (), nothing, nothing, nothing.astype(int), nothing.astype(int), 0)


def run_samples(named: NamedTensors, there: ResolvedQuery, keys: list[str], statistic: str) -> RunSamples:
    """The tensors at the selected step, and the first two of them in the newest steps of the type."""
    chosen, choices = there.selection, there.choices
    at = int(np.searchsorted(choices.steps, chosen.step))
    steps = choices.steps[max(0, at + 1 - MOST_STEPS) : at + 1]  # up to the selected one
    kept = [_kept(named, there, key, steps, statistic) for key in keys]
    rows: list[Row] = [(chosen.step, sample) for sample in choices.samples]
    first, second = [*kept, NOTHING, NOTHING][:2]
    x, y, point_steps, point_samples = points(first, second, statistic)
    return RunSamples(
        run=chosen.run,
        problem="",
        step=chosen.step,
        samples=choices.samples,
        categories=choices.categories,
        columns=tuple(sample_column(key, one, rows, statistic) for key, one in zip(keys, kept, strict=True)),
        x=x,
        y=y,
        point_steps=point_steps,
        point_samples=point_samples,
        steps=len(set(point_steps.tolist())),
    )


def _kept(named: NamedTensors, there: ResolvedQuery, key: str, steps: Ints, statistic: str) -> Kept:
    """What was kept of one tensor by step and sample."""
    chosen = there.selection
    name, _, role = key.partition("@")
    values, (told_steps, told_samples, columns) = named.samples(steps, name, role, chosen.iteration, chosen.loss)
    flat = {
        (step, sample): kept.array[at].ravel()
        for step, kept in values.items()
        for at, sample in enumerate(kept.samples.tolist())
    }
    rows = zip(told_steps.tolist(), told_samples.tolist(), strict=True)
    told = dict(zip(rows, columns[statistic].tolist(), strict=True))
    return Kept(flat, {row: number for row, number in told.items() if row not in flat})


MOST_PANELS, MOST_COLUMNS = 2, 6
DEFAULT_STAT = "mean"
LOOK_AGAIN_S = 1.0  # for graphs of other runs
OWN_PAGE = (
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; "
    "img-src data: blob:; font-src data:; frame-ancestors 'self'"
)
NOTHING_NAMED = (
    'No tensor of this run has a name. Name them while training: `run.record("memory", h)`, with '
    "`with run.iteration():` around each pass of a step."
)


class ProjectPlaces:
    """Places of all names in all runs of a project, laid out anew when a run has other graphs than before."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._lock = threading.Lock()
        self._until = 0.0
        self._graphs: dict[int, Dependencies] = {}
        self._names: set[str] = set()
        self._places: dict[bool, NodePositions] = {}

    def of(self, needed: Dependencies, *, narrow: bool) -> NodePositions:
        """The places, in narrow boxes for graphs side by side; hold no run's lock."""
        with self._lock:
            is_known = all(node.name in self._names for node in needed.nodes)
            if time.monotonic() >= self._until or not is_known:
                # Equal ones share a number in all runs.
                graphs = {graph.number: graph for of_run in self._catalogue.graphs() for graph in of_run}
                if graphs.keys() != self._graphs.keys():
                    self._graphs, self._places = graphs, {}
                    self._names = {node.name for graph in graphs.values() for node in graph.nodes}
                self._until = time.monotonic() + LOOK_AGAIN_S
            if narrow not in self._places:
                self._places[narrow] = NodePositions(self._graphs.values(), narrow=narrow)
            return self._places[narrow]


class Tensors:
    """The routes of the view of named tensors. Runs are given by `run=…&run=…`: at most two panels, more curves."""

    def __init__(self, catalogue: Catalogue, send: Callable[[object], Response], own_view: OwnView | None) -> None:
        self._catalogue, self._send, self._own = catalogue, send, own_view
        self._places = ProjectPlaces(catalogue)

    def routes(self) -> list[Route]:
        """Everything that can be asked."""
        return [
            Route("/api/tensors", self._endpoint(self.tensors)),
            Route("/api/tensors/samples", self._endpoint(self.samples)),
            Route("/api/tensors/own", self._endpoint(self.own)),
            Route("/api/tensors/own-saved", lambda request: self._send(self._own_view().saved())),
            Route("/api/tensors/own-page", self.own_page),
        ]

    def _endpoint(self, answer: Callable[[Request, list[str]], object]) -> Callable[[Request], Response]:
        def endpoint(request: Request) -> Response:
            return self._send(answer(request, runs_of(request)))

        return endpoint

    def tensors(self, request: Request, names: list[str]) -> views.TensorsView:
        """The selection in the first runs, and one statistic of it over the steps in all of them."""
        wish, stat = wish_of(request), request.query_params.get("stat") or DEFAULT_STAT
        panels = integer(request, "panels", 1, 1, MOST_PANELS)
        made, curves = [], []
        for at, name in enumerate(names):
            panel, curve = self._of_run(request, name, wish, stat, panels if at < panels else 0)
            curves.append(curve)
            made += [panel] if panel else []
        own = self._own.name if self._own else ""
        return views.TensorsView(tuple(made), stat, Curves(stat, tuple(curves)), own)

    def own(self, request: Request, names: list[str]) -> object:
        """What the user's own view makes of the selection."""
        own = self._own_view()
        opened = self._catalogue.open(names[0])
        with opened.lock:
            there = resolve_query(opened.named(), names[0], wish_of(request))
            path = opened.reader.folder
        if there is None:
            raise HTTPException(404, NOTHING_NAMED)
        return own.shown(there.selection, path)

    def own_page(self, request: Request) -> Response:
        """A page that the user's own view made: its scripts run in a frame that has no origin and no network."""
        text = self._own_view().page(integer(request, "number", None, 0))
        return HTMLResponse(text, headers={"Content-Security-Policy": OWN_PAGE, "Cache-Control": "no-store"})

    def _own_view(self) -> OwnView:
        if self._own is None:
            raise HTTPException(404, "There is no view of your own. Give one: `layerscope ui RUNS --view my_view.py`.")
        return self._own

    def samples(self, request: Request, names: list[str]) -> SamplesView:
        """Several tensors sample by sample, those given by `of=name@role`, in the first runs."""
        wish, asked = wish_of(request), request.query_params.getlist("of")[:MOST_COLUMNS]
        statistic = per_sample(request.query_params.get("stat") or DEFAULT_STAT)
        panels = integer(request, "panels", 1, 1, MOST_PANELS)
        runs: list[RunSamples] = []
        choices: tuple[str, ...] = ()
        for name in names[:panels]:
            opened = self._catalogue.open(name)
            with opened.lock:
                there = resolve_query(opened.named(), name, wish)
                if there is None:
                    runs.append(no_samples(name, NOTHING_NAMED))
                    continue
                choices = choices or sampled(there.graph)
                asked = asked or list(first_two(there, choices))
                runs.append(run_samples(opened.named(), there, asked, statistic))
        return SamplesView(tuple(asked), choices, tuple(runs))

    def _of_run(
        self, request: Request, name: str, wish: TensorQuery, stat: str, panels: int
    ) -> tuple[views.TensorPanel | None, RunCurve]:
        try:
            opened = self._catalogue.open(name)
            with opened.lock:
                there = resolve_query(opened.named(), name, wish)
            if there is None:
                raise SelectError(NOTHING_NAMED)
            places = self._places.of(there.graph, narrow=panels > 1) if panels else None
            with opened.lock:
                named = opened.named()
                panel = views.tensor_panel(named, there, places, *_form_of(request)) if places else None
                return panel, _curve(named, there, stat, request)
        except (LayerscopeError, OSError) as error:  # one run that cannot be read must not hide the other
            panel = views.empty_panel(name, str(error)) if panels else None
            return panel, RunCurve(name, None, str(error))


def wish_of(request: Request) -> TensorQuery:
    """The selection that is asked for."""
    given = request.query_params
    numbers = {
        name: integer(request, name, None, -FARTHEST_STEP) for name in ("step", "iteration", "sample") if name in given
    }
    return TensorQuery(
        type=given.get("type"), node=given.get("node"), role=given.get("role"), loss=given.get("loss"), **numbers
    )


def _form_of(request: Request) -> tuple[str, list[int]]:
    form = request.query_params.get("form", views.FORMS[0])
    places = request.query_params.get("at", "").split(",")
    return form, [int(text) for text in places if text.isdigit() and len(text) < 10]


def _curve(named: NamedTensors, there: ResolvedQuery, stat: str, request: Request) -> RunCurve:
    chosen = there.selection
    # Of one sample there is a statistic of its values, and nothing over the batch.
    wanted = stat if chosen.sample is None else stat.rpartition("_of_sample_")[2]
    try:
        steps, values = named.history(
            chosen.node,
            wanted,
            chosen.role,
            chosen.iteration,
            loss=chosen.loss,
            sample=chosen.sample,
            type=there.choices.type or None,
        )
    except SelectError as error:
        return RunCurve(chosen.run, None, str(error))
    if not len(steps):
        return RunCurve(chosen.run, None, f"the run has no {wanted} of {chosen.node!r} there")
    view = scalar_view(wanted, np.asarray(steps), np.asarray(values), screen_of(request), share(request, "smooth"))
    return RunCurve(chosen.run, view, "")
