"""SQL over a run, by DuckDB."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from layerscope.errors import SelectError
from layerscope.model import summary_spec
from layerscope.model.patterns import Pattern, Patterns, listed, matching
from layerscope.model.records import CallGraph, Flags, Floats, Ints
from layerscope.query import tables
from layerscope.query.named_tensors import NamedTensors
from layerscope.query.tables import Table
from layerscope.stats import derived
from layerscope.store.parts import RowGroupCache
from layerscope.store.reader import Reader
from layerscope.store.row_filter import Steps


def answer(query: str, views: Mapping[str, Callable[[], Table]]) -> pa.Table:
    """The result of the query; a view is only read when the query mentions its name.

    The connection sees the views and nothing else: no file, no network, no extension.
    """
    import duckdb  # 15 MB, for those who ask in SQL

    with duckdb.connect(":memory:") as connection:
        for name, view in views.items():
            if re.search(rf"\b{name}\b", query, re.IGNORECASE):
                connection.register(name, view().arrow())
        connection.execute("SET enable_external_access = false")
        connection.execute("SET python_enable_replacements = false")
        connection.execute("SET lock_configuration = true")
        try:
            answer = connection.sql(query)
            return pa.table({}) if answer is None else answer.to_arrow_table()
        except duckdb.Error as error:
            raise SelectError(f"The query failed: {error}. The views are: {', '.join(views)}.") from error


class RunInfo:
    """A run folder: `series()`, `steps()`, `metrics()`, `events()`, `overhead()`, `graph()`, `named()`."""

    def __init__(self, path: str | Path, *, lately: RowGroupCache | None = None) -> None:
        self._reader = Reader(Path(path), lately)
        self.path = self._reader.folder
        self.name = self.path.resolve().name
        self._named: tuple[object, NamedTensors] | None = None

    @property
    def reader(self) -> Reader:
        """The tables as they are stored, for what needs many rows at once."""
        return self._reader

    @property
    def revision(self) -> object:
        """A token that changes when rows were added."""
        return self._reader.revision()

    @property
    def problems(self) -> list[str]:
        """What could not be read, one sentence each; empty for a sound run."""
        return problems_of(self._reader)

    @property
    def last_step(self) -> int | None:
        """The last step of which anything was recorded, None if there is none; quick, however long the run is."""
        return self._reader.last_step

    def status(self) -> str:
        """`"running"`, `"finished"`, or `"stopped"` when the training ended without closing the run."""
        return self._reader.status()

    def graph(self) -> CallGraph | None:
        """The watched model's modules, the calls of them that were seen, and how data flowed between these."""
        return self._reader.graph()

    def _classes(self, patterns: Iterable[Pattern]) -> dict[str, str] | None:
        """The names of the modules' classes by path, if a pattern asks for them."""
        if not any(isinstance(pattern, type) for pattern in patterns):
            return None
        graph = self.graph()
        return {} if graph is None else {module.path: module.class_name for module in graph.modules}

    def series(self) -> Table:
        """Every history in the run, in the order of first appearance."""
        return Table(self._reader.series())

    def metrics(self, names: Patterns = "*") -> Table:
        """The training loop's own numbers: one row per step with its time and type, one column per metric."""
        long = self._reader.metrics()
        found = list(dict.fromkeys(long.column("name").to_pylist()))
        return Table(tables.wide(long, matching(names, found, "Metric")))

    def steps(self) -> Table:
        """The steps in which tensors were named: type, iterations, batch, samples, categories, losses, reason."""
        return self.named().steps()

    def events(self) -> Table:
        """Notes, warnings and drops, in the order in which they happened."""
        return Table(self._reader.events())

    def overhead(self) -> Table:
        """What recording took of each recorded step: seconds, their share of the step, tensors and bytes."""
        table = self._reader.overhead()
        whole, part = tables.floats(table, "step_s"), tables.floats(table, "recording_s")
        share = pa.array(np.divide(part, whole, where=whole > 0, out=np.zeros(len(whole))), mask=~(whole > 0))
        columns = ("step", "step_s", "recording_s", "summaries", "bytes", "rank")
        return Table(table.select(columns).add_column(3, "share", share))

    def named(self) -> NamedTensors:
        """The named tensors as they are by now: statistics, kept values and dependency graphs, quickly found."""
        revision = self.revision
        if self._named is None or self._named[0] != revision:
            self._named = (revision, NamedTensors(self._reader))
        return self._named[1]


def problems_of(reader: Reader) -> list[str]:
    """What a reader has left out so far, and which files are damaged or missing, one sentence each."""
    left_out = [f"{count} {what} were left out." for what, count in reader.problems.items() if count]
    return [*left_out, *reader.damage()]


