"""Reader: the tables of one run folder. Other layers read a run through this module alone."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from layerscope.errors import FormatError, SelectError, StoreError
from layerscope.model import summary_spec
from layerscope.model.records import SAMPLE_STATISTICS, STEP_TYPE, Bytes, CallGraph, Dependencies, Floats, Ints
from layerscope.store.columns import filled, flags, numbers, texts, valid, values
from layerscope.store.files import opened
from layerscope.store.format import GRAPH, RUN, SCHEMA, TABLES, Manifest
from layerscope.store.graph_files import dependencies_of, read_graph
from layerscope.store.manifests import Status, read_manifest, status_of, unreadable, verified
from layerscope.store.parts import RowGroupCache
from layerscope.store.record_batches import DTYPES, Array
from layerscope.store.row_filter import (
    SORT_KEYS,
    RowFilter,
    Steps,
    among,
    in_order,
    key_columns,
    packed,
    places,
    without_earlier,
)
from layerscope.store.sources import RunFiles, Sources, TableSource, in_threads
from layerscope.store.traces import RECORD, TRACES, trace_folders

__all__ = [
    "RUN",
    "Reader",
    "RowGroupCache",
    "Steps",
    "TableSource",
    "arrays_of",
    "encoded",
    "in_threads",
    "numbers_of",
    "read_manifest",
    "unread_problems",
]

KEYS = ("rank", "session", "step", "series")
UNKNOWN_SERIES = "rows of unknown series"
UNKNOWN_CUSTOM = "custom statistics of unknown series"
UNKNOWN_VALUES = "values of unknown series"
LOST_ALIAS = "rows whose alias is lost"


class Reader:
    """Reads one run folder; every call sees what is there at that moment.

    The tables: `series`, `moments`, `custom_statistics`, `values`, `sample_stats`, `metrics`, `steps`, `overhead`,
    `events`; beside them `dependencies` and `graph`. Of rows that a later session recorded again, the last ones count;
    with `history=True` all of them are returned. Rows that cannot be trusted are left out: `problems` reports them.

    Readers that share a `cache` share the row groups they read for single series.
    """

    def __init__(self, folder: str | os.PathLike[str], cache: RowGroupCache | None = None) -> None:
        self.folder = Path(folder)
        self.manifest: Manifest = read_manifest(self.folder)
        self.left_out: dict[str, int] = {}  # rows that the last call of each kind left out, by the reason
        self._files = RunFiles(self.folder, self.manifest.id, cache)
        self._files.live()
        self._series: tuple[int, pa.Table | None] = (-1, None)  # how many rows there were, and the table made of them

    def status(self) -> Status:
        """Whether the run is being written ("running"), ended properly ("finished"), or its writer died ("stopped")."""
        try:
            return status_of(self.folder, self.manifest.id)
        except OSError as error:
            raise self._unreadable(error) from None

    def revision(self) -> str:
        """A token that changes when something new was recorded; cheap."""
        return repr((self._files.stamp(), self.graph_revision()))

    def graph_revision(self) -> int:
        """A token that changes when calls were added to the graph of modules; cheap."""
        try:
            with opened(self.folder) as directory:
                return directory.stat(GRAPH).st_mtime_ns
        except (FileNotFoundError, FormatError):
            return 0

    @property
    def last_step(self) -> int | None:
        """The last step of which anything was recorded, None if there is none; cheap."""
        without = ("series", "dependencies", "bits")  # bits have no step that moments lack
        last = max(self._files.sources(table).last_step for table in TABLES if table not in without)
        return last if last >= 0 else None

    def problems(self) -> list[str]:
        """A sentence for rows left out, and for each damaged, missing or cut file of the tables read so far."""
        left_out = [f"{count} {reason} were left out." for reason, count in self.left_out.items() if count]
        try:
            return [*left_out, *self._files.problems()]
        except OSError as error:
            raise self._unreadable(error) from None

    def _unreadable(self, error: OSError) -> StoreError:
        return StoreError(f"{self.folder} cannot be read: {error.strerror}. Was it moved or deleted?")

    def series(self) -> pa.Table:
        """Every series: number, site, port, kind, mode, context, local, phase, dtype, shape; by rank and number."""
        sources = self._files.sources("series")
        if sources.rows != self._series[0]:
            self._series = (sources.rows, _each_once(sources.read(SCHEMA["series"].names, RowFilter())))
        return self._series[1]

    def steps(self, *, history: bool = False) -> pa.Table:
        """Steps in which tensors were named, by rank and step: the fields of `StepInfo`, its lists as JSON.

        A writer writes the row of a step after everything else of it, and again when it learns more: the last counts.
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

    def moments(
        self,
        series: npt.ArrayLike | None = None,
        steps: Steps = None,
        columns: Sequence[str] | None = None,
        *,
        bits: bool = False,
        history: bool = False,
    ) -> pa.Table:
        """Moments by series, rank and step, alias rows resolved: rank, session, step, series and the columns asked for.

        `steps` is a range (first, last) with both ends, or an array. `columns` are names of moments, `scale` or
        `merged`; all by default. `bits` adds the encoded bit-counts as columns `m` and `counts`, null in rows whose
        bit-counts were dropped (see `encoded`).
        """
        names = _moment_columns(columns)
        row_filter = RowFilter.of(series, steps)
        written_later = self._files.sources("bits") if bits else None  # looked at before moments: none is missing
        rows = self._resolved(self._files.sources("moments"), [*KEYS, "alias", *names], row_filter)
        rows = self._of_known_series(self._ordered("moments", rows, history=history))
        table = rows.select([*KEYS, *names])
        return table if written_later is None else _with_bits(table, rows["alias"], written_later, row_filter)

    def moment_pieces(self, series: npt.ArrayLike | None) -> list[TableSource]:
        """The pieces of the files that may have moments of some series, or of all, to read column by column."""
        return self._files.sources("moments").pieces(RowFilter.of(series, None))

    @property
    def custom_names(self) -> list[str]:
        """The names of all custom statistics, in alphabetical order."""
        return sorted(self._files.sources("custom_statistics").names)

    def custom_statistics(
        self,
        series: npt.ArrayLike | None = None,
        steps: Steps = None,
        names: Sequence[str] | None = None,
        *,
        history: bool = False,
    ) -> pa.Table:
        """Custom statistics by series, rank, name and step: rank, session, step, series, name, value."""
        sources = self._files.sources("custom_statistics")
        table = sources.read(SCHEMA["custom_statistics"].names, RowFilter.of(series, steps))
        if names is not None:
            table = table.filter(pc.is_in(table.column("name"), value_set=texts(names)))
        return self._of_known_series(self._ordered("custom_statistics", table, history=history), UNKNOWN_CUSTOM)

    def values(self, series: npt.ArrayLike | None = None, steps: Steps = None, *, history: bool = False) -> pa.Table:
        """Kept values by series, step and rank: rank, session, step, series, samples, dtype, shape, content.

        `arrays_of` decodes the arrays.
        """
        return self._kept("values", RowFilter.of(series, steps), history=history)

    def sample_stats(
        self, series: npt.ArrayLike | None = None, steps: Steps = None, *, history: bool = False
    ) -> pa.Table:
        """Statistics of samples by series, step and rank: rank, session, step, series, samples, content.

        `numbers_of` decodes the numbers.
        """
        return self._kept("sample_stats", RowFilter.of(series, steps), history=history)

    def _kept(self, table: str, row_filter: RowFilter, *, history: bool) -> pa.Table:
        rows = self._files.sources(table).read(SCHEMA[table].names, row_filter)
        return self._of_known_series(self._ordered(table, rows, history=history), UNKNOWN_VALUES)

    def _whole(self, table: str) -> pa.Table:
        return self._files.sources(table).read(SCHEMA[table].names, RowFilter())

    def _ordered(self, kind: str, table: pa.Table, *, history: bool) -> pa.Table:
        table = in_order(kind, table)
        return table if history else without_earlier(kind, table)

    def _of_known_series(self, table: pa.Table, reason: str = UNKNOWN_SERIES) -> pa.Table:
        """The rows whose series is known. Writers write a series before rows of it, so the series are read last."""
        (rank, number), (known_rank, known_number) = (
            key_columns(each, ("rank", "series")) for each in (table, self.series())
        )
        width = 1 + max(int(number.max(initial=0)), int(known_number.max(initial=0)))
        known = among(rank.astype(np.int64) * width + number, known_rank.astype(np.int64) * width + known_number)
        self.left_out[reason] = int(np.count_nonzero(~known))
        return table if known.all() else table.filter(flags(known))

    def _resolved(self, files: Sources, columns: list[str], row_filter: RowFilter) -> pa.Table:
        """The rows, with the moments of alias rows read from the rows they stand for, in the same file."""
        rows = files.read(columns, row_filter)
        self.left_out[LOST_ALIAS] = 0
        own = [name for name in columns if name in (*KEYS, "alias", "scale", "merged")]
        if len(own) == len(columns):
            return rows
        plain, aliases = _split(rows)
        if aliases.num_rows == 0:
            return plain
        sources, alias = plain, filled(aliases.column("alias"))
        if row_filter.series is not None:
            sources, _ = _split(files.read(columns, row_filter.with_series(alias)))
        place = places((*key_columns(aliases, KEYS[:3]), alias), key_columns(sources, KEYS))
        present = place >= 0
        self.left_out[LOST_ALIAS] = int(np.count_nonzero(~present))
        moments = sources.select([name for name in columns if name not in own])
        resolved = _joined(aliases.select(own).filter(flags(present)), moments, place[present])
        return pa.concat_tables([plain, resolved.select(columns)])


