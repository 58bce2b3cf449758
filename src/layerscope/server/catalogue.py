"""The runs below one folder: listed anew at every look, opened when first needed."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from layerscope.errors import LayerscopeError, SelectError, StoreError
from layerscope.model.lru_cache import LRUCache
from layerscope.model.records import Dependencies
from layerscope.query.discover import RunFolder, find_runs, is_still_run
from layerscope.server import wire
from layerscope.server.background import Diagnoses, IdleWorker
from layerscope.store.reader import Reader, RowGroupCache, read_manifest, unread_problems
from layerscope.store.traces import traces_revision
from layerscope.views.dependencies import ProjectGraphs
from layerscope.views.open_run import OpenRun, RunOrProblem, SeriesNumber, ViewCache
from layerscope.views.run_overview import RunEntry, bounded_text, run_entry, site_list

Compactor = Callable[[Path], None]

log = logging.getLogger(__name__)
LOOK_EVERY_S, GRAPHS_EVERY_S = 0.25, 1.0
KEPT_FILE_BYTES = 28 * 2**20  # of what was read for them: more than one has of it
KEPT_RUNS = 12  # open readers: more than a comparison shows; each may hold a file handle for every table


@dataclass(slots=True)
class KnownRun:
    """What stays of a run when its reader is closed."""

    id: str
    entry: tuple[object, RunEntry] | None = None  # the line in the list, and the state it was made at
    graphs: tuple[object, list[Dependencies]] | None = None  # of named tensors, and the revision they were read at
    problems: tuple[object, tuple[str, ...]] = (None, ())  # met while reading that revision
    compacted: bool = False

    def problems_of(self, reader: Reader, revision: object) -> tuple[str, ...]:
        """The problems that reading has met so far, also by earlier readers of the same revision."""
        before = self.problems[1] if self.problems[0] == revision else ()
        self.problems = (revision, tuple(dict.fromkeys((*before, *reader.problems()))))
        return self.problems[1]


@dataclass(frozen=True, slots=True)
class State:
    """What the live channel compares: two equal states need no new picture."""

    status: str
    revision: str


class Catalogue:
    """Runs by name. Names come from looking, never from a request: no request can lead outside the folder.

    However many runs there are, few have an open reader. Whatever is wrong with one run is said in its own line.
    """

    def __init__(self, root: Path, compactor: Compactor | None = None) -> None:
        self.root = root
        self.diagnoses = Diagnoses()
        self.idle = IdleWorker()
        self._row_groups = RowGroupCache(KEPT_FILE_BYTES, lambda table: int(table.nbytes))
        self._compactor = compactor
        self._background = ThreadPoolExecutor(1, "layerscope-compact")
        self._opened: LRUCache[str, OpenRun] = LRUCache(KEPT_RUNS)  # a dropped one is closed when its reads end
        self._known: dict[str, KnownRun] = {}
        self._paths: dict[str, Path] = {}
        self._views = ViewCache()
        self._site_messages: LRUCache[str, bytes] = LRUCache(KEPT_RUNS)
        self._project_graphs, self._graphs_until = ProjectGraphs(), 0.0
        self._graphs_lock = threading.Lock()
        self._lock = threading.Lock()
        self._look_lock = threading.Lock()
        self._looked: tuple[float, dict[str, State]] = (0.0, {})
        self._warned: set[str] = set()  # folders that could not be looked into: one warning each
        self._logged: set[str] = set()  # errors that are not ours

    @property
    def title(self) -> str:
        """The folder's own name; "." may stand for one that is no UTF-8, whose odd bytes are escaped."""
        return os.fsencode(self.root.resolve().name).decode("utf-8", "backslashreplace")

    def close(self) -> None:
        """Start nothing more in the background."""
        self.diagnoses.close()
        self.idle.close()
        self._background.shutdown(wait=False, cancel_futures=True)

    def warm_up(self) -> Future[None]:
        """Open in the background what a page asks for first: there is time for that while a browser starts."""
        return self._background.submit(self._open_first)

    def _open_first(self) -> None:
        with contextlib.suppress(LayerscopeError, OSError):  # the request for it reports the error
            readable = [entry.name for entry in self.entries() if entry.status != "unreadable"]
            for name in readable[:1]:
                run = self.open(name)
                with run.lock:
                    self.site_message(run)
                    for series in run.reader.series().slice(0, 1).to_pylist():
                        run.history(SeriesNumber(series["series"], series["rank"]))

    def site_message(self, run: OpenRun) -> bytes:
        """The list of sites of a run, encoded: it is long, and the same from one step of a live run to the next."""
        sites = site_list(run)
        return self._site_messages.get(run.id, lambda: wire.encode(sites), sites)

    def paths(self) -> dict[str, Path]:
        """Every run there is now, by its name: the path below the root, or the root's own name."""
        try:
            folder = find_runs(self.root)
        except StoreError as error:  # the folder itself was moved or closed to us: it may come back
            folder = RunFolder(skipped=[str(error)])
        for problem in folder.skipped:
            if problem not in self._warned:
                log.warning("%s", problem)
        self._warned = set(folder.skipped)
        self._paths = {self._name(path): path for path in folder.runs}
        return self._paths

    def open(self, name: str) -> OpenRun:
        """The run of that name; the error says that there is none."""
        path = self._paths.get(name)
        if path is None or not is_still_run(self.root, path):
            path = self.paths().get(name)
        if path is None:
            self._opened.discard(name)
            raise SelectError(
                f"No run here is called {name!r}. It may have been deleted or renamed: choose another one."
            )
        return self._open(name, path)

    def each(self, names: Iterable[str]) -> Generator[RunOrProblem, None, None]:
        """Several runs, each locked until the next; one that was deleted or is damaged does not hide the others."""
        for name in names:
            try:
                run = self.open(name)
            except (LayerscopeError, OSError) as error:
                yield RunOrProblem(name, None, str(error))
                continue
            with run.lock:
                yield RunOrProblem(name, run)

    def project_graphs(self) -> ProjectGraphs:
        """The graphs between named tensors of all runs, at most a second old. Locks every run in turn."""
        with self._graphs_lock:
            if time.monotonic() >= self._graphs_until:
                self._project_graphs.update(graph for graphs in self._graphs() for graph in graphs)
                self._graphs_until = time.monotonic() + GRAPHS_EVERY_S
        return self._project_graphs

    def _graphs(self) -> Iterator[list[Dependencies]]:
        """The graphs of every run that can be read; what has not changed is kept."""
        for name, path in sorted(self.paths().items()):
            try:
                opened, known = self._looked_at(name, path)
                with opened.lock:
                    revision = opened.reader.revision()
                    if known.graphs is None or known.graphs[0] != revision:
                        known.graphs = (revision, opened.named().graphs())
            except Exception:  # noqa: BLE001  a border: one run must not hide the others, and the list says why
                continue
            yield known.graphs[1]

    def _open(self, name: str, path: Path) -> OpenRun:
        """The run in a folder, read anew when it is another one than before."""
        made = read_manifest(path).id
        with self._lock:
            return self._opened.get(name, lambda: OpenRun(Reader(path, self._row_groups), name, self._views), made)

    def _looked_at(self, name: str, path: Path) -> tuple[OpenRun, KnownRun]:
        """The run with its open reader, if it has one, else with one for this moment; and what is known of it."""
        made = read_manifest(path).id
        with self._lock:
            opened, known = self._opened.peek(name), self._known.get(name)
            if known is None or known.id != made:
                known = self._known[name] = KnownRun(made)
        if opened is None or opened.reader.manifest.id != made:
            opened = OpenRun(Reader(path, self._row_groups), name, self._views)
        return opened, known

    def entries(self) -> list[RunEntry]:
        """The lines of the list of runs; a run that cannot be read is a line that says why."""
        return [self._entry(name, path) for name, path in self.paths().items()]

    def look(self) -> dict[str, State]:
        """The state of every run, at most `LOOK_EVERY_S` old; several listeners share one look.

        A look that takes long is kept longer: many runs on a slow disk never take more than a tenth of the time.
        """
        with self._look_lock:
            until, states = self._looked
            if time.monotonic() >= until:
                began = time.monotonic()
                paths = self.paths()
                states = {name: self._state(name, path) for name, path in paths.items()}
                self._forget_all_but(paths)
                took = time.monotonic() - began
                self._looked = (began + max(LOOK_EVERY_S, 10.0 * took), states)
            return states

    def _name(self, path: Path) -> str:
        return self.title if path == self.root else path.relative_to(self.root).as_posix()

    def _forget_all_but(self, paths: dict[str, Path]) -> None:
        with self._lock:
            for name in [name for name in self._known if name not in paths]:
                del self._known[name]
                self._opened.discard(name)

    def _state(self, name: str, path: Path) -> State:
        try:
            opened, known = self._looked_at(name, path)
            with opened.lock:
                status, revision = opened.reader.status(), opened.reader.revision()
                problems = known.problems_of(opened.reader, revision)
            seen = (revision, traces_revision(path), self.diagnoses.known(path), problems)
        except Exception as error:  # noqa: BLE001  a border: one run must not hide the others
            return State("unreadable", self._reason(error))
        self._compact(known, path, status)
        return State(status, " ".join(map(str, seen)))

    def _compact(self, known: KnownRun, path: Path, status: str) -> None:
        if self._compactor is not None and status != "running" and not known.compacted:
            known.compacted = True
            self._background.submit(self._compactor, path).add_done_callback(
                lambda done: (
                    log.warning("Compacting %s failed: %s", path, done.exception())
                    if not done.cancelled() and done.exception()
                    else None
                )
            )

    def _entry(self, name: str, path: Path) -> RunEntry:
        try:
            opened, known = self._looked_at(name, path)
            with opened.lock:
                status, revision = opened.reader.status(), opened.reader.revision()
                state = (status, revision, traces_revision(path))
                if known.entry is None or known.entry[0] != (*state, known.problems_of(opened.reader, revision)):
                    entry = run_entry(name, status, opened.reader)
                    problems = known.problems_of(opened.reader, revision)
                    reported = list(dict.fromkeys((*problems, *unread_problems(path))))
                    known.entry = ((*state, problems), replace(entry, problem=bounded_text(reported)))
                entry = known.entry[1]
            return replace(entry, findings=self.diagnoses.counts(path, revision))
        except Exception as error:  # noqa: BLE001  a border: one run must not hide the others
            nothing = np.zeros(0)
            return RunEntry(name, "unreadable", None, (), nothing, nothing, self._reason(error))

    def _reason(self, error: Exception) -> str:
        """Why a run cannot be read, fit to be sent; an error that is not one of ours is logged, once."""
        if isinstance(error, LayerscopeError | OSError):
            return bounded_text([str(error)]) or type(error).__name__
        text = bounded_text([f"The run cannot be read ({type(error).__name__}: {error}). It is damaged."]) or ""
        if text not in self._logged:
            self._logged.add(text)
            log.error("A run could not be read", exc_info=error)
        return text
