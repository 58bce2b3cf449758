"""The runs below one folder: found anew at every look, opened when first asked for."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np

from layerscope.errors import LayerscopeError, SelectError, StoreError
from layerscope.model.lru_cache import LRUCache
from layerscope.model.records import Dependencies, Floats, Ints
from layerscope.query import tables
from layerscope.query.discover import RunFolder, find_runs, is_still_run
from layerscope.query.history import History, read_history
from layerscope.query.named_tensors import NamedTensors
from layerscope.query.run_tables import series_history
from layerscope.server.background import IdleWorker
from layerscope.server.messages import RunEntry
from layerscope.server.routes.findings import Diagnoses
from layerscope.store.reader import Reader, RowGroupCache, read_manifest, unread_problems
from layerscope.store.traces import passes_revision
from layerscope.views.scalar import metrics_in_order

Compactor = Callable[[Path], None]

log = logging.getLogger(__name__)
SPARKLINE = 120  # points of a run's small curve
LOOK_EVERY_S = 0.25
KEPT_BYTES = 4 * 2**20  # of histories
KEPT_FILE_BYTES = 28 * 2**20  # of what was read for them: more than one has of it
KEPT_RUNS = 12  # open readers: more than a comparison shows; each may hold a file handle for every table
LONGEST_PROBLEM = 1000  # characters


@dataclass(slots=True)
class OpenRunEntry:
    """A run that is being read; hold the lock while reading."""

    reader: Reader
    id: str  # of the manifest: another one means that the run was deleted and made again
    lock: threading.Lock = field(default_factory=threading.Lock)
    sites: tuple[object, object, bytes] | None = None  # what the list of its sites was made of, and the message
    histories: LRUCache[tuple[int, int], History] = field(
        default_factory=lambda: LRUCache(KEPT_BYTES, lambda history: history.nbytes)
    )
    _named: LRUCache[str, NamedTensors] = field(default_factory=lambda: LRUCache(1))

    def history(self, series: int, rank: int) -> History:
        """The rows of one series; kept for a while, since the charts of a site, and its next axis, need the same."""
        self.place(series, rank)
        make = partial(series_history, self.reader, series, rank)
        return self.histories.get((series, rank), make, self.reader.revision())

    def named(self) -> NamedTensors:
        """The named tensors as they are by now."""
        return self._named.get(self.reader.revision(), lambda: NamedTensors(self.reader))

    def dtype(self, series: int, rank: int) -> str:
        """The number format of a series."""
        return str(self.reader.series()["dtype"][self.place(series, rank)].as_py())

    def place(self, series: int, rank: int) -> int:
        """The row of a series in the table of all."""
        known = self.reader.series()
        found = np.flatnonzero((tables.ints(known, "series") == series) & (tables.ints(known, "rank") == rank))
        if not len(found):
            raise SelectError(f"The run has no series {series} of rank {rank}. It has {len(known)} series.")
        return int(found[0])


@dataclass(slots=True)
class Known:
    """What stays of a run when its reader is closed."""

    id: str
    entry: tuple[object, RunEntry] | None = None  # the line in the list, and the state it was made at
    graphs: tuple[object, list[Dependencies]] | None = None  # of named tensors, and the revision they were read at
    problems: tuple[object, tuple[str, ...]] = (None, ())  # found while reading that revision, whoever asked
    compacted: bool = False

    def problems_of(self, reader: Reader, revision: object) -> tuple[str, ...]:
        """The problems that reading has found so far; a later reader of the same revision need not find them again."""
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
        self.quiet = IdleWorker()
        self._row_groups = RowGroupCache(KEPT_FILE_BYTES, lambda table: int(table.nbytes))
        self._compactor = compactor
        self._background = ThreadPoolExecutor(1, "layerscope-compact")
        self._opened: LRUCache[str, OpenRunEntry] = LRUCache(KEPT_RUNS)  # a dropped one is closed when its reads end
        self._known: dict[str, Known] = {}
        self._paths: dict[str, Path] = {}
        self._lock = threading.Lock()
        self._look_lock = threading.Lock()
        self._looked: tuple[float, dict[str, State]] = (0.0, {})
        self._told: set[str] = set()  # folders that could not be looked into: one warning each
        self._logged: set[str] = set()  # errors that are not ours

    @property
    def title(self) -> str:
        """The folder's own name; "." may stand for one that is no UTF-8, whose odd bytes are escaped."""
        return os.fsencode(self.root.resolve().name).decode("utf-8", "backslashreplace")

    def close(self) -> None:
        """Start nothing more in the background."""
        self.diagnoses.close()
        self.quiet.close()
        self._background.shutdown(wait=False, cancel_futures=True)

    def warm_up(self, look: Callable[[OpenRunEntry, str], object] | None = None) -> Future[None]:
        """Open in the background what a page asks for first: there is time for that while a browser starts.

        `look` is called with the run that is shown first, and its name.
        """
        return self._background.submit(self._open_first, look)

    def _open_first(self, look: Callable[[OpenRunEntry, str], object] | None) -> None:
        with contextlib.suppress(LayerscopeError, OSError):  # whoever asks for it will be told
            shown = [entry.name for entry in self.entries() if entry.status != "unreadable"]
            for name in shown[:1]:
                opened = self.open(name)
                with opened.lock:
                    if look is not None:
                        look(opened, name)
                    for series in opened.reader.series().slice(0, 1).to_pylist():
                        opened.history(series["series"], series["rank"])

    def paths(self) -> dict[str, Path]:
        """Every run there is now, by its name: the path below the root, or the root's own name."""
        try:
            found = find_runs(self.root)
        except StoreError as error:  # the folder itself was moved or closed to us: it may come back
            found = RunFolder(skipped=[str(error)])
        for problem in found.skipped:
            if problem not in self._told:
                log.warning("%s", problem)
        self._told = set(found.skipped)
        self._paths = {self._name(path): path for path in found.runs}
        return self._paths

    def open(self, name: str) -> OpenRunEntry:
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

    def graphs(self) -> Iterator[list[Dependencies]]:
        """The dependency graphs between named tensors of every run that can be read; what has not changed is kept."""
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

    def _open(self, name: str, path: Path) -> OpenRunEntry:
        """The run in a folder that was found, read anew when it is another one than before."""
        made = read_manifest(path).id
        with self._lock:
            return self._opened.get(name, lambda: OpenRunEntry(Reader(path, self._row_groups), made), made)

    def _looked_at(self, name: str, path: Path) -> tuple[OpenRunEntry, Known]:
        """The run with its open reader, if it has one, else with one for this moment; and what is known of it."""
        made = read_manifest(path).id
        with self._lock:
            opened, known = self._opened.peek(name), self._known.get(name)
            if known is None or known.id != made:
                known = self._known[name] = Known(made)
        if opened is None or opened.id != made:
            opened = OpenRunEntry(Reader(path, self._row_groups), made)
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
            seen = (revision, passes_revision(path), self.diagnoses.known(path), problems)
        except Exception as error:  # noqa: BLE001  a border: one run must not hide the others
            return State("unreadable", self._reason(error))
        self._compact(known, path, status)
        return State(status, " ".join(map(str, seen)))

    def _compact(self, known: Known, path: Path, status: str) -> None:
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
                state = (status, revision, passes_revision(path))
                if known.entry is None or known.entry[0] != (*state, known.problems_of(opened.reader, revision)):
                    entry = described(name, status, opened.reader)
                    problems = known.problems_of(opened.reader, revision)
                    told = dict.fromkeys((*problems, *unread_problems(path)))
                    known.entry = ((*state, problems), replace(entry, problem=shortened(list(told))))
                entry = known.entry[1]
            return replace(entry, findings=self.diagnoses.counts(path, revision))
        except Exception as error:  # noqa: BLE001  a border: one run must not hide the others
            nothing = np.zeros(0)
            return RunEntry(name, "unreadable", None, (), nothing, nothing, self._reason(error))

    def _reason(self, error: Exception) -> str:
        """Why a run cannot be read, fit to be sent; an error that is not one of ours is logged, once."""
        if isinstance(error, LayerscopeError | OSError):
            return shortened([str(error)]) or type(error).__name__
        text = shortened([f"The run cannot be read ({type(error).__name__}: {error}). It is damaged."]) or ""
        if text not in self._logged:
            self._logged.add(text)
            log.error("A run could not be read", exc_info=error)
        return text


