"""A recorded run, finished or still growing, as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from layerscope.errors import SelectError
from layerscope.query import rows, sql
from layerscope.query.opened import OpenedRun
from layerscope.query.table import Table
from layerscope.records import Flags, Floats, Ints
from layerscope.select import Patterns, listed, matching
from layerscope.stats import buckets, derive, spec
from layerscope.store.wanted import Steps


@dataclass(frozen=True, slots=True)
class History:
    """Every summary of one series, one row per step, for charts."""

    steps: Ints
    moments: dict[str, Floats]
    bits: buckets.EncodedRows
    own: Mapping[str, tuple[Ints, Floats]] = field(default_factory=dict)  # steps and values of own statistics

    def stat(self, name: str) -> Floats:
        """One built-in statistic over the steps."""
        return derive.statistic(name, self.moments.__getitem__)

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return self.bits.nbytes + self.steps.nbytes + sum(moment.nbytes for moment in self.moments.values())

    def broken(self, name: str) -> Flags | None:
        """At which values of a statistic the tensor holds NaN or Inf; None for one of the user's own."""
        if name not in derive.STATS:
            return None
        return self.stat("nan") + self.stat("pos_inf") + self.stat("neg_inf") > 0

    def thinned(self, every: int) -> History:
        """The first summary of each `every` steps."""
        if every == 1:
            return self
        kept = rows.first_of_each(self.steps, every)
        own = {name: (steps, values, rows.first_of_each(steps, every)) for name, (steps, values) in self.own.items()}
        return History(
            self.steps[kept],
            {name: moment[kept] for name, moment in self.moments.items()},
            self.bits.taken(kept),
            {name: (steps[some], values[some]) for name, (steps, values, some) in own.items()},
        )

    def curve(self, name: str) -> tuple[Ints, Floats]:
        """Steps and values of one statistic; one of the user's own may be missing at some steps, or at all."""
        if name in derive.STATS:
            return self.steps, self.stat(name)
        return self.own.get(name, (self.steps[:0], np.zeros(0)))


class Run(OpenedRun):
    """A recorded run, as tables: `stats()`, `histograms()`, `values()`, `metrics()`, `steps()`, `events()`, `sql()`.

    It may still be growing: every call reads what has been written by then.
    """

    @property
    def own_statistics(self) -> tuple[str, ...]:
        """The names of the statistics that the user added."""
        return tuple(name for name in self._reader.extra_names if name.lower() not in derive.RESERVED)

    @property
    def statistics(self) -> tuple[str, ...]:
        """The names of all statistics of the run: the built-in ones, then the user's own."""
        return *derive.STATS, *self.own_statistics

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
        numbers, own = rows.numbers(chosen), [name for name in names if name not in derive.STATS]
        needed = rows.columns_for([name for name in names if name in derive.STATS])
        extras = self._reader.extras(numbers, steps, own) if own else None  # first: they are written after moments
        read = self._reader.moments(numbers, steps, needed) if needed or not own else None
        if read is not None and rows.has_left_range(read):
            read = self._reader.moments(numbers, steps, [*dict.fromkeys((*needed, *spec.SUMS[2:]))])
        if extras is not None:
            read = rows.with_extras(read, extras, own)
        read, identity, _ = rows.named(read, chosen)
        return Table(rows.assembled(read, identity, rows.statistics(read, names)))

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
        moments = rows.moments_of(read)
        edges, counts = rows.binned(owner, moments, bits.decoded(), bins)
        columns = {"edges": rows.lists(edges), "counts": rows.lists(counts)}
        columns |= {name: rows.column(name, moments[name]) for name in ("nan", "pos_inf", "neg_inf")}
        return Table(rows.assembled(read, identity, columns))

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
        found = buckets.quantiles(bits.decoded(), rows.floats(read, "zeros"), np.array(shares))
        return Table(
            rows.assembled(
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
        present, counts = buckets.exponents(bits.decoded())
        row, column = np.nonzero(counts)
        columns = {"exponent": pa.array(present[column]), "count": pa.array(counts[row, column])}
        return Table(rows.assembled(read.take(pa.array(row)), identity.take(pa.array(row)), columns))

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
        read, identity, _ = rows.named(self._reader.values(rows.numbers(chosen), steps), chosen)
        return Table(rows.assembled(read, identity, rows.kept(read)))

    def sql(self, query: str) -> Table:
        """The answer to an SQL query over `stats`, `exponents`, `series`, `steps`, `metrics`, `events` and `costs`."""
        views = {name: getattr(self, name) for name in ("stats", "exponents", "series", "steps", "metrics", "events")}
        return Table(sql.answer(query, {**views, "costs": self.cost}))

    def history(self, series: int, rank: int = 0) -> History:
        """Every summary of one series, given by its number in `series()`."""
        table = self._reader.series()
        chosen = table.filter(pa.array((rows.ints(table, "series") == series) & (rows.ints(table, "rank") == rank)))
        read, _, _, bits = self._summaries(chosen, None)
        own = self._reader.extras(rows.numbers(chosen))
        own = own.filter(pa.array(rows.ints(own, "rank") == rank))
        return History(rows.ints(read, "step"), rows.moments_of(read), bits, rows.curves_by_name(own))

    def _chosen(self, sites: Patterns, kind: Patterns, mode: Patterns, context: Patterns) -> pa.Table:
        table = self._reader.series()
        for column, patterns in (("site", sites), ("kind", kind), ("mode", mode), ("context", context)):
            present = table.column(column).to_pylist()
            wanted = listed(patterns, column)
            classes = self._classes(wanted) if column == "site" else None
            kept = set(matching(wanted, list(dict.fromkeys(present)), column, classes))
            table = table.filter(pa.array([name in kept for name in present], pa.bool_()))
        return table

    def _summaries(self, chosen: pa.Table, steps: Steps) -> tuple[pa.Table, pa.Table, Ints, buckets.EncodedRows]:
        """Moments of the chosen series, what each row belongs to, which series that is, and its bit-counts."""
        moments, bits = self._reader.summaries(rows.numbers(chosen), steps)
        read, identity, owner = rows.named(moments, chosen)
        return read, identity, owner, rows.bits_of(read, bits)

    def __repr__(self) -> str:
        sites = len(set(self._reader.series().column("site").to_pylist()))
        return f"Run({str(self.path)!r}, {self.status()}, {sites} sites)"
