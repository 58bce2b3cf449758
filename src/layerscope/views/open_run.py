"""A run that is looked at: its reader, and what the builders of views need of it again and again."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from layerscope.errors import SelectError
from layerscope.model.lru_cache import LRUCache
from layerscope.query import tables
from layerscope.query.history import History
from layerscope.query.matrix import Layout, Matrix, Question, laid_out, matrix
from layerscope.query.named_tensors import NamedTensors
from layerscope.query.run_tables import series_history, statistics
from layerscope.store.reader import Reader

if TYPE_CHECKING:
    from layerscope.views.module_graph import ModuleGraph
    from layerscope.views.run_overview import SiteList
    from layerscope.views.trace_page import OpenTrace, TraceEntry

HISTORY_BYTES, MATRIX_BYTES = 4 * 2**20, 24 * 2**20
LAYOUTS, GRAPHS, TRACES, TRACE_ENTRIES = 2, 4, 3, 10_000  # layouts: of the two runs of a comparison


class SeriesNumber(NamedTuple):
    """Number and rank of a series, as the table of series has them."""

    series: int
    rank: int = 0


@dataclass(frozen=True)
class ViewCache:
    """What views share of all open runs, by the id of the run, so that it does not keep the run open."""

    matrices: LRUCache[tuple[str, Question], Matrix] = field(
        default_factory=lambda: LRUCache(MATRIX_BYTES, lambda one: one.values.nbytes + one.states.nbytes)
    )
    layouts: LRUCache[tuple[str, Question], Layout] = field(default_factory=lambda: LRUCache(LAYOUTS))
    graphs: LRUCache[str, ModuleGraph] = field(default_factory=lambda: LRUCache(GRAPHS))
    traces: LRUCache[tuple[str, int], OpenTrace] = field(default_factory=lambda: LRUCache(TRACES))
    trace_entries: LRUCache[tuple[str, int], TraceEntry] = field(default_factory=lambda: LRUCache(TRACE_ENTRIES))


class OpenRun:
    """A run by the name that the page gives it. Threads that share it hold its lock while they read."""

    def __init__(self, reader: Reader, name: str = "", cache: ViewCache | None = None) -> None:
        self.reader, self.name = reader, name or reader.folder.resolve().name
        self.cache = ViewCache() if cache is None else cache
        self.id = f"{reader.manifest.id} {reader.folder}"  # copies share the id of the manifest
        self.lock = threading.Lock()
        self._histories: LRUCache[SeriesNumber, History] = LRUCache(HISTORY_BYTES, lambda history: history.nbytes)
        self.sites: LRUCache[str, SiteList] = LRUCache(1)
        self._named: LRUCache[str, NamedTensors] = LRUCache(1)

    def history(self, which: SeriesNumber) -> History:
        """The rows of one series."""
        self.series(which)
        return self._histories.get(which, partial(series_history, self.reader, *which), self.reader.revision())

    def named(self) -> NamedTensors:
        """The named tensors as they are by now."""
        return self._named.get(self.reader.revision(), lambda: NamedTensors(self.reader))

    def series(self, which: SeriesNumber) -> dict[str, str]:
        """Site, kind, dtype and the rest of one series."""
        known = self.reader.series()
        is_asked = (tables.ints(known, "series") == which.series) & (tables.ints(known, "rank") == which.rank)
        rows = np.flatnonzero(is_asked)
        if not len(rows):
            raise SelectError(f"The run has no series {which.series} of rank {which.rank}. It has {len(known)} series.")
        (row,) = known.slice(int(rows[0]), 1).to_pylist()
        return dict(row)

    def require_statistic(self, stat: str) -> None:
        """Raise an error unless the run has the statistic."""
        if stat not in (known := statistics(self.reader)):
            raise SelectError(f"The run has no statistic {stat!r}. There are: {', '.join(known)}.")

    def question(self, which: SeriesNumber, stat: str) -> Question:
        """The question that a heat map of the tensors like that of a series asks."""
        row = self.series(which)
        return Question(row["kind"], stat, row["mode"], which.rank, row["context"])

    def matrix(self, question: Question) -> Matrix:
        """One statistic of all tensors over all steps, as far as the run is recorded."""
        self.require_statistic(question.stat)
        revision, of_kind = self.reader.revision(), (self.id, replace(question, stat=""))

        def layout() -> Layout:
            return self.cache.layouts.get(of_kind, lambda: laid_out(self.reader, question), revision)

        return self.cache.matrices.get((self.id, question), lambda: matrix(self.reader, question, layout), revision)

    def has_matrix(self, question: Question) -> bool:
        """Whether a matrix was read already."""
        return (self.id, question) in self.cache.matrices


@dataclass(frozen=True, slots=True)
class RunOrProblem:
    """One of several runs that are compared, or why it cannot be read."""

    name: str
    run: OpenRun | None
    problem: str = ""


Runs = Iterable[RunOrProblem]
