"""What the page asks of all tensors at once: one statistic over all steps."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import replace

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from layerscope.errors import LayerscopeError
from layerscope.model.records import Kind, Mode
from layerscope.query.matrix import Layout, Matrix, Question, laid_out, matrix
from layerscope.query.run_tables import RunTables
from layerscope.server.background import IdleWorker
from layerscope.server.catalogue import OpenRunEntry
from layerscope.server.query_params import chosen, every_of, integer, screen_of
from layerscope.views.heatmap import HeatMapView, heat_map_view

Answer = Callable[[OpenRunEntry, str, Request], object]
KEPT_BYTES = 24 * 2**20
KEPT_LAYOUTS = 2  # of the two runs of a comparison


class Matrices:
    """Matrices of the runs that were looked at last; the newest stay, as many as fit."""

    def __init__(self, quiet: IdleWorker) -> None:
        self._known: dict[tuple[str, Question], tuple[object, Matrix]] = {}  # by the id of the run, not to keep it open
        self._layouts: dict[tuple[str, Question], tuple[object, Layout]] = {}  # of the statistics of a kind of tensors
        self._lock = threading.Lock()
        self._quiet = quiet

    def of(self, run: RunTables, question: Question) -> Matrix:
        """The matrix as far as the run is recorded; hold the run's lock."""
        key, revision = (_id(run), question), run.revision
        with self._lock:
            kept = self._known.pop(key, None)
        if kept is None or kept[0] != revision:
            kept = (revision, matrix(run.reader, question, lambda: self._layout(run, question, revision)))
        with self._lock:
            self._known[key] = kept  # as the newest
            while len(self._known) > 1 and self._bytes() > KEPT_BYTES:
                del self._known[next(iter(self._known))]
        return kept[1]

    def read_ahead(self, opened: OpenRunEntry, question: Question) -> None:
        """Have read in quiet what the heat map will show that somebody may look at next."""
        with self._lock:
            known = (_id(opened.run), question) in self._known
        if not known:
            self._quiet.later("heat map", lambda: self._read(opened, question))

    def _read(self, opened: OpenRunEntry, question: Question) -> None:
        with contextlib.suppress(LayerscopeError, OSError), opened.lock:  # whoever asks for it will be told
            if opened.run.status() != "running":  # else it is another one by the time it is asked for
                self.of(opened.run, question)

    def _layout(self, run: RunTables, question: Question, revision: object) -> Layout:
        key = (_id(run), replace(question, stat=""))
        with self._lock:
            kept = self._layouts.pop(key, None)
        if kept is None or kept[0] != revision:
            kept = (revision, laid_out(run.reader, question))
        with self._lock:
            self._layouts[key] = kept
            while len(self._layouts) > KEPT_LAYOUTS:
                del self._layouts[next(iter(self._layouts))]
        return kept[1]

    def _bytes(self) -> int:
        return sum(each.values.nbytes + each.states.nbytes for _, each in self._known.values())


def _id(run: RunTables) -> str:
    """Which run it is; copies share the id of the manifest."""
    return f"{run.reader.manifest.id} {run.path}"


def routes(of_run: Callable[[Answer], Callable[[Request], Response]], matrices: Matrices) -> list[Route]:
    """The routes of the heat map."""

    def heat_map(opened: OpenRunEntry, name: str, request: Request) -> HeatMapView:
        question = question_of(request, opened.run)
        found = matrices.of(opened.run, question)
        if not found.tensors:
            raise HTTPException(
                404, f"{name!r} has no {question.kind!r} in {question.setting}. Choose what was recorded."
            )
        return heat_map_view(found.thinned(every_of(request)), screen_of(request))

    return [Route("/api/run/{name:path}/heatmap", of_run(heat_map))]


def question_of(request: Request, run: RunTables) -> Question:
    """Which statistic of which tensors is asked for."""
    return Question(
        kind=chosen(request, "kind", tuple(kind.value for kind in Kind)),
        stat=chosen(request, "stat", run.statistics),
        mode=chosen(request, "mode", tuple(mode.value for mode in Mode)),
        rank=integer(request, "rank", 0, 0),
        context=request.query_params.get("context", ""),
    )


def question_about(opened: OpenRunEntry, series: int, rank: int, stat: str) -> Question:
    """The question that a heat map of the tensors like that of a series asks."""
    known, at = opened.run.reader.series(), opened.place(series, rank)
    kind, mode, context = (known[word][at].as_py() for word in ("kind", "mode", "context"))
    return Question(kind, stat, mode, rank, context)
