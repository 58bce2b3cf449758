"""What the page asks of a run's module graph: its parts, the order of groups, a statistic as colors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from layerscope.errors import StoreError
from layerscope.model.lru_cache import LRUCache
from layerscope.model.records import Kind, Mode
from layerscope.query import tables
from layerscope.query.matrix import Question
from layerscope.query.run_tables import statistics
from layerscope.server.catalogue import OpenRunEntry
from layerscope.server.query_params import chosen, every_of, step_of
from layerscope.server.routes.heatmap import Matrices
from layerscope.store.reader import Reader
from layerscope.store.traces import pass_folders, passes_revision, read_head
from layerscope.views.module_graph import ModuleGraph, PartNumbers
from layerscope.views.nested_graph import GroupOrders, NestedGraph
from layerscope.views.trace_page import flops_of_calls

Answer = Callable[[OpenRunEntry, str, Request], object]
KEPT = 4  # graphs of runs that were looked at last
MOST_GROUPS = 2000  # in one request


def routes(of_run: Callable[[Answer], Callable[[Request], Response]], matrices: Matrices) -> list[Route]:
    """The routes of the graph view."""
    graphs = _Graphs(matrices)
    return [
        Route("/api/run/{name:path}/graph", of_run(graphs.whole)),
        Route("/api/run/{name:path}/graph-groups", of_run(graphs.groups)),
        Route("/api/run/{name:path}/graph-numbers", of_run(graphs.numbers)),
    ]


class _Graphs:
    """The graphs that were asked for last, made anew when calls were added."""

    def __init__(self, matrices: Matrices) -> None:
        self._matrices = matrices
        self._known: LRUCache[Reader, ModuleGraph] = LRUCache(KEPT)

    def whole(self, opened: OpenRunEntry, name: str, request: Request) -> NestedGraph:
        """The parts of the graph, and the order of the groups that are open at first."""
        return self._graph(opened.reader, name).view

    def groups(self, opened: OpenRunEntry, name: str, request: Request) -> GroupOrders:
        """The order of some groups, given by their numbers."""
        graph = self._graph(opened.reader, name)
        asked = request.query_params.get("of", "").split(",")[:MOST_GROUPS]
        wanted = [int(text) for text in asked if text.isdigit() and len(text) < 10]
        return GroupOrders(tuple(graph.group(index) for index in wanted if graph.has_group(index)))

    def numbers(self, opened: OpenRunEntry, name: str, request: Request) -> PartNumbers:
        """A statistic of one kind at one step: one number for each part that has it.

        A part that was not recorded in the context asked for shows the first one that it was recorded in.
        """
        question = _question(opened.reader, request)
        asked = _questions(opened.reader.series(), question)
        found = [self._matrices.of(opened.reader, each) for each in asked]
        if not len(found[0].steps):
            raise HTTPException(
                404, f"The run has no {question.stat!r} of {question.kind!r}. Choose what was recorded."
            )
        numbers = self._graph(opened.reader, name).numbers(found, step_of(request), every_of(request))
        return numbers if "tensors" in request.query_params else replace(numbers, sites=(), ports=())

    def _graph(self, reader: Reader, name: str) -> ModuleGraph:
        def make() -> ModuleGraph:
            graph = reader.graph()
            if graph is None or not graph.modules:
                raise HTTPException(404, f"The run {name!r} holds no modules: nothing was watched that has any.")
            return ModuleGraph(graph, _flops(reader.folder))

        return self._known.get(reader, make, (reader.graph_revision(), passes_revision(reader.folder)))


def _flops(run: Path) -> dict[str, int]:
    """The FLOPs of every call in the newest trace of a run, by its site; nothing where there is no trace."""
    folders = pass_folders(run)
    if not folders:
        return {}
    try:
        return flops_of_calls(read_head(folders[-1]).record)
    except StoreError:  # the view of traces says why it cannot be read
        return {}


def _questions(series: pa.Table, question: Question) -> Iterator[Question]:
    """The question, then those about sites that it leaves without an answer: in other contexts, and attached tensors.

    These have neither outputs nor their gradients, but values and gradients of their own.
    """
    yield question
    of_tensors = {Kind.OUTPUT.value: Kind.TENSOR.value, Kind.OUTPUT_GRAD.value: Kind.TENSOR_GRAD.value}
    alike = series.filter(
        pa.array(tables.are(series, "mode", question.mode) & (tables.ints(series, "rank") == question.rank))
    )
    of = tables.rows_of_each(alike, "kind", "context")
    sites = alike.column("site").to_pylist()
    known = {sites[row] for row in of.get((question.kind, question.context), ())}
    for kind in (question.kind, of_tensors.get(question.kind)):
        for (of_kind, context), found in of.items():
            if of_kind == kind and not known.issuperset(more := {sites[row] for row in found}):
                known |= more
                yield replace(question, kind=of_kind, context=context)


def _question(reader: Reader, request: Request) -> Question:
    """What is asked for, in the mode and context asked for, or where the kind has none of it, in those it has."""
    kind = chosen(request, "kind", tuple(kind.value for kind in Kind))
    stat = chosen(request, "stat", statistics(reader))
    mode = request.query_params.get("mode", Mode.TRAIN.value)
    series = reader.series()
    of_kind = tables.are(series, "kind", kind)
    if not of_kind.any():
        raise HTTPException(404, f"The run has no {kind!r}. Choose a kind that was recorded.")
    in_mode = of_kind & tables.are(series, "mode", mode)
    fitting = in_mode if in_mode.any() else of_kind
    in_context = fitting & tables.are(series, "context", request.query_params.get("context", ""))
    first = int(np.argmax(in_context if in_context.any() else fitting))
    mode, context = (series[word][first].as_py() for word in ("mode", "context"))
    return Question(kind, stat, mode, series["rank"][first].as_py(), context)
