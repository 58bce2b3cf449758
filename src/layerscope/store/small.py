"""What is read of a run as a whole: its state, its series, steps, metrics, costs, events and graphs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from layerscope.errors import FormatError, StoreError
from layerscope.records import STEP_TYPE, Dependencies, Flags, Graph, Ids, Ints
from layerscope.store.columns import flags, numbers, texts, values
from layerscope.store.dependencies import dependencies_of
from layerscope.store.files import opened
from layerscope.store.format import GRAPH, SCHEMA, TABLES, Manifest
from layerscope.store.graph import read_graph
from layerscope.store.manifests import read_manifest
from layerscope.store.order import SORT_KEYS, in_order, key_columns, without_earlier
from layerscope.store.parts import Lately
from layerscope.store.sessions import Status, status_of
from layerscope.store.sources import RunFiles
from layerscope.store.wanted import Wanted, packed

UNKNOWN_SERIES = "rows of unknown series"


class SmallTables:
    """The tables of one run folder that are small enough to be read whole."""

    def __init__(self, folder: str | os.PathLike[str], lately: Lately | None = None) -> None:
        self.folder = Path(folder)
        self.manifest: Manifest = read_manifest(self.folder)
        self.problems: dict[str, int] = {}
        self._files = RunFiles(self.folder, self.manifest.id, lately)
        self._files.live()
        self._series: tuple[int, pa.Table | None] = (-1, None)  # how many rows were there, and what was made of them

    def status(self) -> Status:
        """Whether the run is being written ("running"), ended properly ("finished"), or its writer died ("stopped")."""
        try:
            return status_of(self.folder, self.manifest.id)
        except OSError as error:
            raise StoreError(f"{self.folder} cannot be read: {error.strerror}. Was it moved or deleted?") from None

    def revision(self) -> str:
        """A token that changes when something new was recorded; cheap to ask for."""
        try:
            with opened(self.folder) as directory:
                graph = directory.stat(GRAPH).st_mtime_ns
        except (FileNotFoundError, FormatError):
            graph = 0
        return repr((self._files.stamp(), graph))

    def series(self) -> pa.Table:
        """Every series: number, site, port, kind, mode, context, local, reading, dtype, shape; by rank and number."""
        sources = self._files.sources("series")
        if sources.rows != self._series[0]:
            self._series = (sources.rows, _each_once(sources.read(SCHEMA["series"].names, Wanted())))
        return self._series[1]

    def steps(self, *, history: bool = False) -> pa.Table:
        """Steps in which tensors were named, by rank and step: the fields of `StepInfo`, its lists as JSON.

        All that was kept of a step is written before its row. A row may be written again when more is known of its
        step: the last one counts.
        """
        table = in_order("steps", self._whole("steps"))
        key = packed(*key_columns(table, SORT_KEYS["steps"]))
        last = np.append(key[1:] != key[:-1], values=True)[: len(key)]
        return self._ordered("steps", table if last.all() else table.filter(flags(last)), history=history)

    def metrics(self, *, history: bool = False) -> pa.Table:
        """Numbers of the training loop by name, rank and step: rank, session, step, name, value, time_s, type."""
        table = self._ordered("metrics", self._whole("metrics"), history=history)
        return table.set_column(table.num_columns - 1, "type", pc.fill_null(table["type"], texts([STEP_TYPE])[0]))

    def costs(self, *, history: bool = False) -> pa.Table:
        """What recording cost by rank and step: rank, session, step, step_s, recording_s, summaries, bytes."""
        return self._ordered("costs", self._whole("costs"), history=history)

    def events(self) -> pa.Table:
        """Notes, warnings and drops in the order of time: rank, session, step, level, text, time_s."""
        table = self._whole("events")
        return table.take(numbers(np.argsort(values(table.column("time_s")), kind="stable")))

    def dependencies(self) -> list[Dependencies]:
        """The dependency graphs between named tensors, each once."""
        return dependencies_of(self._whole("dependencies"))

    def graph(self) -> Graph | None:
        """The modules of the watched model, the calls seen and how data flowed, None if nothing was recorded of it."""
        return read_graph(self.folder, self.manifest.id)

    def damage(self) -> list[str]:
        """A sentence for every file that is damaged, missing or cut, of what was read so far; the rest is right."""
        try:
            return self._files.problems()
        except OSError as error:
            raise StoreError(f"{self.folder} cannot be read: {error.strerror}. Was it moved or deleted?") from None

    @property
    def last_step(self) -> int | None:
        """The last step of which anything was recorded, None if there is none; little is read for it."""
        without = ("series", "dependencies", "bits")  # bits have no step that moments lack
        last = max(self._files.sources(table).last_step for table in TABLES if table not in without)
        return last if last >= 0 else None

    def _whole(self, table: str) -> pa.Table:
        return self._files.sources(table).read(SCHEMA[table].names, Wanted())

    def _ordered(self, kind: str, table: pa.Table, *, history: bool) -> pa.Table:
        table = in_order(kind, table)
        return table if history else without_earlier(kind, table)

    def _known(self, table: pa.Table, left_out: str = UNKNOWN_SERIES) -> pa.Table:
        """The rows whose series is known. Series are written before the rows that use them, so looked at last."""
        ours = key_columns(table, ("rank", "series"))
        found = _are_among(ours, key_columns(self.series(), ("rank", "series")))
        self.problems[left_out] = int(np.count_nonzero(~found))
        return table if found.all() else table.filter(flags(found))


def _each_once(series: pa.Table) -> pa.Table:
    """The series in order: a writer that had to try again may have written a row twice."""
    table = in_order("series", series)
    for word in ("context", "local"):
        if table[word].null_count:  # of a writer that knew none
            place = table.column_names.index(word)
            table = table.set_column(place, word, pc.fill_null(table[word], texts([""])[0]))
    rank, number = key_columns(table, ("rank", "series"))
    repeated = np.zeros(len(rank), np.bool_)
    repeated[1:] = (rank[1:] == rank[:-1]) & (number[1:] == number[:-1])
    return table.filter(flags(~repeated)) if repeated.any() else table


def _are_among(ours: Sequence[Ids | Ints], known: Sequence[Ids | Ints]) -> Flags:
    """Which pairs of rank and series are among the known ones."""
    (rank, number), (known_rank, known_number) = ours, known
    found = np.zeros(len(rank), np.bool_)
    for one in np.unique(known_rank):
        listed = known_number[known_rank == one]
        mine = np.isin(number, listed) if len(known_rank) else found
        found |= mine & (rank == one)
    return found
