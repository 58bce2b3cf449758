"""The reader: tables of a run as Arrow tables, also while the run is written or compacted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from layerscope.errors import SelectError
from layerscope.records import Bytes, Flags, Ints
from layerscope.stats import spec
from layerscope.store.columns import filled, flags, numbers, texts, values
from layerscope.store.format import SCHEMA
from layerscope.store.order import key_columns, places
from layerscope.store.small import SmallTables
from layerscope.store.sources import Piece, Sources
from layerscope.store.wanted import Steps, Wanted

KEYS = ("rank", "session", "step", "series")
UNKNOWN_EXTRAS = "own statistics of unknown series"
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
        wanted = Wanted.of(series, steps)
        table = self._resolved(self._files.sources("moments"), [*KEYS, "alias", *chosen], wanted)
        table = self._ordered("moments", table, history=history)
        return self._known(table).select([*KEYS, *chosen])

    def moment_pieces(self, series: npt.ArrayLike | None) -> list[Piece]:
        """The pieces of the files that may hold moments of some series, or of all, to read column by column."""
        return self._files.sources("moments").pieces(Wanted.of(series, None))

    def bits(self, series: npt.ArrayLike | None = None, steps: Steps = None, *, history: bool = False) -> pa.Table:
        """Encoded bit-counts by series, rank and step: rank, session, step, series, m, counts (see `encoded`)."""
        wanted = Wanted.of(series, steps)
        later = self._files.sources("bits")  # a writer writes it after moments: looked at first, none is missing
        rows = self._files.sources("moments").read([*KEYS, "alias"], wanted)
        return _bits_of(self._known(self._ordered("moments", rows, history=history)), later, wanted)

    def summaries(self, series: npt.ArrayLike, steps: Steps = None) -> tuple[pa.Table, pa.Table]:
        """`moments` and `bits`, with less to read than one after the other; without `scale` and `merged`."""
        wanted, chosen = Wanted.of(series, steps), spec.MOMENTS
        later = self._files.sources("bits")
        rows = self._resolved(self._files.sources("moments"), [*KEYS, "alias", *chosen], wanted)
        rows = self._known(self._ordered("moments", rows, history=False))
        return rows.select([*KEYS, *chosen]), _bits_of(rows, later, wanted)

    def extras(
        self,
        series: npt.ArrayLike | None = None,
        steps: Steps = None,
        names: Sequence[str] | None = None,
        *,
        history: bool = False,
    ) -> pa.Table:
        """Own statistics by series, rank, name and step: rank, session, step, series, name, value."""
        table = self._files.sources("extras").read(SCHEMA["extras"].names, Wanted.of(series, steps))
        if names is not None:
            table = table.filter(pc.is_in(table.column("name"), value_set=texts(names)))
        return self._known(self._ordered("extras", table, history=history), UNKNOWN_EXTRAS)

    @property
    def extra_names(self) -> list[str]:
        """The names of all own statistics, in alphabetical order."""
        return sorted(self._files.sources("extras").names)

    def values(self, series: npt.ArrayLike | None = None, steps: Steps = None, *, history: bool = False) -> pa.Table:
        """Kept values by series, step and rank: rank, session, step, series, samples, dtype, shape, content.

        `tensors.arrays_of` gives the arrays.
        """
        return self._kept("values", Wanted.of(series, steps), history=history)

    def sample_stats(
        self, series: npt.ArrayLike | None = None, steps: Steps = None, *, history: bool = False
    ) -> pa.Table:
        """Statistics of samples by series, step and rank: rank, session, step, series, samples, content.

        `tensors.numbers_of` gives the numbers.
        """
        return self._kept("sample_stats", Wanted.of(series, steps), history=history)

    def _kept(self, table: str, wanted: Wanted, *, history: bool) -> pa.Table:
        rows = self._files.sources(table).read(SCHEMA[table].names, wanted)
        return self._known(self._ordered(table, rows, history=history), UNKNOWN_VALUES)

    def _resolved(self, files: Sources, columns: list[str], wanted: Wanted) -> pa.Table:
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


def _bits_of(rows: pa.Table, bits: Sources, wanted: Wanted) -> pa.Table:
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
    known = ["scale", "merged", *spec.MOMENTS]
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
