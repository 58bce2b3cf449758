"""What is wrong with those files of a run that few readers ask for: a list of runs says it all the same."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from layerscope.errors import FormatError, SelectError, StoreError
from layerscope.model import summary_spec
from layerscope.model.records import STEP_TYPE, Bytes, CallGraph, Dependencies, Flags, Ids, Ints
from layerscope.store.columns import filled, flags, numbers, texts, values
from layerscope.store.files import opened
from layerscope.store.format import GRAPH, SCHEMA, TABLES, Manifest
from layerscope.store.graph_files import dependencies_of, read_graph
from layerscope.store.manifests import Status, read_manifest, status_of, unreadable, verified
from layerscope.store.parts import RowGroupCache
from layerscope.store.row_filter import (
    SORT_KEYS,
    RowFilter,
    Steps,
    in_order,
    key_columns,
    packed,
    places,
    without_earlier,
)
from layerscope.store.sources import RunFiles, Sources, TableSource
from layerscope.store.traces import RECORD, TRACES, pass_folders


def unread_problems(folder: Path) -> list[str]:
    """A sentence for every link, pipe or device in a run folder or its traces, and every damaged graph or trace.

    Little is read for it: the bytes of the JSON files are compared with their checksums.
    """
    found = list(_problems(folder, (), GRAPH, "graph"))
    try:
        traces = pass_folders(folder)
    except FormatError as error:
        return list(dict.fromkeys([*found, str(error)]))
    if traces:
        found += _problems(folder, (TRACES,), "", "")
    for trace in traces:
        found += _problems(folder, (TRACES, trace.name), RECORD, "pass")
    return found


def _problems(folder: Path, below: tuple[str, ...], name: str, kind: str) -> Iterator[str]:
    """What is wrong in one folder, and with a JSON file in it, if that is there."""
    try:
        with opened(folder, *below) as directory:
            yield from directory.problems()
            if name in directory.names():
                verified(directory, name, kind)
    except FormatError as error:
        yield str(error)
    except OSError as error:
        yield str(unreadable(folder.joinpath(*below), error))


UNKNOWN_SERIES = "rows of unknown series"


class SmallTables:
    """The tables of one run folder that are small enough to be read whole."""

    def __init__(self, folder: str | os.PathLike[str], lately: RowGroupCache | None = None) -> None:
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
        """Every series: number, site, port, kind, mode, context, local, phase, dtype, shape; by rank and number."""
        sources = self._files.sources("series")
        if sources.rows != self._series[0]:
            self._series = (sources.rows, _each_once(sources.read(SCHEMA["series"].names, RowFilter())))
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

    def overhead(self, *, history: bool = False) -> pa.Table:
        """What recording cost by rank and step: rank, session, step, step_s, recording_s, summaries, bytes."""
        return self._ordered("overhead", self._whole("overhead"), history=history)

    def events(self) -> pa.Table:
        """Notes, warnings and drops in the order of time: rank, session, step, level, text, time_s."""
        table = self._whole("events")
        return table.take(numbers(np.argsort(values(table.column("time_s")), kind="stable")))

    def dependencies(self) -> list[Dependencies]:
        """The dependency graphs between named tensors, each once."""
        return dependencies_of(self._whole("dependencies"))

    def graph(self) -> CallGraph | None:
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
        return self._files.sources(table).read(SCHEMA[table].names, RowFilter())

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


KEYS = ("rank", "session", "step", "series")
UNKNOWN_EXTRAS = "custom statistics of unknown series"
UNKNOWN_VALUES = "values of unknown series"
LOST_ALIAS = "rows whose alias is lost"


class Reader(SmallTables):
    """Reads one run folder; every call sees what is there at that moment.

    Rows that cannot be trusted are left out and counted in `problems`: those of the last call of each kind.
    """

    def moments(
        self,
        series: npt.ArrayLike | None = None,
        steps: Steps = None,
        columns: Sequence[str] | None = None,
        *,
        history: bool = False,
    ) -> pa.Table:
        """Moments by series, rank and step, alias rows resolved: rank, session, step, series and the columns asked for.

        `steps` is a range (first, last) with both ends, or an array. `columns` are names of moments, `scale` or
        `merged`; all by default. With `history`, rows that a later session recorded again are kept.
        """
        chosen = _chosen(columns)
        wanted = RowFilter.of(series, steps)
        table = self._resolved(self._files.sources("moments"), [*KEYS, "alias", *chosen], wanted)
        table = self._ordered("moments", table, history=history)
        return self._known(table).select([*KEYS, *chosen])

    def moment_pieces(self, series: npt.ArrayLike | None) -> list[TableSource]:
        """The pieces of the files that may hold moments of some series, or of all, to read column by column."""
        return self._files.sources("moments").pieces(RowFilter.of(series, None))

    def bits(self, series: npt.ArrayLike | None = None, steps: Steps = None, *, history: bool = False) -> pa.Table:
        """Encoded bit-counts by series, rank and step: rank, session, step, series, m, counts (see `encoded`)."""
        wanted = RowFilter.of(series, steps)
        later = self._files.sources("bits")  # a writer writes it after moments: looked at first, none is missing
        rows = self._files.sources("moments").read([*KEYS, "alias"], wanted)
        return _bits_of(self._known(self._ordered("moments", rows, history=history)), later, wanted)

    def summaries(self, series: npt.ArrayLike, steps: Steps = None) -> tuple[pa.Table, pa.Table]:
        """`moments` and `bits`, with less to read than one after the other; without `scale` and `merged`."""
        wanted, chosen = RowFilter.of(series, steps), summary_spec.MOMENTS
        later = self._files.sources("bits")
        rows = self._resolved(self._files.sources("moments"), [*KEYS, "alias", *chosen], wanted)
        rows = self._known(self._ordered("moments", rows, history=False))
        return rows.select([*KEYS, *chosen]), _bits_of(rows, later, wanted)

    def custom_statistics(
        self,
        series: npt.ArrayLike | None = None,
        steps: Steps = None,
        names: Sequence[str] | None = None,
        *,
        history: bool = False,
    ) -> pa.Table:
        """Custom statistics by series, rank, name and step: rank, session, step, series, name, value."""
        table = self._files.sources("custom_statistics").read(
            SCHEMA["custom_statistics"].names, RowFilter.of(series, steps)
        )
        if names is not None:
            table = table.filter(pc.is_in(table.column("name"), value_set=texts(names)))
        return self._known(self._ordered("custom_statistics", table, history=history), UNKNOWN_EXTRAS)

    @property
    def extra_names(self) -> list[str]:
        """The names of all custom statistics, in alphabetical order."""
        return sorted(self._files.sources("custom_statistics").names)

    def values(self, series: npt.ArrayLike | None = None, steps: Steps = None, *, history: bool = False) -> pa.Table:
        """Kept values by series, step and rank: rank, session, step, series, samples, dtype, shape, content.

        `tensors.arrays_of` gives the arrays.
        """
        return self._kept("values", RowFilter.of(series, steps), history=history)

    def sample_stats(
        self, series: npt.ArrayLike | None = None, steps: Steps = None, *, history: bool = False
    ) -> pa.Table:
        """Statistics of samples by series, step and rank: rank, session, step, series, samples, content.

        `tensors.numbers_of` gives the numbers.
        """
        return self._kept("sample_stats", RowFilter.of(series, steps), history=history)

    def _kept(self, table: str, wanted: RowFilter, *, history: bool) -> pa.Table:
        rows = self._files.sources(table).read(SCHEMA[table].names, wanted)
        return self._known(self._ordered(table, rows, history=history), UNKNOWN_VALUES)

    def _resolved(self, files: Sources, columns: list[str], wanted: RowFilter) -> pa.Table:
        """The wanted rows, with the moments of alias rows taken from the rows they stand for, in the same file."""
        plain, aliases = _split(files.read(columns, wanted))
        self.problems[LOST_ALIAS] = 0
        if aliases.num_rows == 0:
            return plain
        sources, alias = plain, filled(aliases.column("alias"))
        if wanted.series is not None:
            sources, _ = _split(files.read(columns, wanted.with_series(alias)))
        place = places((*key_columns(aliases, KEYS[:3]), alias), key_columns(sources, KEYS))
        self.problems[LOST_ALIAS] = int(np.count_nonzero(place < 0))
        own = [name for name in columns if name in (*KEYS, "alias", "scale", "merged")]
        taken = [name for name in columns if name not in own]
        followed = _joined(aliases.select(own), sources.select(taken), place >= 0, place)
        return pa.concat_tables([plain, followed.select(columns)])


def _split(rows: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Rows with moments of their own, and rows that stand for others."""
    alias = rows.column("alias")
    if alias.null_count == len(alias):
        return rows, rows.slice(0, 0)
    own = filled(alias) < 0
    return (rows, rows.slice(0, 0)) if own.all() else (rows.filter(flags(own)), rows.filter(flags(~own)))