@dataclass(frozen=True, slots=True)
class History:
    """Every summary of one series, one row per step, for charts."""

    steps: Ints
    moments: dict[str, Floats]
    bits: derived.EncodedRows
    own: Mapping[str, tuple[Ints, Floats]] = field(default_factory=dict)  # steps and values of custom statistics

    def stat(self, name: str) -> Floats:
        """One built-in statistic over the steps."""
        return derived.statistic(name, self.moments.__getitem__)

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return self.bits.nbytes + self.steps.nbytes + sum(moment.nbytes for moment in self.moments.values())

    def broken(self, name: str) -> Flags | None:
        """At which values of a statistic the tensor holds NaN or Inf; None for one of the user's own."""
        if name not in derived.STATS:
            return None
        return self.stat("nan") + self.stat("pos_inf") + self.stat("neg_inf") > 0

    def thinned(self, every: int) -> History:
        """The first summary of each `every` steps."""
        if every == 1:
            return self
        kept = tables.first_of_each(self.steps, every)
        own = {name: (steps, values, tables.first_of_each(steps, every)) for name, (steps, values) in self.own.items()}
        return History(
            self.steps[kept],
            {name: moment[kept] for name, moment in self.moments.items()},
            self.bits.taken(kept),
            {name: (steps[some], values[some]) for name, (steps, values, some) in own.items()},
        )

    def curve(self, name: str) -> tuple[Ints, Floats]:
        """Steps and values of one statistic; one of the user's own may be missing at some steps, or at all."""
        if name in derived.STATS:
            return self.steps, self.stat(name)
        return self.own.get(name, (self.steps[:0], np.zeros(0)))