def _split(rows: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Rows with moments of their own, and rows that stand for others."""
    alias = rows.column("alias")
    if alias.null_count == len(alias):
        return rows, rows.slice(0, 0)
    own = filled(alias) < 0
    return (rows, rows.slice(0, 0)) if own.all() else (rows.filter(flags(own)), rows.filter(flags(~own)))


def _with_bits(rows: pa.Table, aliases: pa.ChunkedArray, bits: Sources, row_filter: RowFilter) -> pa.Table:
    """Rows of moments with their bit-counts; alias rows have those of the rows they stand for."""
    alias = filled(aliases)
    source = np.where(alias >= 0, alias, values(rows.column("series")))
    counted = bits.read(
        [*KEYS, "m", "counts"], row_filter if row_filter.series is None else row_filter.with_series(source)
    )
    place = places((*key_columns(rows, KEYS[:3]), source), key_columns(counted, KEYS))
    return _joined(rows, counted.select(["m", "counts"]), place)


def _joined(left: pa.Table, right: pa.Table, place: Ints) -> pa.Table:
    """The left table with the columns of the right one, whose row `place[i]` belongs to row i; null for -1."""
    if not (len(place) == right.num_rows and bool(np.all(place == np.arange(len(place))))):
        missing = place < 0
        right = right.combine_chunks().take(numbers(place, missing if missing.any() else None))
    for name in right.column_names:
        left = left.append_column(name, right.column(name))
    return left


def _moment_columns(columns: Sequence[str] | None) -> list[str]:
    known = ["scale", "merged", *summary_spec.MOMENTS]
    if columns is None:
        return known
    for name in columns:
        if name not in known:
            raise SelectError(f"The moments have no column {name!r}. There are: {', '.join(known)}.")
    return list(dict.fromkeys(columns))


def _each_once(series: pa.Table) -> pa.Table:
    """The series in order: a writer that had to try again may have written a row twice."""
    table = in_order("series", series)
    for word in ("context", "local"):
        if table[word].null_count:  # of a writer that knew none
            index = table.column_names.index(word)
            table = table.set_column(index, word, pc.fill_null(table[word], texts([""])[0]))
    rank, number = key_columns(table, ("rank", "series"))
    repeated = np.zeros(len(rank), np.bool_)
    repeated[1:] = (rank[1:] == rank[:-1]) & (number[1:] == number[:-1])
    return table.filter(flags(~repeated)) if repeated.any() else table


def encoded(bits: pa.Table) -> tuple[Bytes, Ints, Bytes]:
    """Columns m and counts of `Reader.moments` as `stats.derived.decode_bits` takes them: m, offsets, encoded bytes."""
    m = np.where(valid(bits.column("m")), values(bits.column("m")), np.uint8(summary_spec.COARSE_M))
    chunks = [chunk for chunk in bits.column("counts").chunks if len(chunk)]
    offsets, parts, end = [np.zeros(1, np.int64)], [], 0
    for chunk in chunks:
        _, chunk_offsets, content = chunk.buffers()
        own = np.frombuffer(chunk_offsets, np.int32, len(chunk) + 1, chunk.offset * 4).astype(np.int64)
        first, last = int(own[0]), int(own[-1])
        data = np.zeros(0, np.uint8) if content is None else np.frombuffer(content, np.uint8)
        parts.append(data[first:last])
        offsets.append(own[1:] - first + end)
        end += last - first
    return m, np.concatenate(offsets), np.concatenate(parts) if parts else np.zeros(0, np.uint8)


def arrays_of(values: pa.Table) -> list[Array]:
    """The arrays in rows of the table of values, as they were recorded."""
    described = list(zip(values["dtype"].to_pylist(), values["shape"].to_pylist(), strict=True))

    def read(row: int, content: memoryview) -> Array:
        name, shape = described[row]
        dtype = DTYPES.get(name)
        if dtype is None or math.prod(shape) * dtype.itemsize != len(content):
            raise _wrong(values, row)
        return np.frombuffer(content, dtype).astype(dtype.newbyteorder("=")).reshape(shape)

    return _read(values, read)


def numbers_of(sample_stats: pa.Table) -> list[Floats]:
    """The numbers in rows of the table of statistics of samples: a row for each sample, columns SAMPLE_STATISTICS."""

    def read(row: int, content: memoryview) -> Floats:
        if len(content) % (8 * len(SAMPLE_STATISTICS)):
            raise _wrong(sample_stats, row)
        return np.frombuffer(content, "<f8").astype(np.float64).reshape(-1, len(SAMPLE_STATISTICS))

    return _read(sample_stats, read)


def _read(table: pa.Table, read: Callable[[int, memoryview], Array]) -> list[Array]:
    arrays: list[Array] = []
    for chunk in table["content"].chunks:
        _, offsets, data = chunk.buffers()
        if len(chunk):
            content = memoryview(data or b"")
            bounds = np.frombuffer(offsets, np.int64, len(chunk) + 1, chunk.offset * 8).tolist()
            arrays += [read(row, content[a:b]) for row, (a, b) in enumerate(pairwise(bounds), start=len(arrays))]
    return arrays


def _wrong(table: pa.Table, row: int) -> FormatError:
    step, series = (table[name][row].as_py() for name in ("step", "series"))
    return FormatError(
        f"A kept value (step {step}, series {series}) is damaged: its bytes do not fit its shape. "
        "Restore the run from a copy, or leave out that step."
    )


def unread_problems(folder: Path) -> list[str]:
    """Problems of files that few callers read: links, pipes and devices in the run folder, damaged graphs and traces.

    Cheap: only the bytes of the JSON files are compared with their checksums.
    """
    problems = list(_problems(folder, (), GRAPH, "graph"))
    try:
        traces = trace_folders(folder)
    except FormatError as error:
        return list(dict.fromkeys([*problems, str(error)]))
    if traces:
        problems += _problems(folder, (TRACES,), "", "")
    for trace in traces:
        problems += _problems(folder, (TRACES, trace.name), RECORD, "trace")
    return problems


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
