"""Where the rows of a table are at this moment: parts and the segments that no part replaces."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from layerscope.errors import FormatError
from layerscope.store.format import LIVE, PARTS, SCHEMA, SEGMENTS, TABLES, Live, SegmentName, damaged, read_live
from layerscope.store.parts import Lately, Part
from layerscope.store.segments import Segment
from layerscope.store.wanted import Wanted

Given = TypeVar("Given")
Made = TypeVar("Made")
_SHARES = 4  # of the work for each thread: handing out every single thing costs more than it is worth
_ATTEMPTS = 100  # each one means that a compaction ended meanwhile


def segment_names(folder: Path, table: str) -> list[SegmentName]:
    """The segments of a table in the order of recording, replaced ones included."""
    try:
        with os.scandir(folder / SEGMENTS / table) as entries:
            names = [SegmentName.parse(entry.name) for entry in entries if entry.is_file(follow_symlinks=False)]
    except FileNotFoundError:
        return []
    return sorted(name for name in names if name is not None)


@dataclass(frozen=True, slots=True)
class Sources:
    """The opened files that together hold every row of a table exactly once."""

    table: str
    parts: list[Part]
    segments: list[Segment]

    @property
    def files(self) -> list[Part | Segment]:
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
        """The largest step of any row, -1 if there is none; little is read for it."""
        return max((file.last_step for file in self.files), default=-1)

    @property
    def names(self) -> frozenset[str]:
        """What occurs in the column `name`."""
        return frozenset().union(*(file.names for file in self.files))

    def read(self, columns: list[str], wanted: Wanted) -> pa.Table:
        """The wanted rows, in the order of recording."""
        tasks = [task for part in self.parts for task in part.tasks(columns, wanted)]
        is_there = all(part.at_hand(columns, wanted) for part in self.parts)
        done = [task() for task in tasks] if is_there else in_threads(lambda task: task(), tasks)
        found = [table for tables in done for table in tables]
        for segment in self.segments:
            found.extend(segment.read(columns, wanted))
        if not found:
            schema = pa.schema([SCHEMA[self.table].field(name) for name in columns])
            return pa.Table.from_batches([], schema)
        return pa.concat_tables(found)

    def pieces(self, wanted: Wanted) -> list[Piece]:
        """The pieces of the files that may hold a wanted row, in the order of recording."""
        found = [Piece(part, group) for part in self.parts for group in part.groups(wanted)]
        return found + [Piece(segment, 0) for segment in self.segments if segment.rows]


@dataclass(frozen=True, slots=True)
class Piece:
    """A row group of a part, or a whole segment, which may get longer from one look to the next."""

    file: Part | Segment
    group: int

    @property
    def rows(self) -> int:
        """How many rows there are by now."""
        return self.file.rows_of(self.group) if isinstance(self.file, Part) else self.file.rows

    def alike(self, columns: Iterable[str]) -> dict[str, int | None]:
        """Those of the columns that are known to be the same in all rows, and what they are: nothing is read for it."""
        return self.file.alike(self.group, columns)

    def read(self, columns: list[str]) -> pa.Table:
        """All rows, as they lie."""
        if isinstance(self.file, Part):
            (table,) = self.file.read([self.group], columns, Wanted())
            return table
        return pa.concat_tables(self.file.read(columns, Wanted()))


def in_threads(use: Callable[[Given], Made], things: Sequence[Given]) -> list[Made]:
    """What is made of each thing, in order, by as many threads as there are cores. `use` must not do the same."""
    if len(things) < 2:
        return [use(thing) for thing in things]
    share = -(-len(things) // (_SHARES * (os.cpu_count() or 1)))
    shares = [things[start : start + share] for start in range(0, len(things), share)]
    made = _threads().map(lambda some: [use(thing) for thing in some], shares)
    return [each for some in made for each in some]


@functools.cache
def _threads() -> ThreadPoolExecutor:
    """Threads that stay: starting them takes as long as reading the rows of one series."""
    return ThreadPoolExecutor(os.cpu_count() or 1, "layerscope-read")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_threads.cache_clear)  # threads do not live on in a forked process


class RunFiles:
    """Opens the files of a run, and keeps what it has opened for the next look."""

    def __init__(self, folder: Path, lately: Lately | None = None) -> None:
        self.folder = folder
        self._lately = lately
        self._parts: dict[tuple[str, str], Part] = {}
        self._segments: dict[tuple[str, SegmentName], Segment] = {}
        self._live = Live()
        self._one_look = threading.Lock()  # two looks at once would take in a batch twice
        self._live_stamp: tuple[int, ...] = ()

    def sources(self, table: str) -> Sources:
        """The files of a table as they are now; while it looks, a compaction may end and move rows."""
        missing: FileNotFoundError | None = None
        for _ in range(_ATTEMPTS):
            before = self.live()
            names = segment_names(self.folder, table)
            if self.live().generation != before.generation:
                continue
            try:
                with self._one_look:
                    return self._opened(table, before, names)
            except FileNotFoundError as error:
                missing = error
                if self.live().generation == before.generation and self._lacks_part(table, before):
                    break
        if missing is None:
            raise FormatError(f"{self.folder} is compacted faster than it can be read. Try again.")
        raise damaged(Path(missing.filename or self.folder / LIVE), "it is missing, and live.json names it")

    def live(self) -> Live:
        """What live.json says now."""
        try:
            known = (self.folder / LIVE).stat()
        except OSError:
            return read_live(self.folder)  # raises what is to be said
        stamp = (known.st_ino, known.st_mtime_ns, known.st_size)
        if stamp != self._live_stamp:
            self._live = read_live(self.folder)
            self._live_stamp = stamp
        return self._live

    def stamp(self) -> tuple[object, ...]:
        """A token that changes when rows arrive or move."""
        sizes = []
        for table in TABLES:
            names = segment_names(self.folder, table)
            newest = {name.rank: name for name in names}  # the others grow no more
            sizes.append((len(names), tuple(self._size(table, name) for name in newest.values())))
        return (self.live().generation, *sizes)

    def _size(self, table: str, name: SegmentName) -> tuple[str, int]:
        try:
            return str(name), (self.folder / SEGMENTS / table / str(name)).stat().st_size
        except FileNotFoundError:
            return str(name), -1

    def _lacks_part(self, table: str, live: Live) -> bool:
        return any(not (self.folder / PARTS / table / entry.file).exists() for entry in live.of(table))

    def _opened(self, table: str, live: Live, names: list[SegmentName]) -> Sources:
        parts = {(table, entry.file): entry for entry in live.of(table)}
        replaced = live.replaced(table)
        current = [(table, name) for name in names if str(name) not in replaced]
        self._parts = {key: part for key, part in self._parts.items() if key[0] != table or key in parts}
        kept = set(current)
        self._segments = {key: segment for key, segment in self._segments.items() if key[0] != table or key in kept}
        for key in current:
            if key not in self._segments:
                path = self.folder / SEGMENTS / table / str(key[1])
                self._segments[key] = Segment(path, table, key[1])
            self._segments[key].follow()
        for part, entry in parts.items():
            if part not in self._parts:
                self._parts[part] = Part(self.folder / PARTS / table / entry.file, table, entry.rows, self._lately)
        return Sources(table, [self._parts[part] for part in parts], [self._segments[key] for key in current])