class RunTables(RunInfo):
    """A recorded run, as tables: `stats()`, `histograms()`, `values()`, `metrics()`, `steps()`, `events()`, `sql()`.

    It may still be growing: every call reads what has been written by then.
    """

    @property
    def custom_statistics(self) -> tuple[str, ...]:
        """The names of the statistics that the user added."""
        return tuple(name for name in self._reader.extra_names if name.lower() not in derived.RESERVED)

    @property
    def statistics(self) -> tuple[str, ...]:
        """The names of all statistics of the run: the built-in ones, then the user's own."""
        return *derived.STATS, *self.custom_statistics

    def stats(
        self,
        sites: Patterns = "*",
        *,
        kind: Patterns = None,
        stat: Patterns = None,
        mode: Patterns = None,
        context: Patterns = None,
        steps: Steps = None,
    ) -> Table:
        """Statistics, one row per series and step that has any of them; the user's own are null where they are missing.

        `sites`, `kind`, `stat`, `mode` and `context` are names, globs, compiled regular expressions, or lists of them;
        a site may also be chosen by a module class, and `context=""` are forwards outside any context. `steps` is a
        range `(first, last)` or an array of steps.
        """
        names = matching(stat, self.statistics, "statistic")
        chosen = self._chosen(sites, kind, mode, context)
        numbers, own = tables.numbers(chosen), [name for name in names if name not in derived.STATS]
        needed = tables.columns_for([name for name in names if name in derived.STATS])
        custom = (
            self._reader.custom_statistics(numbers, steps, own) if own else None
        )  # first: they are written after moments
        read = self._reader.moments(numbers, steps, needed) if needed or not own else None
        if read is not None and tables.has_left_range(read):
            read = self._reader.moments(numbers, steps, [*dict.fromkeys((*needed, *summary_spec.SUMS[2:]))])
        if custom is not None:
            read = tables.with_extras(read, custom, own)
        read, identity, _ = tables.named(read, chosen)
        return Table(tables.assembled(read, identity, tables.statistics(read, names)))

    def histograms(
        self,
        sites: Patterns = "*",
        *,
        kind: Patterns = None,
        mode: Patterns = None,
        context: Patterns = None,
        steps: Steps = None,
        bins: int = 64,
    ) -> Table:
        """Histograms over each series' own range, one row per series and step: `edges` and `counts` are lists.

        All steps of a series share their `bins` edges, from its smallest to its largest value. `counts` add up to
        the finite elements; inside a bucket of the summary (12 % wide) they are interpolated.
        """
        if bins < 1:
            raise SelectError(f"bins={bins} leaves nothing to count into. Give at least 1.")
        read, identity, owner, bits = self._summaries(self._chosen(sites, kind, mode, context), steps)
        moments = tables.moments_of(read)
        edges, counts = tables.binned(owner, moments, bits.decoded(), bins)
        columns = {"edges": tables.lists(edges), "counts": tables.lists(counts)}
        columns |= {name: tables.column(name, moments[name]) for name in ("nan", "pos_inf", "neg_inf")}
        return Table(tables.assembled(read, identity, columns))

    def quantiles(
        self,
        sites: Patterns = "*",
        *,
        kind: Patterns = None,
        mode: Patterns = None,
        context: Patterns = None,
        steps: Steps = None,
        shares: Sequence[float] = (0.05, 0.25, 0.5, 0.75, 0.95),
    ) -> Table:
        """Values below which the given shares of a tensor's elements lie, one row per series and step: `q0.05` ….

        Read off the bit-counts: each is known to its bucket, which is at most 12 % wide, and interpolated inside it.
        """
        for share in shares:
            if not 0 <= share <= 1:
                raise SelectError(
                    f"{share} is no share of the elements. Give numbers between 0 and 1: 0.5 for the median."
                )
        read, identity, _, bits = self._summaries(self._chosen(sites, kind, mode, context), steps)
        found = derived.quantiles(bits.decoded(), tables.floats(read, "zeros"), np.array(shares))
        return Table(
            tables.assembled(
                read, identity, {f"q{share:g}": pa.array(q) for share, q in zip(shares, found.T, strict=True)}
            )
        )

    def exponents(
        self,
        sites: Patterns = "*",
        *,
        kind: Patterns = None,
        mode: Patterns = None,
        context: Patterns = None,
        steps: Steps = None,
    ) -> Table:
        """How many elements have which base-2 exponent, one row per series, step and exponent that occurs."""
        read, identity, _, bits = self._summaries(self._chosen(sites, kind, mode, context), steps)
        present, counts = derived.exponents(bits.decoded())
        row, column = np.nonzero(counts)
        columns = {"exponent": pa.array(present[column]), "count": pa.array(counts[row, column])}
        return Table(tables.assembled(read.take(pa.array(row)), identity.take(pa.array(row)), columns))

    def values(
        self,
        sites: Patterns = "*",
        *,
        kind: Patterns = None,
        mode: Patterns = None,
        context: Patterns = None,
        steps: Steps = None,
    ) -> Table:
        """Kept values, one row per series and step: `samples`, `shape` and `value`, all numbers of it in one list.

        The first axis of the shape is that of the samples, if there are any. A complex number is two, its real part
        and its imaginary one; the shape then ends with a 2.
        """
        chosen = self._chosen(sites, kind, mode, context)
        read, identity, _ = tables.named(self._reader.values(tables.numbers(chosen), steps), chosen)
        return Table(tables.assembled(read, identity, tables.kept(read)))

    def sql(self, query: str) -> Table:
        """The answer to SQL over `stats`, `exponents`, `series`, `steps`, `metrics`, `events` and `overhead`."""
        views = {name: getattr(self, name) for name in ("stats", "exponents", "series", "steps", "metrics", "events")}
        return Table(answer(query, {**views, "overhead": self.overhead}))

    def history(self, series: int, rank: int = 0) -> History:
        """Every summary of one series, given by its number in `series()`."""
        table = self._reader.series()
        chosen = table.filter(pa.array((tables.ints(table, "series") == series) & (tables.ints(table, "rank") == rank)))
        read, _, _, bits = self._summaries(chosen, None)
        own = self._reader.custom_statistics(tables.numbers(chosen))
        own = own.filter(pa.array(tables.ints(own, "rank") == rank))
        return History(tables.ints(read, "step"), tables.moments_of(read), bits, tables.curves_by_name(own))

    def _chosen(self, sites: Patterns, kind: Patterns, mode: Patterns, context: Patterns) -> pa.Table:
        table = self._reader.series()
        for column, patterns in (("site", sites), ("kind", kind), ("mode", mode), ("context", context)):
            present = table.column(column).to_pylist()
            wanted = listed(patterns, column)
            classes = self._classes(wanted) if column == "site" else None
            kept = set(matching(wanted, list(dict.fromkeys(present)), column, classes))
            table = table.filter(pa.array([name in kept for name in present], pa.bool_()))
        return table

    def _summaries(self, chosen: pa.Table, steps: Steps) -> tuple[pa.Table, pa.Table, Ints, derived.EncodedRows]:
        """Moments of the chosen series, what each row belongs to, which series that is, and its bit-counts."""
        moments, bits = self._reader.summaries(tables.numbers(chosen), steps)
        read, identity, owner = tables.named(moments, chosen)
        return read, identity, owner, tables.bits_of(read, bits)

    def __repr__(self) -> str:
        sites = len(set(self._reader.series().column("site").to_pylist()))
        return f"Run({str(self.path)!r}, {self.status()}, {sites} sites)"
