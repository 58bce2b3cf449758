"""Run: one recorded run, read back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from layerscope.diagnose.findings import findings_table
from layerscope.diagnose.rules import check
from layerscope.errors import ArgumentError, SelectError, StoreError
from layerscope.model.lru_cache import LRUCache
from layerscope.model.patterns import Patterns, listed, matching, only
from layerscope.model.records import STEP_TYPE, CallGraph, Metric
from layerscope.query import run_tables
from layerscope.query.history import History
from layerscope.query.named_tensors import NamedTensors
from layerscope.query.run_tables import module_classes
from layerscope.query.tables import Table
from layerscope.store.folder import create
from layerscope.store.reader import Reader, Steps
from layerscope.store.traces import read_trace, trace_folders
from layerscope.store.writer import FolderSink
from layerscope.traces import Trace, stored_trace


class Run:
    """A recorded run: its tables, findings, traces and named tensors.

    It may still be growing: every call reads what has been written by then.
    """

    def __init__(self, path: str | Path) -> None:
        self._reader = Reader(Path(path))
        self.path = self._reader.folder
        self.name = self.path.resolve().name
        self._named: LRUCache[str, NamedTensors] = LRUCache(1)

    def __repr__(self) -> str:
        sites = len(set(self._reader.series().column("site").to_pylist()))
        return f"Run({str(self.path)!r}, {self.status()}, {sites} sites)"

    @property
    def reader(self) -> Reader:
        """The reader of the stored tables, to read many rows at once."""
        return self._reader

    @property
    def revision(self) -> str:
        """A token that changes when rows were added."""
        return self._reader.revision()

    @property
    def problems(self) -> list[str]:
        """What could not be read, one sentence each; empty for a sound run."""
        return self._reader.problems()

    @property
    def last_step(self) -> int | None:
        """The last step of which anything was recorded, None if there is none; cheap, however long the run is."""
        return self._reader.last_step

    @property
    def custom_statistics(self) -> tuple[str, ...]:
        """The names of the statistics that the user added."""
        return run_tables.custom_statistics(self._reader)

    @property
    def statistics(self) -> tuple[str, ...]:
        """The names of all statistics of the run: the built-in ones, then the custom ones."""
        return run_tables.statistics(self._reader)

    def status(self) -> str:
        """`"running"`, `"finished"`, or `"stopped"` when the training ended without closing the run."""
        return self._reader.status()

    def graph(self) -> CallGraph | None:
        """The watched model's modules, the calls of them that were seen, and how data flowed between these."""
        return self._reader.graph()

    def series(self) -> Table:
        """Every history in the run, in the order of first appearance."""
        return Table(self._reader.series())

    def metrics(self, names: Patterns = "*") -> Table:
        """The training loop's own numbers: one row per step with its time and type, one column per metric."""
        return run_tables.metrics(self._reader, names)

    def steps(self) -> Table:
        """The steps in which tensors were named: type, iterations, batch, samples, categories, losses, reason."""
        return self.named().steps()

    def events(self) -> Table:
        """Notes, warnings and drops, in the order in which they happened."""
        return Table(self._reader.events())

    def overhead(self) -> Table:
        """What recording took of each recorded step: seconds, their share of the step, tensors and bytes."""
        return run_tables.overhead(self._reader)

    def named(self) -> NamedTensors:
        """The named tensors as they are by now: statistics, kept values and dependency graphs."""
        return self._named.get(self.revision, lambda: NamedTensors(self._reader))

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
        """Statistics, one row per series and step that has any of them; null where one is missing.

        `sites`, `kind`, `stat`, `mode` and `context` are names, globs, compiled regular expressions, or lists of them;
        a site may also be chosen by a module class, and `context=""` are forwards outside any context. `steps` is a
        range `(first, last)` or an array of steps.
        """
        names = matching(stat, self.statistics, "statistic")
        return run_tables.stats(self._reader, self._select(sites, kind, mode, context), names, steps)

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
        return run_tables.histograms(self._reader, self._select(sites, kind, mode, context), steps, bins)

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
        return run_tables.quantiles(self._reader, self._select(sites, kind, mode, context), steps, shares)

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
        return run_tables.exponents(self._reader, self._select(sites, kind, mode, context), steps)

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
        return run_tables.kept_values(self._reader, self._select(sites, kind, mode, context), steps)

    def _select(self, sites: Patterns, kind: Patterns, mode: Patterns, context: Patterns) -> pa.Table:
        return run_tables.select_series(self._reader, sites, kind, mode, context)

    def sql(self, query: str) -> Table:
        """The answer to SQL over `stats`, `exponents`, `series`, `steps`, `metrics`, `events` and `overhead`."""
        names = ("stats", "exponents", "series", "steps", "metrics", "events", "overhead")
        return run_tables.sql(query, {name: getattr(self, name) for name in names})

    def history(self, series: int, rank: int = 0) -> History:
        """Every summary of one series, given by its number in `series()`."""
        return run_tables.series_history(self._reader, series, rank)

    def findings(self) -> Table:
        """Problems of the training so far: causes by step, each followed by its consequences."""
        return Table(findings_table(check(self.path)))

    def traces(self) -> list[Trace]:
        """The traces saved in the run, oldest first; their values are numpy arrays."""
        return [stored_trace(read_trace(folder)) for folder in trace_folders(self.path)]

    def add_curves(self, curves: object, step: str = "step") -> list[str]:
        """Add curves that were kept elsewhere, such as the loss, as metrics of the run; their names.

        A pandas or polars data frame, an Arrow table or a dict of columns, one of them with the steps. Where a value
        is missing, the curve has a gap; pandas does not distinguish NaN from a missing value.
        """
        return _add_curves(self.path, curves, step)

    def show(  # noqa: PLR0913  all that the page can begin with
        self,
        view: str = "charts",
        *,
        site: Patterns = None,
        kind: Patterns = None,
        stat: Patterns = None,
        step: int | None = None,
        every: int = 1,
        axis: str | None = None,
        format: str | None = None,
    ) -> object:
        """Show the run: as a widget in a notebook (last line of a cell), else in the browser.

        It begins with a view ("charts", "histogram" of one step, "graph", "heatmap", "findings", "traces", "compare",
        "tensors"), and there with a site, a kind of its tensors, a statistic and a step; of `every` steps one is shown.
        Site, kind and statistic are given as to `stats()`, by anything that matches one of them.
        Histograms have an `axis`, "linear", "symlog" or "exponent", and on the last one the limits of a number
        `format` such as "float8_e4m3fn".
        """
        from layerscope.widgets import show, start_at

        known = self.series().arrow()
        site = None if site is None else listed(site)
        words = {
            "site": only(site, known["site"].unique().to_pylist(), "site", module_classes(self._reader, site or ())),
            "kind": only(kind, known["kind"].unique().to_pylist(), "kind"),
            "stat": only(stat, self.statistics, "statistic"),
        }
        start = start_at(
            view, {**words, "axis": axis, "format": format}, {"step": step, "every": None if every == 1 else every}
        )
        return show(self.path, start)


