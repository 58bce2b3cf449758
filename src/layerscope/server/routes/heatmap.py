"""What the page asks of all tensors at once: one statistic over all steps."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from layerscope.errors import LayerscopeError
from layerscope.model.lru_cache import LRUCache
from layerscope.model.records import Kind, Mode
from layerscope.query.matrix import Layout, Matrix, Question, laid_out, matrix
from layerscope.query.run_tables import statistics
from layerscope.server.background import IdleWorker
from layerscope.server.catalogue import OpenRunEntry
from layerscope.server.query_params import chosen, every_of, integer, screen_of
from layerscope.store.reader import Reader
from layerscope.views.heatmap import HeatMapView, heat_map_view

Answer = Callable[[OpenRunEntry, str, Request], object]
KEPT_BYTES = 24 * 2**20
KEPT_LAYOUTS = 2  # of the two runs of a comparison


class Matrices:
    """Matrices of the runs that were looked at last; the newest stay, as many as fit."""

    def __init__(self, quiet: IdleWorker) -> None:
        # By the id of the run, not to keep it open.
        self._known: LRUCache[tuple[str, Question], Matrix] = LRUCache(
            KEPT_BYTES, lambda matrix: matrix.values.nbytes + matrix.states.nbytes
        )
        self._layouts: LRUCache[tuple[str, Question], Layout] = LRUCache(KEPT_LAYOUTS)
        self._quiet = quiet

    def of(self, reader: Reader, question: Question) -> Matrix:
        """The matrix as far as the run is recorded; hold the run's lock."""
        revision = reader.revision()
        of_kind = (_id(reader), replace(question, stat=""))

        def layout() -> Layout:
            return self._layouts.get(of_kind, lambda: laid_out(reader, question), revision)

        return self._known.get((_id(reader), question), lambda: matrix(reader, question, layout), revision)

    def read_ahead(self, opened: OpenRunEntry, question: Question) -> None:
        """Have read in quiet what the heat map will show that somebody may look at next."""
        if (_id(opened.reader), question) not in self._known:
            self._quiet.later("heat map", lambda: self._read(opened, question))

    def _read(self, opened: OpenRunEntry, question: Question) -> None:
        with contextlib.suppress(LayerscopeError, OSError), opened.lock:  # whoever asks for it will be told
            if opened.reader.status() != "running":  # else it is another one by the time it is asked for
                self.of(opened.reader, question)


def _id(reader: Reader) -> str:
    """Which run it is; copies share the id of the manifest."""
    return f"{reader.manifest.id} {reader.folder}"


def routes(of_run: Callable[[Answer], Callable[[Request], Response]], matrices: Matrices) -> list[Route]:
    """The routes of the heat map."""

    def heat_map(opened: OpenRunEntry, name: str, request: Request) -> HeatMapView:
        question = question_of(request, opened.reader)
        found = matrices.of(opened.reader, question)
        if not found.tensors:
            raise HTTPException(
                404, f"{name!r} has no {question.kind!r} in {question.setting}. Choose what was recorded."
            )
        return heat_map_view(found.thinned(every_of(request)), screen_of(request))

    return [Route("/api/run/{name:path}/heatmap", of_run(heat_map))]


def question_of(request: Request, reader: Reader) -> Question:
    """Which statistic of which tensors is asked for."""
    return Question(
        kind=chosen(request, "kind", tuple(kind.value for kind in Kind)),
        stat=chosen(request, "stat", statistics(reader)),
        mode=chosen(request, "mode", tuple(mode.value for mode in Mode)),
        rank=integer(request, "rank", 0, 0),
        context=request.query_params.get("context", ""),
    )


def question_about(opened: OpenRunEntry, series: int, rank: int, stat: str) -> Question:
    """The question that a heat map of the tensors like that of a series asks."""
    known, at = opened.reader.series(), opened.place(series, rank)
    kind, mode, context = (known[word][at].as_py() for word in ("kind", "mode", "context"))
    return Question(kind, stat, mode, rank, context)
