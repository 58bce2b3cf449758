"""Writes records into a run folder on a separate thread."""

from __future__ import annotations

import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from layerscope.errors import LayerscopeWarning, StoreError
from layerscope.model.records import (
    DependencyLink,
    Event,
    ExtraSink,
    NamedNode,
    NumberedSeries,
    Record,
    Series,
    SinkRecord,
)
from layerscope.store.columns import storable
from layerscope.store.compaction import compact
from layerscope.store.folder import WritableRun
from layerscope.store.graph_files import numbered
from layerscope.store.table_writer import FolderGoneError, Output
from layerscope.store.write_queue import QUEUES, Load, WriteQueue, described, dropped_text

if TYPE_CHECKING:
    from rich.progress import Progress


PATIENCE_S = 2.0  # seconds before the progress is shown


@contextmanager
def progress_line(text: str) -> Iterator[Callable[[float], None]]:
    """A function that takes the share that is done; a terminal shows it on stderr if the work takes long."""
    began = time.monotonic()
    lines: list[Progress] = []
    with ExitStack() as shown:

        def show(share: float) -> None:
            if not lines and time.monotonic() - began >= PATIENCE_S and sys.stderr is not None and sys.stderr.isatty():
                lines.append(shown.enter_context(_line(text)))
            for line in lines:
                line.update(line.task_ids[0], completed=share)

        yield show


def _line(text: str) -> Progress:
    from rich.console import Console  # loaded when a user waits, not by every training
    from rich.markup import escape
    from rich.progress import Progress

    console = Console(file=sys.stderr)
    line = Progress(console=console, transient=True, redirect_stdout=False, redirect_stderr=False)
    line.add_task(escape(text), total=1.0)
    return line


QUEUE_BYTES = 64 << 20
FLUSH_BYTES = 4 << 20
FLUSH_S = 0.5
CLOSE_S = 30.0
_FIRST_PAUSE_S = 0.5  # after a failed write; doubled with each further one
_LONGEST_PAUSE_S = 30.0
_REASON_LENGTH = 300  # characters of an error message
_FOLDER = "folder"  # source of a warning; each failing sink is a source of its own
_GRAPHS_KNOWN = 1000  # graphs whose numbers are cached


class _WriterThread(threading.Thread):
    """Writes records."""


def _program_has_ended() -> bool:
    """Whether the main thread and all other non-daemon threads have ended: one of them may train."""
    return not threading.main_thread().is_alive() and all(
        thread.daemon or isinstance(thread, _WriterThread) or thread is threading.main_thread()
        for thread in threading.enumerate()
    )


class SinkThread:
    """Passes records to a further sink, behind its own queue and thread."""

    def __init__(self, sink: ExtraSink, queue_bytes: int, report: Callable[[int, str, str], None]) -> None:
        self.cpu_s = 0.0  # CPU seconds of the thread
        self._sink = sink
        self._name = type(sink).__name__
        self._report = report  # called with a step, and level and text of an event
        self._step = 0  # last step written
        self._queue = WriteQueue(queue_bytes, split=False)
        self._wake = threading.Event()
        self._stopping = self._detached = False
        # At the end of a program the folder's thread closes the recorder: Python need not wait for this one too.
        self._thread = threading.Thread(target=self._work, name=f"layerscope-sink-{self._name}", daemon=True)
        self._thread.start()

    def put(self, *records: SinkRecord) -> None:
        """Queue records for the sink."""
        if not self._detached and self._queue.add(*records) >= FLUSH_BYTES:
            self._wake.set()

    def stop(self) -> None:
        """Have the thread write what is queued, close the sink and end."""
        self._stopping = True
        self._wake.set()

    def join(self, timeout_s: float) -> None:
        """Wait for the thread to end."""
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self._detach("did not finish in time. What it has not written is lost")

    def _work(self) -> None:
        try:
            stopping = False
            while not stopping:
                self._wake.wait(FLUSH_S)
                self._wake.clear()
                stopping = self._stopping
                while not (self._queue.empty or self._detached):
                    self._write()
            self._write()  # reports drops since the last report
            self._sink.close()
        except Exception as error:  # noqa: BLE001  a border: the sink is the user's, and must not stop a training
            self._detach(f"failed ({type(error).__name__}: {error}). It is detached; the recording goes on")
            with suppress(Exception):
                self._sink.close()

    def _write(self) -> None:
        load = self._queue.take(2 * FLUSH_BYTES)
        if load.dropped:
            self._report(self._step, "drop", dropped_text(load.dropped, f"the sink {self._name}"))
        records = [record for queue in QUEUES for record in load.items[queue]]
        if records:
            self._sink.write(records)
            self._step = max(self._step, *(getattr(record, "step", 0) for record in records))
        for queue, items in load.items.items():
            self._queue.settle(queue, items)
        self.cpu_s = time.thread_time()

    def _detach(self, reason: str) -> None:
        if not self._detached:
            self._detached = True
            self._queue.give_up(Load())
            self._report(self._step, "warning", f"The sink {self._name} {reason}.")