def _add_curves(folder: Path, curves: object, step: str) -> list[str]:
    """Add the columns of a table as metrics, at the steps that one of its columns gives; their names.

    A value that a metric of the same name has at the same step counts no more, and stays in the history.
    """
    table = _table(_with_index(curves, step))
    if step not in table.column_names:
        raise SelectError(
            f"The curves have no column {step!r} with the steps, only {', '.join(table.column_names) or 'none'}. "
            'Name it with step="…"; a pandas index needs that name.'
        )
    names = [name for name in table.column_names if name != step]
    if not names:
        raise ArgumentError(f"The curves have no column beside {step!r}: there is nothing to add.")
    steps = _steps(table, step)
    _write(folder, {name: (steps, _numbers(table, name)) for name in names})
    return names


def _write(folder: Path, curves: dict[str, tuple[list[int], list[float | None]]]) -> None:
    """Append the curves as a session of its own. Null is no value."""
    reader = Reader(folder)
    stopped = reader.status() == "stopped"
    known = reader.metrics().select(["step", "time_s", "type"]).to_pylist()
    times_and_types = {row["step"]: (row["time_s"], row["type"]) for row in known}
    run = create(folder, resume=True)
    sink = FolderSink(run, compact=False)
    sink.put(
        *(
            Metric(step, name, value, *times_and_types.get(step, (math.nan, STEP_TYPE)))
            for name, (steps, column) in curves.items()
            for step, value in zip(steps, column, strict=True)
            if value is not None
        )
    )
    written = sink.flush()
    sink.close()
    if not written:
        raise StoreError(
            f"{folder} does not take the curves: its disk is full or hangs. Make room, and add them again."
        )
    if stopped:  # and so it stays: that something was added does not end its training properly
        run.mark()


def _with_index(curves: Any, name: str) -> object:  # Any: of a library that need not be there
    """A pandas frame whose index is the column of that name has it as a column."""
    return curves.reset_index() if getattr(getattr(curves, "index", None), "name", None) == name else curves


def _table(curves: object) -> pa.Table:
    try:
        return pa.table(curves)
    except (TypeError, ValueError, pa.ArrowException) as error:
        raise ArgumentError(
            f"The curves are no table: {error}. Give a pandas or polars data frame, an Arrow table, or a dict of "
            "columns of one length."
        ) from None


def _steps(table: pa.Table, name: str) -> list[int]:
    try:
        steps = table.column(name).combine_chunks().cast(pa.int64())
    except pa.ArrowException as error:
        raise ArgumentError(f"Column {name!r} does not hold whole steps: {error}. Round it, or name another.") from None
    if steps.null_count:
        raise ArgumentError(f"Column {name!r} lacks {steps.null_count} steps. Leave these rows out, or fill them in.")
    if len(steps) and (first := pc.min(steps).as_py()) < 0:
        raise ArgumentError(f"Column {name!r} has step {first}; steps count from 0.")
    return list(steps.to_pylist())


def _numbers(table: pa.Table, name: str) -> list[float | None]:
    column = table.column(name).combine_chunks()
    if not (pa.types.is_floating(column.type) or pa.types.is_integer(column.type)):
        raise ArgumentError(f"Column {name!r} holds {column.type}, not numbers. Leave it out: a metric is a number.")
    return list(column.cast(pa.float64(), safe=False).to_pylist())
