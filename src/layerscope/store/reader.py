"""The reader: tables of a run as Arrow tables, also while the run is written or compacted."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from layerscope.errors import SelectError, StoreError
from layerscope.records import Bytes, Graph, Ids, Ints
from layerscope.stats import spec
from layerscope.store.columns import flags, numbers, texts, valid, values
from layerscope.store.folder import Status, status_of
from layerscope.store.format import GRAPH, SCHEMA, TABLES, Manifest, read_manifest
from layerscope.store.graph import read_graph
from layerscope.store.order import in_order, key_columns, places, without_earlier
from layerscope.store.sources import Catalogue, Sources
from layerscope.store.values import KeptValue, read_values, values_names
from layerscope.store.wanted import Flags, Steps, Wanted

KEYS = ("rank", "session", "step", "series")
UNKNOWN_SERIES = "rows of unknown series"
UNKNOWN_EXTRAS = "own statistics of unknown series"
LOST_ALIAS = "rows whose alias is lost"


class Reader:
    """Reads one run folder; every call sees what is there at that moment.

    Rows that cannot be trusted are left out and counted in `problems`: those of the last call of each kind.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.manifest: Manifest = read_manifest(self.folder)
        self.problems: dict[str, int] = {}
        self._catalogue = Catalogue(self.folder)
        self._catalogue.live()

    def status(self) -> Status:
        """Whether the run is being written ("running"), ended properly ("finished"), or its writer died ("stopped")."""
        try:
            return status_of(self.folder)
        except OSError as error:
            raise StoreError(f"{self.folder} cannot be read: {error.strerror}. Was it moved or deleted?") from None

    def revision(self) -> str:
        """A token that changes when something new was recorded; cheap to ask for."""
        try:
            graph = (self.folder / GRAPH).stat().st_mtime_ns
        except FileNotFoundError:
            graph = 0
        return repr((self._catalogue.stamp(), graph, len(values_names(self.folder))))

    def series(self) -> pa.Table:
        """Every series with its number, site, port, kind, mode, reading, dtype and shape; by rank and number."""
        table = in_order("series", self._catalogue.sources("series").read(SCHEMA["series"].names, Wanted()))
        rank, number = key_columns(table, ("rank", "series"))
        repeated = np.zeros(len(rank), np.bool_)  # a writer that had to try again may write a row twice
        repeated[1:] = (rank[1:] == rank[:-1]) & (number[1:] == number[:-1])
        return table.filter(flags(~repeated)) if repeated.any() else table

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
        wanted = Wanted.of(series, steps)
        table = self._resolved(self._catalogue.sources("moments"), [*KEYS, "alias", *chosen], wanted)
        table = self._ordered("moments", table, history=history)
        return self._known(table).select([*KEYS, *chosen])

    def moments_by_file(self, series: npt.ArrayLike, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Moments of some series, one table for each file they are in: no more than that is held at once.

        Rows come as they lie, and rows that a later session recorded again are among them.
        """
        chosen, wanted = _chosen(columns), Wanted.of(series, None)
        sources = self._catalogue.sources("moments")
        files = [Sources("moments", [part], []) for part in sources.parts]
        files += [Sources("moments", [], [segment]) for segment in sources.segments]
        for file in files:
            yield self._resolved(file, [*KEYS, "alias", *chosen], wanted).select([*KEYS, *chosen])

    def bits(self, series: npt.ArrayLike | None = None, steps: Steps = None, *, history: bool = False) -> pa.Table:
        """Encoded bit-counts by series, rank and step: rank, session, step, series, m, counts (see `encoded`)."""
        wanted = Wanted.of(series, steps)
        later = self._catalogue.sources("bits")  # a writer writes it after moments: looked at first, none is missing
        rows = self._catalogue.sources("moments").read([*KEYS, "alias"], wanted)
        rows = self._known(self._ordered("moments", rows, history=history))
        alias = _filled(rows.column("alias"))
        number = values(rows.column("series"))
        source = np.where(alias >= 0, alias, number)
        sought = wanted if wanted.series is None else wanted.with_series(source)
        bits = later.read([*KEYS, "m", "counts"], sought)
        rank, session, step = key_columns(rows, KEYS[:3])
        place = places((rank, session, step, source), key_columns(bits, KEYS))
        found = place >= 0
        return _joined(rows.select(KEYS), bits.select(["m", "counts"]), found, place)

    def extras(
        self,
        series: npt.ArrayLike | None = None,
        steps: Steps = None,
        names: Sequence[str] | None = None,
        *,
        history: bool = False,
    ) -> pa.Table:
        """Own statistics by series, rank, name and step: rank, session, step, series, name, value."""
        table = self._catalogue.sources("extras").read(SCHEMA["extras"].names, Wanted.of(series, steps))
        if names is not None:
            table = table.filter(pc.is_in(table.column("name"), value_set=texts(names)))
        return self._known(self._ordered("extras", table, history=history), UNKNOWN_EXTRAS)

    @property
    def extra_names(self) -> list[str]:
        """The names of all own statistics, in alphabetical order."""
        return sorted(self._catalogue.sources("extras").names)

    def costs(self, *, history: bool = False) -> pa.Table:
        """What recording cost by rank and step: rank, session, step, step_s, recording_s, summaries, bytes."""
        return self._ordered("costs", self._whole("costs"), history=history)

    @property
    def last_step(self) -> int | None:
        """The last step of which anything was recorded, None if there is none; little is read for it."""
        tables = [table for table in TABLES if table not in ("series", "bits")]  # bits have no step that moments lack
        steps = [self._catalogue.sources(table).last_step for table in tables]
        last = max([*steps, *(name.step for name in values_names(self.folder))])
        return last if last >= 0 else None

    def kpis(self, *, history: bool = False) -> pa.Table:
        """Numbers of the training loop by name, rank and step: rank, session, step, name, value, time_s."""
        return self._ordered("kpis", self._whole("kpis"), history=history)

    def events(self) -> pa.Table:
        """Notes, warnings and drops in the order of time: rank, session, step, level, text, time_s."""
        table = self._whole("events")
        return table.take(numbers(np.argsort(values(table.column("time_s")), kind="stable")))

    def graph(self) -> Graph | None:
        """The modules of the watched model, the calls seen and how data flowed, None if nothing was recorded of it."""
        return read_graph(self.folder)

    def values(self, step: int, *, history: bool = False) -> list[KeptValue]:
        """The whole tensors kept of one step."""
        return read_values(self.folder, step, history=history)

    def _whole(self, table: str) -> pa.Table:
        return self._catalogue.sources(table).read(SCHEMA[table].names, Wanted())

    def _ordered(self, kind: str, table: pa.Table, *, history: bool) -> pa.Table:
        table = in_order(kind, table)
        return table if history else without_earlier(kind, table)

    def _known(self, table: pa.Table, left_out: str = UNKNOWN_SERIES) -> pa.Table:
        """The rows whose series is known. Series are written before the rows that use them, so looked at last."""
        series = self._catalogue.sources("series").read(["rank", "series"], Wanted())
        known = key_columns(series, ("rank", "series"))
        ours = key_columns(table, ("rank", "series"))
        found = _are_among(ours, known)
        self.problems[left_out] = int(np.count_nonzero(~found))
        return table if found.all() else table.filter(flags(found))

    def _resolved(self, files: Sources, columns: list[str], wanted: Wanted) -> pa.Table:
        """The wanted rows, with the moments of alias rows taken from the rows they stand for, in the same file."""
        table = files.read(columns, wanted)
        alias = _filled(table.column("alias"))
        aliases = np.flatnonzero(alias >= 0)
        self.problems[LOST_ALIAS] = 0
        if len(aliases) == 0:
            return table
        sources = table.filter(flags(alias < 0))
        if wanted.series is not None:
            sought = wanted.with_series(alias[aliases])
            rows = files.read(columns, sought)
            sources = rows.filter(flags(_filled(rows.column("alias")) < 0))
        theirs = key_columns(table, KEYS[:3])
        place = places((*(column[aliases] for column in theirs), alias[aliases]), key_columns(sources, KEYS))
        self.problems[LOST_ALIAS] = int(np.count_nonzero(place < 0))
        own = [name for name in table.column_names if name in (*KEYS, "alias", "scale", "merged")]
        taken = [name for name in table.column_names if name not in own]
        followed = _joined(table.take(numbers(aliases)).select(own), sources.select(taken), place >= 0, place)
        plain = table.filter(flags(alias < 0))
        return pa.concat_tables([plain, followed.select(table.column_names)])


def encoded(bits: pa.Table) -> tuple[Bytes, Ints, Bytes]:
    """Columns m and counts of `Reader.bits` as `stats.derive.decode_bits` takes them: m, offsets, encoded bytes."""
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
    known = ["scale", "merged", *spec.MOMENTS]
    if columns is None:
        return known
    for name in columns:
        if name not in known:
            raise SelectError(f"The moments have no column {name!r}. There are: {', '.join(known)}.")
    return list(dict.fromkeys(columns))


def _filled(alias: pa.ChunkedArray) -> Ids:
    """The alias column with -1 for none."""
    if alias.null_count == len(alias):
        return np.full(len(alias), -1, np.int32)
    return np.where(valid(alias), values(alias), np.int32(-1))


def _joined(left: pa.Table, right: pa.Table, found: Flags, place: Ints) -> pa.Table:
    """Rows of the left table for which a row of the right was found, with its columns."""
    if not found.all():
        left, place = left.filter(flags(found)), place[found]
    if not (len(place) == right.num_rows and bool(np.all(place == np.arange(len(place))))):
        right = right.combine_chunks().take(numbers(place))
    for name in right.column_names:
        left = left.append_column(name, right.column(name))
    return left


def _are_among(ours: Sequence[Ids | Ints], known: Sequence[Ids | Ints]) -> Flags:
    """Which pairs of rank and series are among the known ones."""
    (rank, number), (known_rank, known_number) = ours, known
    found = np.zeros(len(rank), np.bool_)
    for one in np.unique(known_rank):
        listed = known_number[known_rank == one]
        mine = np.isin(number, listed) if len(known_rank) else found
        found |= mine & (rank == one)
    return found
