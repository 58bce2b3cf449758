"""The bounded queue between a training and a writer thread: what exceeds it is dropped, lowest priority first."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from layerscope.model.records import (
    CallGraph,
    CustomStatistics,
    Dependencies,
    Event,
    Metric,
    NumberedSeries,
    Overhead,
    SampleStats,
    SinkRecord,
    StepInfo,
    Summaries,
    TensorValues,
)

DROPPED_FIRST = ("values", "sample_stats", "bits", "custom_statistics", "moments")  # the others are never dropped
STEPS = "steps"  # a step is written after all its kept data
#: In the order of writing.
QUEUES = (
    "series",
    "dependencies",
    "graph",
    "events",
    "metrics",
    "overhead",
    "moments",
    "custom_statistics",
    "bits",
    "sample_stats",
    "values",
    STEPS,
)
QUEUES_OF: Mapping[type[SinkRecord], tuple[str, ...]] = {
    NumberedSeries: ("series",),
    Dependencies: ("dependencies",),
    Summaries: ("moments", "bits"),
    CustomStatistics: ("custom_statistics",),
    Overhead: ("overhead",),
    TensorValues: ("values",),
    SampleStats: ("sample_stats",),
    StepInfo: (STEPS,),
    Metric: ("metrics",),
    Event: ("events",),
    CallGraph: ("graph",),
}
_SMALL = frozenset((Metric, Overhead, Event))  # written at every step
_SMALL_BYTES = 200  # approximate bytes of a row of the small tables
_DESCRIBED_LENGTH = 200  # characters of an item's name in a message
_NAME_BYTES = 64  # a short string and the reference to it, shared between rows or not


def size_of(queue: str, item: SinkRecord) -> int:
    """Bytes of an item in memory for one queue."""
    if type(item) in _SMALL:
        return _SMALL_BYTES
    if isinstance(item, TensorValues):
        return _SMALL_BYTES * len(item.series) + item.bytes
    if isinstance(item, Summaries):
        if queue == "bits":
            return item.bits.nbytes + item.offsets.nbytes + item.m.nbytes
        rest = item.series.nbytes + item.alias.nbytes + item.scale.nbytes + item.merged.nbytes
        return item.moments.nbytes + rest
    if isinstance(item, CustomStatistics):
        return item.series.nbytes + item.values.nbytes + _NAME_BYTES * len(item.names)
    if isinstance(item, CallGraph):
        return _SMALL_BYTES * (1 + len(item.modules) + len(item.calls) + len(item.edges))
    if isinstance(item, Dependencies):
        return _SMALL_BYTES * (1 + len(item.nodes) + len(item.links))
    if isinstance(item, SampleStats):
        return _SMALL_BYTES + item.numbers.nbytes + item.samples.nbytes
    return _SMALL_BYTES


def size_of_whole(queue: str, item: SinkRecord) -> int:
    """The same if summaries are not split."""
    return size_of(queue, item) + (size_of("bits", item) if isinstance(item, Summaries) else 0)


def rows_of(item: SinkRecord) -> int:
    """Number of rows of an item in its table."""
    return len(item.series) if isinstance(item, Summaries | CustomStatistics | TensorValues) else 1


def described(queue: str, item: SinkRecord) -> str:
    """Names an item in a message: its table, its name if it has one, its step."""
    of_series = item.series if isinstance(item, NumberedSeries) else None
    name = f"{of_series.kind.value} of {of_series.site!r}" if of_series else getattr(item, "name", "")
    step = getattr(item, "step", None)
    words = (f"a record of {queue}", str(name), "" if step is None else f"at step {step}")
    return " ".join(word for word in words if word)[:_DESCRIBED_LENGTH]


@dataclass(slots=True)
class Drops:
    """Dropped rows of one table, and their steps."""

    rows: int = 0
    first_step: int = 0
    last_step: int = 0

    def add(self, rows: int, step: int) -> None:
        """Counts dropped rows of one step."""
        self.merge(Drops(rows, step, step))

    def merge(self, other: Drops) -> None:
        """Adds drops counted elsewhere."""
        if other.rows:
            self.first_step = min(self.first_step, other.first_step) if self.rows else other.first_step
            self.last_step = max(self.last_step, other.last_step) if self.rows else other.last_step
            self.rows += other.rows


def dropped_text(dropped: Mapping[str, Drops], slow: str) -> str:
    """The text of an event about rows that were dropped because something was slow."""
    rows = ", ".join(
        f"{drops.rows} rows of {table} (steps {drops.first_step} to {drops.last_step})"
        for table, drops in dropped.items()
    )
    return f"Dropped, because {slow} was slower than the recording: {rows}."


@dataclass(slots=True)
class Load:
    """Items removed from the queues together; they count against the limit until they are settled."""

    items: dict[str, list[SinkRecord]] = field(default_factory=dict)
    dropped: dict[str, Drops] = field(default_factory=dict)  # since the last load


class WriteQueue:
    """Queues between the training thread and a writer thread. Every method holds a lock for a short time.

    The folder writes moments and bit-counts to different tables: with `split` they are dropped separately.
    """

    def __init__(self, bound_bytes: int, *, split: bool = True) -> None:
        self._bound = bound_bytes
        self._queues_of = QUEUES_OF if split else {**QUEUES_OF, Summaries: ("moments",)}
        self._size_of: Callable[[str, SinkRecord], int] = size_of if split else size_of_whole
        self._lock = threading.Lock()
        self._settled = threading.Condition(self._lock)
        self._queues: dict[str, deque[SinkRecord]] = {queue: deque() for queue in QUEUES}
        self._bytes = 0
        self._arrived = 0  # items ever added
        self._gone = 0  # items ever written, dropped or abandoned
        self._unreported: dict[str, Drops] = {}
        self.dropped: dict[str, int] = dict.fromkeys(DROPPED_FIRST, 0)

    def add(self, *items: SinkRecord) -> int:
        """Adds items to their queues and drops what exceeds the limit; returns the bytes queued."""
        with self._lock:
            for item in items:
                for queue in self._queues_of[type(item)]:
                    self._queues[queue].append(item)
                    self._bytes += self._size_of(queue, item)
                    self._arrived += 1
            if self._bytes > self._bound:
                self._drop()
            return self._bytes

    def _drop(self) -> None:
        for queue in DROPPED_FIRST:
            waiting = self._queues[queue]
            while waiting and self._bytes > self._bound:
                item = waiting.popleft()
                self._leave(queue, item)
                self._count(queue, item)
        self._settled.notify_all()

    def _leave(self, queue: str, item: SinkRecord) -> None:
        self._bytes -= self._size_of(queue, item)
        self._gone += 1

    def _count(self, queue: str, item: SinkRecord) -> None:
        assert isinstance(item, Summaries | CustomStatistics | TensorValues | SampleStats)
        self._unreported.setdefault(queue, Drops()).add(self._count_dropped(queue, item), item.step)

    def _count_dropped(self, queue: str, item: SinkRecord) -> int:
        rows = rows_of(item)
        self.dropped[queue] = self.dropped.get(queue, 0) + rows
        return rows

    def refuse(self, queue: str, item: SinkRecord) -> None:
        """Counts an unwritable item as dropped; it still has to be settled."""
        with self._lock:
            self._count_dropped(queue, item)

    def take(self, limit_bytes: int) -> Load:
        """The next items to write: the small tables completely, the others in writing order up to a limit."""
        with self._lock:
            load = Load(dropped=self._unreported)
            self._unreported = {}
            room = limit_bytes
            for queue in QUEUES:
                waiting, items = self._queues[queue], load.items.setdefault(queue, [])
                while waiting and (room > 0 or queue not in DROPPED_FIRST) and self._is_due(queue):
                    items.append(waiting.popleft())
                    room -= self._size_of(queue, items[-1])
            return load

    def _is_due(self, queue: str) -> bool:
        """Whether the next item may be written: a step only after all data of it and of earlier steps."""
        if queue != STEPS:
            return True
        step = self._step(STEPS)
        return all(self._step(other) > step for other in DROPPED_FIRST if self._queues[other])

    def _step(self, queue: str) -> int:
        item = self._queues[queue][0]
        assert isinstance(item, Summaries | CustomStatistics | TensorValues | SampleStats | StepInfo)
        return item.step

    def settle(self, queue: str, items: Sequence[SinkRecord]) -> None:
        """Removes items that were written or abandoned."""
        with self._lock:
            for item in items:
                self._leave(queue, item)
            self._settled.notify_all()

    def give_back(self, load: Load) -> None:
        """Puts items that could not be written back to the front of their queues; the limit applies again."""
        with self._lock:
            for queue, items in load.items.items():
                self._queues[queue].extendleft(reversed(items))
            for queue, drops in load.dropped.items():
                self._unreported.setdefault(queue, Drops()).merge(drops)
            if self._bytes > self._bound:
                self._drop()

    def give_up(self, load: Load) -> None:
        """Drops and counts the load and everything queued, because nothing can be written."""
        with self._lock:
            for queue in QUEUES:
                items = [*load.items.get(queue, ()), *self._queues[queue]]
                self._queues[queue].clear()
                for item in items:
                    self._leave(queue, item)
                    if queue in DROPPED_FIRST:
                        self._count(queue, item)
            self._settled.notify_all()

    def wait_until_gone(self, target: int, timeout_s: float) -> bool:
        """Waits until `arrived` items have left the queue; returns False after the timeout."""
        with self._lock:
            return self._settled.wait_for(lambda: self._gone >= target, timeout_s)

    @property
    def arrived(self) -> int:
        """Number of items ever added."""
        with self._lock:
            return self._arrived

    @property
    def empty(self) -> bool:
        """Whether nothing is queued or being written."""
        with self._lock:
            return self._gone == self._arrived
