"""The current files of a table: parts, and the segments that no part replaces."""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from layerscope.errors import FormatError
from layerscope.model.lru_cache import LRUCache
from layerscope.store.files import Directory, damaged, opened
from layerscope.store.format import LIVE, SCHEMA, SEGMENTS, TABLES, Live, PartEntry, SegmentName, SessionName
from layerscope.store.manifests import Ended, has_graph, read_live, read_sessions, unreadable
from layerscope.store.parts import ParquetPart, RowGroupCache
from layerscope.store.row_filter import RowFilter
from layerscope.store.segments import Segment

Given = TypeVar("Given")
Made = TypeVar("Made")
_SHARES = 4  # chunks of work per thread: single items cost too much overhead
_ATTEMPTS = 100  # each retry means that a compaction ended meanwhile
SEGMENT_BYTES = 3 << 29  # bytes of segments in memory, over all open runs


def segment_names(folder: Path, table: str) -> list[SegmentName]:
    """The segments of a table in the order of recording, including replaced ones."""
    try:
        with opened(folder, SEGMENTS, table) as directory:
            return _segments_in(directory)
    except FileNotFoundError:
        return []


def _segments_in(directory: Directory) -> list[SegmentName]:
    names = map(SegmentName.parse, directory.names())
    return sorted(name for name in names if name is not None)


@dataclass(frozen=True, slots=True)
class Sources:
    """The opened files that together contain every row of a table exactly once."""

    table: str
    parts: list[ParquetPart]
    segments: list[Segment]
    again: Callable[[], Sources] | None = field(default=None, compare=False)  # ignores the cached listing
    unopened: tuple[str, ...] = ()  # a message for each file that could not be opened

    @property
    def problems(self) -> list[str]:
        """Messages about what could not be read of these files."""
        return [*self.unopened, *(file.problem for file in self.files if file.problem is not None)]

    @property
    def files(self) -> list[ParquetPart | Segment]:
        """Parts, then segments: the order of recording."""
        return [*self.parts, *self.segments]

    @property
    def rows(self) -> int:
        """Rows of all files."""
        return sum(file.rows for file in self.files)

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.size_bytes for file in self.files)

    @property
    def last_step(self) -> int:
        """The largest step of any row, -1 without rows; reads little."""
        return max((file.last_step for file in self.files), default=-1)

    @property
    def names(self) -> frozenset[str]:
        """Distinct values of the column `name`."""
        return frozenset().union(*(file.names for file in self.files))

    def read(self, columns: list[str], row_filter: RowFilter) -> pa.Table:
        """The selected rows, in the order of recording."""
        try:
            return self._read(columns, row_filter)
        except FileNotFoundError:  # a compaction ended meanwhile, or a part was deleted
            if self.again is None:
                raise
            return self.again().read(columns, row_filter)

    def _read(self, columns: list[str], row_filter: RowFilter) -> pa.Table:
        tasks = [task for part in self.parts for task in part.tasks(columns, row_filter)]
        is_there = all(part.is_cached(columns, row_filter) for part in self.parts)
        done = [task() for task in tasks] if is_there else in_threads(lambda task: task(), tasks)
        read = [table for tables in done for table in tables]
        for segment in self.segments:
            _used(segment)
            read.extend(segment.read(columns, row_filter))
        if not read:
            schema = pa.schema([SCHEMA[self.table].field(name) for name in columns])
            return pa.Table.from_batches([], schema)
        return pa.concat_tables(read)

    def pieces(self, row_filter: RowFilter) -> list[TableSource]:
        """The pieces of the files that may contain a selected row, in the order of recording."""
        pieces = [TableSource(part, group) for part in self.parts for group in part.groups(row_filter)]
        return pieces + [TableSource(segment, 0) for segment in self.segments if segment.rows]


