"""Curves of a training that were kept elsewhere, put into its run as metrics."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from layerscope.diagnose.findings import findings_table
from layerscope.diagnose.rules import check
from layerscope.errors import SelectError, StoreError
from layerscope.model.patterns import Patterns, listed, only
from layerscope.model.records import STEP_TYPE, Metric
from layerscope.query.run_tables import RunTables as RunTables
from layerscope.query.tables import Table
from layerscope.store.folder import create
from layerscope.store.reader import Reader
from layerscope.store.traces import pass_folders, read_pass
from layerscope.store.writer import FolderSink
from layerscope.traces import Trace, stored_trace


def add_curves(folder: Path, curves: object, step: str) -> list[str]:
    """Add the columns of a table as metrics, at the steps that one of its columns gives; their names.

    A value that a metric of the same name has at the same step counts no more, and stays in the history.
    """
    table = _table(_with_index(curves, step))
    if step not in table.column_names:
        raise SelectError(
            f"The curves have no column {step!r} to tell the steps, only {', '.join(table.column_names) or 'none'}. "
            'Name it with step="…"; a pandas index needs that name.'
        )
    names = [name for name in table.column_names if name != step]
    if not names:
        raise SelectError(f"The curves have no column beside {step!r}: there is nothing to add.")
    steps = _steps(table, step)
    _write(folder, {name: (steps, _numbers(table, name)) for name in names})
    return names


def _write(folder: Path, curves: dict[str, tuple[list[int], list[float | None]]]) -> None:
    """Append the curves as a session of its own. Null is no value."""
    reader = Reader(folder)
    stopped = reader.status() == "stopped"
    known = reader.metrics().select(["step", "time_s", "type"]).to_pylist()
    told = {row["step"]: (row["time_s"], row["type"]) for row in known}
    run = create(folder, resume=True)
    sink = FolderSink(run, compact=False)
    sink.put(
        *(
            Metric(step, name, value, *told.get(step, (math.nan, STEP_TYPE)))
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
        raise SelectError(
            f"The curves are no table: {error}. Give a pandas or polars data frame, an Arrow table, or a dict of "
            "columns of one length."
        ) from None


def _steps(table: pa.Table, name: str) -> list[int]:
    try:
        steps = table.column(name).combine_chunks().cast(pa.int64())
    except pa.ArrowException as error:
        raise SelectError(f"Column {name!r} does not hold whole steps: {error}. Round it, or name another.") from None
    if steps.null_count:
        raise SelectError(f"Column {name!r} lacks {steps.null_count} steps. Leave these rows out, or fill them in.")
    if len(steps) and (first := pc.min(steps).as_py()) < 0:
        raise SelectError(f"Column {name!r} has step {first}; steps count from 0.")
    return list(steps.to_pylist())


def _numbers(table: pa.Table, name: str) -> list[float | None]:
    column = table.column(name).combine_chunks()
    if not (pa.types.is_floating(column.type) or pa.types.is_integer(column.type)):
        raise SelectError(f"Column {name!r} holds {column.type}, not numbers. Leave it out: a metric is a number.")
    return list(column.cast(pa.float64(), safe=False).to_pylist())


class Run(RunTables):
    """A recorded run: the tables of `query.run.Run`, what is wrong with it by `findings()`, and its `traces()`.

    It may still be growing: every call reads what has been written by then.
    """

    def findings(self) -> Table:
        """What is wrong with the training as far as it is recorded: causes by step, each before what came of it."""
        return Table(findings_table(check(self.path)))

    def traces(self) -> list[Trace]:
        """The traces saved in the run, oldest first; their values are numpy arrays."""
        return [stored_trace(read_pass(folder)) for folder in pass_folders(self.path)]

    def add_curves(self, curves: object, step: str = "step") -> list[str]:
        """Add curves that were kept elsewhere, such as the loss, as metrics of the run; their names.

        A pandas or polars data frame, an Arrow table or a dict of columns, one of them with the steps. Where a value
        is missing, the curve has none; pandas cannot tell NaN from that.
        """
        return add_curves(self.path, curves, step)

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
        """The run to look at: in a notebook a widget, as last line of a cell; elsewhere it opens in the browser.

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
            "site": only(site, known["site"].unique().to_pylist(), "site", self._classes(site or ())),
            "kind": only(kind, known["kind"].unique().to_pylist(), "kind"),
            "stat": only(stat, self.statistics, "statistic"),
        }
        start = start_at(
            view, {**words, "axis": axis, "format": format}, {"step": step, "every": None if every == 1 else every}
        )
        return show(self.path, start)