def shortened(sentences: Sequence[str]) -> str | None:
    """Sentences as one text of bounded length that every encoding takes; None if there are none."""
    text = " ".join(sentences).encode("utf-8", "backslashreplace").decode()
    return (text if len(text) <= LONGEST_PROBLEM else f"{text[:LONGEST_PROBLEM]} …") or None


def metric_curves(reader: Reader) -> dict[str, tuple[Ints, Floats]]:
    """Steps and values of every metric, losses first."""
    curves = tables.curves_by_name(reader.metrics())
    return {metric: curves[metric] for metric in metrics_in_order(list(curves))}


def step_range(reader: Reader, metric_steps: Ints) -> tuple[int, int] | None:
    """The first and last step: of the metrics and of all that was recorded; None if there is nothing."""
    last = reader.last_step
    if last is None:
        return None
    small = (metric_steps, tables.ints(reader.overhead(), "step"), tables.ints(reader.steps(), "step"))
    starts = [int(steps.min()) for steps in small if len(steps)]
    return min(starts or [int(_steps_of_first_series(reader).min(initial=last))]), last


def _steps_of_first_series(reader: Reader) -> Ints:
    return read_history(reader, reader.series().slice(0, 1), columns=["count"]).steps


def described(name: str, status: str, reader: Reader) -> RunEntry:
    """The line of one run in the list."""
    curves = metric_curves(reader)
    columns = [column for _, column in curves.values()]
    curve = columns[0] if columns else np.zeros(0)
    chosen = np.linspace(0, len(curve) - 1, min(len(curve), SPARKLINE)).astype(np.int64)
    return RunEntry(
        name=name,
        status=status,
        last_step=reader.last_step,
        metrics=tuple(curves),
        metric_values=np.array([column[-1] if len(column) else np.nan for column in columns]),
        sparkline=curve[chosen],
        problem=shortened(reader.problems()),
    )