@dataclass(frozen=True, slots=True)
class TableSource:
    """A row group of a part, or a whole segment, which may grow."""

    file: ParquetPart | Segment
    group: int

    @property
    def rows(self) -> int:
        """The current number of rows."""
        return self.file.rows_of(self.group) if isinstance(self.file, ParquetPart) else self.file.rows

    def alike(self, columns: Iterable[str]) -> dict[str, int | None]:
        """The columns known to be constant, and their values; reads nothing."""
        return self.file.alike(self.group, columns)

    def read(self, columns: list[str]) -> pa.Table:
        """All rows in stored order; none if they are damaged."""
        try:
            if isinstance(self.file, Segment):
                return pa.concat_tables(self.file.read(columns, RowFilter()))
            for table in self.file.read([self.group], columns, RowFilter()):
                return table
            return SCHEMA[self.file.table].empty_table().select(columns)
        except FileNotFoundError:
            raise FormatError(f"{self.file.path} was compacted, or deleted, while it was read. Try again.") from None


def in_threads(use: Callable[[Given], Made], things: Sequence[Given]) -> list[Made]:
    """Results of `use` for each item, in order, computed by a thread per core. `use` must not call this function."""
    if len(things) < 2:
        return [use(thing) for thing in things]
    share = -(-len(things) // (_SHARES * (os.cpu_count() or 1)))
    shares = [things[start : start + share] for start in range(0, len(things), share)]
    made = _threads().map(lambda some: [use(thing) for thing in some], shares)
    return [each for some in made for each in some]


@functools.cache
def _threads() -> ThreadPoolExecutor:
    """A persistent thread pool: starting threads takes as long as reading one series."""
    return ThreadPoolExecutor(os.cpu_count() or 1, "layerscope-read")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_threads.cache_clear)  # threads do not survive a fork


#: Segments in memory, over all open runs: beyond the limit the least recently used free their memory.
_IN_MEMORY = LRUCache[int, "weakref.ref[Segment]"](
    SEGMENT_BYTES,
    size=lambda reference: segment.size_bytes if (segment := reference()) is not None else 0,
    dropped=lambda reference: segment.forget() if (segment := reference()) is not None else None,
)


def _used(segment: Segment) -> None:
    """Mark a segment as recently used."""
    key = id(segment)
    _IN_MEMORY.put(key, weakref.ref(segment, lambda _: _IN_MEMORY.discard(key)))