def _bits_of(rows: pa.Table, bits: Sources, wanted: RowFilter) -> pa.Table:
    """The bit-counts of rows of moments, with the keys of these; alias rows have those that they stand for."""
    alias = filled(rows.column("alias"))
    source = np.where(alias >= 0, alias, values(rows.column("series")))
    sought = wanted if wanted.series is None else wanted.with_series(source)
    found = bits.read([*KEYS, "m", "counts"], sought)
    rank, session, step = key_columns(rows, KEYS[:3])
    place = places((rank, session, step, source), key_columns(found, KEYS))
    return _joined(rows.select(KEYS), found.select(["m", "counts"]), place >= 0, place)


def encoded(bits: pa.Table) -> tuple[Bytes, Ints, Bytes]:
    """Columns m and counts of `Reader.bits` as `stats.buckets.decode_bits` takes them: m, offsets, encoded bytes."""
    m = values(bits.column("m"))
    chunks = [chunk for chunk in bits.column("counts").chunks if len(chunk)]
    offsets, parts, end = [np.zeros(1, np.int64)], [], 0
    for chunk in chunks:
        _, places_of, content = chunk.buffers()
        own = np.frombuffer(places_of, np.int32, len(chunk) + 1, chunk.offset * 4).astype(np.int64)
        first, last = int(own[0]), int(own[-1])
        data = np.zeros(0, np.uint8) if content is None else np.frombuffer(content, np.uint8)
        parts.append(data[first:last])
        offsets.append(own[1:] - first + end)
        end += last - first
    return m, np.concatenate(offsets), np.concatenate(parts) if parts else np.zeros(0, np.uint8)


def _chosen(columns: Sequence[str] | None) -> list[str]:
    known = ["scale", "merged", *summary_spec.MOMENTS]
    if columns is None:
        return known
    for name in columns:
        if name not in known:
            raise SelectError(f"The moments have no column {name!r}. There are: {', '.join(known)}.")
    return list(dict.fromkeys(columns))


def _joined(left: pa.Table, right: pa.Table, found: Flags, place: Ints) -> pa.Table:
    """Rows of the left table for which a row of the right was found, with its columns."""
    if not found.all():
        left, place = left.filter(flags(found)), place[found]
    if not (len(place) == right.num_rows and bool(np.all(place == np.arange(len(place))))):
        right = right.combine_chunks().take(numbers(place))
    for name in right.column_names:
        left = left.append_column(name, right.column(name))
    return left