class FolderSink:
    """A sink that writes into a run folder, and passes everything on to further ones: `FolderSink(create("runs/a"))`.

    Only `flush` and `close` wait for the disk. A failure is reported once, as a `LayerscopeWarning` of the next
    `put`, and never raised. In a forked child every method does nothing.
    """

    def __init__(
        self,
        run: WritableRun,
        *,
        queue_bytes: int = QUEUE_BYTES,
        compact: bool = True,
        also: Iterable[ExtraSink] = (),
    ) -> None:
        self.run = run
        self._writer_s = 0.0  # CPU seconds of the writer thread
        self._compact = compact
        self._pid = os.getpid()
        self._numbers = dict(run.series)
        self._next = run.next_series
        self._graphs: dict[tuple[tuple[NamedNode, ...], tuple[DependencyLink, ...]], int] = {}
        self._graphs_put: set[int] = set()
        self._queue = WriteQueue(queue_bytes)
        self._output = Output(run)
        self._wake = threading.Event()
        self._stopping = False
        self._lost = False  # nothing can be written anymore
        self._dead = False  # the thread, for any reason
        self._failing_since: float | None = None
        self._complaints: dict[str, str] = {}  # latest warning of each source, for the training thread
        self._warned: set[str] = set()  # reasons why the disk failed
        self._refused: set[tuple[str, str]] = set()  # (queue, error type) of unwritable items that were reported
        self._closed = False
        self._ends_itself = False  # the thread: it marks the end of the session
        self._naming = threading.Lock()
        self._closing: Callable[[], None] | None = None  # to be called on the writer thread
        self._at_exit: Callable[[], Callable[[], None] | None] = lambda: None
        self._thread = _WriterThread(target=self._work, name=f"layerscope-writer-{run.path.name}")
        self._thread.start()
        self._others = [SinkThread(sink, queue_bytes, self._report) for sink in also]
        for other in self._others:
            other.put(*(NumberedSeries(number, series) for series, number in run.series.items()))

    @property
    def cpu_s(self) -> float:
        """CPU seconds of all writer threads."""
        return self._writer_s + sum(other.cpu_s for other in self._others)

    @property
    def dropped(self) -> Mapping[str, int]:
        """Rows dropped so far, by table."""
        return dict(self._queue.dropped)

    def series_id(self, series: Series) -> int:
        """Number of the series; equal series have the same number during the whole run."""
        number = self._numbers.get(series)
        if number is not None or os.getpid() != self._pid:
            return -1 if number is None else number
        known_as, series = series, replace(series, site=storable(series.site), port=storable(series.port))
        with self._naming:
            number = self._numbers.get(series)
            if number is None:
                number = self._next
                # The row is queued before the number is returned: no row that uses it can be written earlier.
                self._add(NumberedSeries(number, series))
                self._numbers[series] = number
                self._next += 1
            self._numbers[known_as] = number
        return number

    def dependencies_id(self, nodes: tuple[NamedNode, ...], links: tuple[DependencyLink, ...]) -> int:
        """Number of a dependency graph; equal graphs have the same number in every session and run."""
        number = self._graphs.get((nodes, links))
        if number is not None:
            return number
        graph = numbered(nodes, links)
        with self._naming:
            if graph.number not in self._graphs_put and os.getpid() == self._pid:
                self._add(graph)
                self._graphs_put.add(graph.number)
            if len(self._graphs) >= _GRAPHS_KNOWN:  # a network whose graph changes every time
                self._graphs.clear()
            self._graphs[nodes, links] = graph.number
        return graph.number

    def put(self, *records: Record) -> None:
        """Queues records; the caller must not write to their arrays again."""
        if os.getpid() != self._pid or self._closed or not records:
            return
        if self._complaints or self._dead:
            self._complain()
        self._add(*records)

    def _add(self, *records: SinkRecord) -> None:
        if not self._lost and self._queue.add(*records) >= FLUSH_BYTES:
            self._wake.set()
        for other in self._others:
            other.put(*records)

    def _report(self, step: int, level: str, text: str) -> None:
        """Records what happened to a further sink, and warns of a failure with the next `put`."""
        self._queue.add(Event(step, level, text, time.time()))
        if level == "warning":
            self._complaints[text] = f"{self.run.path}: {text}"

    def flush(self, timeout_s: float = CLOSE_S) -> bool:
        """Waits until everything queued is written to the files; returns False if that failed or took too long."""
        if os.getpid() != self._pid or self._lost or not self._thread.is_alive():
            return False
        self._wake.set()
        target, until = self._queue.arrived, time.monotonic() + timeout_s
        while not self._queue.wait_until_gone(target, min(FLUSH_S, until - time.monotonic())):
            if time.monotonic() >= until or not self._thread.is_alive():
                return False
        return not self._lost

    def when_program_ends(self, close: Callable[[], Callable[[], None] | None]) -> None:
        """Registers a weak reference to the function that closes the recorder if the program ends before `close`."""
        self._at_exit = close

    def call_soon(self, close: Callable[[], None]) -> None:
        """Calls the function that closes the recorder on the writer thread, within half a second. Takes no lock."""
        self._closing = close

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Writes what is queued, marks the end of the session, unlocks the folder and compacts it. Never raises."""
        if os.getpid() != self._pid or self._closed:
            return
        self._close_others(timeout_s)
        self._closed = self._stopping = True
        if threading.current_thread() is self._thread:
            return  # the thread ends the session itself
        self._wake.set()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self._warn(f"{self.run.path} does not take what was recorded: its disk hangs. The rest of it may be lost.")
            return
        self._complain()
        self._end()

    def _close_others(self, timeout_s: float) -> None:
        until = time.monotonic() + timeout_s
        for other in self._others:
            other.stop()
        for other in self._others:
            other.join(max(0.0, until - time.monotonic()))

    def _end(self) -> None:
        try:
            if not self._lost:
                if self._queue.empty:
                    self.run.mark(closed_s=time.time(), drops=self.dropped, **self._output.written())
                self.run.lock.release()
                if self._compact:
                    with progress_line(f"Compacting {self.run.path.name}") as show:
                        compact(self.run.path, show)
        except (OSError, StoreError) as error:
            self._warn(f"{self.run.path} was recorded, but could not be tidied up at the end: {error}")
        finally:
            self.run.lock.release()

    def _complain(self) -> None:
        """Warns once about each problem, in the training thread, where the user sees it."""
        if not self._complaints and self._dead and not (self._lost or self._closed):
            self._complaints[_FOLDER] = (
                f"The thread that writes {self.run.path} has died. Nothing more is recorded; the training goes on."
            )
            self._lost = True
        while self._complaints:
            self._warn(self._complaints.popitem()[1])

    def _warn(self, text: str) -> None:
        warnings.warn(text, LayerscopeWarning, stacklevel=4)

    # From here on: the writer thread.

    def _work(self) -> None:
        try:
            while not self._round():
                pass
        except FolderGoneError as error:
            self._lose(f"{error}. Nothing more is recorded; the training goes on.")
        except Exception as error:  # noqa: BLE001 -- a border: a bug of ours must not stop a training
            reason = f"{type(error).__name__}: {error}"
            self._lose(
                f"The thread that writes {self.run.path} failed ({reason}). "
                "Nothing more is recorded; the training goes on."
            )
        finally:
            self._dead = True
        if self._ends_itself:
            self._complain()
            self._end()

    def _close_recorder(self) -> None:
        """Closes the recorder on this thread if it was garbage-collected, or the program has ended."""
        closing, self._closing = self._closing, None
        if closing is None and not self._closed and _program_has_ended():
            closing = self._at_exit() or self.close
        if closing is None:
            return
        self._ends_itself = True
        try:
            closing()
        except Exception as error:  # noqa: BLE001 -- a border: what was recorded until now is still written
            self._complaints[_FOLDER] = (
                f"{self.run.path}: closing the recorder failed ({type(error).__name__}: {error})."
            )
            self.close()

    def _round(self) -> bool:
        """Waits for something to write and writes it; returns whether this was the last round."""
        self._wake.wait(FLUSH_S)
        self._wake.clear()
        self._close_recorder()
        stopping = self._ending()
        pause = _FIRST_PAUSE_S
        while not self._queue.empty:
            if self._write():
                pause = _FIRST_PAUSE_S
            elif self._ending():
                self._give_up()
                break
            else:
                self._rest(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_S)
        if stopping:
            self._finish()
        return stopping

    def _ending(self) -> bool:
        """Whether the recorder was closed, or the program ended without closing it."""
        return self._stopping or _program_has_ended()

    def _rest(self, pause_s: float) -> None:
        """Pauses after a failure, until the recorder is closed."""
        until = time.monotonic() + pause_s
        while not self._ending() and (left := until - time.monotonic()) > 0:
            self._wake.wait(min(left, FLUSH_S))
            self._wake.clear()

    def _write(self) -> bool:
        load = self._queue.take(2 * FLUSH_BYTES)
        try:
            self._output.write(load, self._queue.settle, self._refuse)
            if self._failing_since is not None:
                self._recover()
        except OSError as error:
            self._queue.give_back(load)
            self._fail(error)
            return False
        finally:
            self._writer_s = time.thread_time()
        return True

    def _refuse(self, queue: str, item: SinkRecord, error: Exception) -> None:
        """Counts an item that cannot be written as dropped, and reports the first for each reason."""
        self._queue.refuse(queue, item)
        reason = f"{type(error).__name__}: {error}"[:_REASON_LENGTH]
        kind = (queue, type(error).__name__)
        if kind not in self._refused:
            self._refused.add(kind)
            text = f"Dropped, because it cannot be stored: {described(queue, item)} ({reason}). "
            text += "More of the same kind is counted in the drops of the session."
            self._queue.add(Event(getattr(item, "step", 0), "drop", text, time.time()))
            self._complaints[_FOLDER] = f"{self.run.path}: {text} Everything else is recorded."

    def _fail(self, error: OSError) -> None:
        reason = error.strerror or str(error)
        if self._failing_since is None:
            self._failing_since = time.time()
        if reason not in self._warned:  # once for each reason, however often the disk fills up
            self._warned.add(reason)
            self._complaints[_FOLDER] = (
                f"{self.run.path} cannot be written: {reason}. The training goes on. What is recorded "
                "waits in memory and beyond its bound is dropped, whole tensors first; writing is tried again. "
                "Make room, or close the recorder."
            )

    def _recover(self) -> None:
        since, self._failing_since = self._failing_since, None
        assert since is not None
        self._output.event("info", f"Writing failed for {time.time() - since:.1f} s and works again.")

    def _give_up(self) -> None:
        """Drops and reports what is still queued, when the recorder is closed and the disk cannot be written."""
        self._queue.give_up(Load())
        rows = {table: rows for table, rows in self._queue.dropped.items() if rows}
        self._complaints[_FOLDER] = (
            f"{self.run.path} could not be written to its end; rows lost: {rows or 'only metrics and events'}."
        )
        self._lost = True

    def _finish(self) -> None:
        self._output.end()

    def _lose(self, complaint: str) -> None:
        self._lost = True
        self._complaints[_FOLDER] = complaint
        self._output.end()
        self._queue.give_up(Load())