class RunFiles:
    """Opens the files of a run, and caches them for the next call."""

    def __init__(self, folder: Path, run: str, cache: RowGroupCache | None = None) -> None:
        self.folder = folder
        self._run = run
        self._cache = cache
        self._parts: dict[tuple[str, PartEntry], ParquetPart] = {}
        self._segments: dict[tuple[str, SegmentName], Segment] = {}
        self._live = Live()
        self._one_look = threading.Lock()  # concurrent updates would read a batch twice
        self._live_stamp: tuple[int, ...] = ()
        self._looked: set[str] = set()  # tables read so far

    def sources(self, table: str) -> Sources:
        """The current files of a table; retries if a compaction moves rows meanwhile."""
        self._looked.add(table)
        for attempt in range(_ATTEMPTS):
            before = self.live()
            try:
                with self._one_look:
                    sources = self._opened(table, before, give_up=attempt > 1)
            except FileNotFoundError:
                continue
            if self.live().generation == before.generation:
                return sources
        raise FormatError(f"{self.folder} is compacted faster than it can be read. Try again.")

    def live(self) -> Live:
        """The current content of live.json."""
        try:
            with opened(self.folder) as directory:
                known = directory.stat(LIVE)
        except FileNotFoundError:
            raise damaged(self.folder / LIVE, "it is missing") from None
        except OSError as error:
            raise unreadable(self.folder / LIVE, error) from None
        stamp = (known.st_ino, known.st_mtime_ns, known.st_size)
        if stamp != self._live_stamp:
            self._live = read_live(self.folder, self._run)
            self._live_stamp = stamp
        return self._live

    def stamp(self) -> tuple[object, ...]:
        """A token that changes when rows arrive or move."""
        return (self.live().generation, *(self._sizes(table) for table in TABLES))

    def _sizes(self, table: str) -> object:
        try:
            with opened(self.folder, SEGMENTS, table) as directory:
                names = _segments_in(directory)
                newest = {name.rank: name for name in names}  # only the last ones grow
                return len(names), tuple((str(name), directory.stat(str(name)).st_size) for name in newest.values())
        except (FileNotFoundError, FormatError):
            return 0, ()

    def problems(self) -> list[str]:
        """A message for everything damaged or missing in the tables read so far, and in the sessions."""
        sessions, problems = read_sessions(
            self.folder, self._run
        )  # before the segments, because closed segments do not grow
        live = self.live()
        problems += [f"{self.folder / LIVE} names a table {name!r} that is not known." for name in live.unknown]
        graph = has_graph(sessions, self.folder)
        problems += [] if graph is None else [graph]
        for table in sorted(self._looked):
            sources = self.sources(table)
            problems += sources.problems
            problems += _unaccounted(sources, sessions, self.live().of(table).compacted)
        return problems

    def _opened(self, table: str, live: Live, *, give_up: bool) -> Sources:
        """The files of a table. If a part is missing, the caller retries."""
        unopened: list[str] = []
        segments = self._followed(table, live, unopened)
        entries = {(table, entry): entry for entry in live.of(table).parts}
        self._parts = {key: part for key, part in self._parts.items() if key[0] != table or key in entries}
        for key, entry in entries.items():
            try:
                if key not in self._parts:
                    self._parts[key] = ParquetPart(self.folder, table, entry, self._cache)
            except FileNotFoundError:
                if not give_up:
                    raise
                unopened.append(f"{self.folder}: {table}/{entry.file} is missing, and its {entry.rows} rows with it.")
            except FormatError as error:
                unopened.append(str(error))
            except OSError as error:
                unopened.append(str(unreadable(self.folder / table / entry.file, error)))
        parts = [self._parts[key] for key in entries if key in self._parts]
        return Sources(table, parts, segments, lambda: self._afresh(table), tuple(unopened))

    def _followed(self, table: str, live: Live, unopened: list[str]) -> list[Segment]:
        """The segments of a table that no part replaces, with everything appended so far."""
        current: list[Segment] = []
        try:
            with opened(self.folder, SEGMENTS, table) as directory:
                replaced = live.of(table).replaced
                keys = [(table, name) for name in _segments_in(directory) if str(name) not in replaced]
                kept = set(keys)
                self._segments = {key: one for key, one in self._segments.items() if key[0] != table or key in kept}
                for key in keys:
                    if key not in self._segments:
                        self._segments[key] = Segment(self.folder, self._run, table, key[1])
                    current.append(self._segments[key])

                def follow(segment: Segment) -> str | None:
                    try:
                        segment.follow(directory)
                    except FormatError as error:
                        return str(error)
                    _used(segment)
                    return None

                grown = [segment for segment in current if segment.grew(directory)]
                unopened += filter(None, in_threads(follow, grown))
        except FileNotFoundError as error:
            if Path(error.filename or "").suffix:
                raise  # a listed segment was compacted meanwhile
        except FormatError as error:
            unopened.append(str(error))
        except OSError as error:
            unopened.append(str(unreadable(self.folder / SEGMENTS / table, error)))
        return current

    def _afresh(self, table: str) -> Sources:
        self._parts = {key: part for key, part in self._parts.items() if key[0] != table}
        return self.sources(table)


def _unaccounted(
    sources: Sources, sessions: Mapping[SessionName, Ended], compacted: Mapping[str, int]
) -> Iterator[str]:
    """A message for segments that are missing or truncated, according to their sessions and later segments."""
    present = {(segment.name.of, segment.name.number): segment for segment in sources.segments}
    sizes = {(of, number - 1): segment.before for (of, number), segment in present.items()}
    for name, end in sessions.items():
        number, size = end.segments.get(sources.table, (0, 0))
        sizes[name.of, number] = size
    last: dict[str, int] = {}
    for of, number in (*present, *sizes):
        last[of] = max(number, last.get(of, 0))
    counted = Counter(of for of, number in present if number > compacted.get(of, 0))
    for of, number in last.items():
        missing = number - compacted.get(of, 0) - counted[of]
        if missing > 0:
            yield f"{missing} segments of {sources.table} of session {of} are missing; their rows are left out."
    for key, segment in present.items():
        if segment.size_bytes < sizes.get(key, 0):
            yield f"{segment.path} is cut: it has {segment.size_bytes} whole bytes of {sizes[key]}."
