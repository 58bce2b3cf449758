"""Table: rows and named columns as any data frame; helpers for columns and steps."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from layerscope.errors import MissingError
from layerscope.model.records import Flags, Floats, Ints
from layerscope.stats import derived

if TYPE_CHECKING:
    import pandas
    import polars


SHORT_LIST = 6
LONGEST_WHOLE = 1e9  # a whole number above it is rarely one that was counted
WHOLE_SECONDS = 1e4  # above it a time given by its leading digits says nothing


def _imported(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingError(
            f"{name} is not installed. Run `pip install {name}`, or take the table by `.arrow()`."
        ) from error


class Table:
    """Rows and named columns: `.pandas()`, `.polars()` and `.arrow()` convert them."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def arrow(self) -> pa.Table:
        """The table as `pyarrow.Table`, without a copy."""
        return self._table

    def pandas(self) -> pandas.DataFrame:
        """The table as `pandas.DataFrame`."""
        _imported("pandas")
        return self._table.to_pandas()

    def polars(self) -> polars.DataFrame:
        """The table as `polars.DataFrame`."""
        frame: polars.DataFrame = _imported("polars").from_arrow(self._table)
        return frame

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self._table.column_names)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return (self._table.num_rows, self._table.num_columns)

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __getitem__(self, column: str) -> list[Any]:  # Any: a column holds whatever the query asked for
        return list(self._table.column(column).to_pylist())

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)

    def _shown(self, most: int = 12) -> list[list[str]]:
        head = self._table.slice(0, most).to_pydict()
        return [[cell_text(name, head[name][row]) for name in self.columns] for row in range(min(most, len(self)))]

    def __repr__(self) -> str:
        rows = [self.columns, *self._shown()]
        widths = [max(len(row[i]) for row in rows) for i in range(len(self.columns))]
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
        more = len(self) - len(rows) + 1
        return "\n".join([*lines, f"… {more} more rows"] if more > 0 else lines)

    def _repr_html_(self) -> str:
        from html import escape

        def line(cells: list[str], tag: str) -> str:
            return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

        body = "".join(line(row, "td") for row in self._shown())
        return f"<table>{line(self.columns, 'th')}{body}</table><p>{len(self)} rows</p>"


def cell_text(column: str, value: object, digits: int = 6) -> str:
    """One value of a column as people read it: whole numbers whole, times to the millisecond, short lists in full."""
    if isinstance(value, float):
        if column.endswith("_s") and abs(value) >= WHOLE_SECONDS:
            return f"{value:.3f}"
        return str(int(value)) if value.is_integer() and abs(value) < LONGEST_WHOLE else f"{value:.{digits}g}"
    if isinstance(value, list):
        return f"[{', '.join(map(str, value))}]" if len(value) <= SHORT_LIST else f"[{len(value)} values]"
    return "" if value is None else str(value)


#: Columns that identify a history, in the column order of every table.
IDENTITY = ("site", "port", "kind", "mode", "context", "dtype", "phase", "local", "rank")


def ints(table: pa.Table, column: str) -> Ints:
    """One integer column as numpy array."""
    array: Ints = table.column(column).to_numpy().astype(np.int64, copy=False)
    return array


def floats(table: pa.Table, column: str) -> Floats:
    """One column of numbers as numpy array."""
    array: Floats = table.column(column).to_numpy().astype(np.float64, copy=False)
    return array


def first_of_each(steps: Ints, every: int) -> Ints:
    """The rows of the first step in each `every` steps, of rows in ascending order of steps.

    >>> first_of_each(np.array([0, 5, 10, 17, 18, 30, 30]), 10).tolist()
    [0, 2, 5, 6]
    """
    block = steps // every
    first = np.flatnonzero(np.diff(block, prepend=block[:1] - 1))
    return np.flatnonzero(steps == np.repeat(steps[first], np.diff(np.append(first, len(steps)))))


def at_or_before(steps: Ints, step: int | None) -> int:
    """The row of the last step at or before `step`, else the first row; the last row for None, -1 without rows.

    >>> [at_or_before(np.array([5, 10, 15]), step) for step in (3, 5, 14, 99, None)]
    [0, 0, 1, 2, 2]
    """
    row = len(steps) - 1 if step is None else int(np.searchsorted(steps, step, side="right")) - 1
    return min(max(row, 0), len(steps) - 1)


def are(table: pa.Table, column: str, text: str) -> Flags:
    """Which rows have the text in a column."""
    return np.asarray(pc.equal(table.column(column), text).to_numpy(), np.bool_)


def columns_for(stats: list[str]) -> list[str]:
    """The moments that must be read to derive the statistics."""
    columns: dict[str, None] = {}

    def column(name: str) -> Floats:
        columns[name] = None
        return np.ones(1)

    for name in stats:
        derived.statistic(name, column)
    return list(columns)


def rows_of_each(table: pa.Table, *columns: str) -> dict[tuple[str, ...], Ints]:
    """The rows of each combination of texts in some columns, in the order of first appearance."""
    if not table.num_rows:
        return {}
    key = np.zeros(table.num_rows, np.int64)
    for name in columns:
        coded = pc.dictionary_encode(table.column(name).combine_chunks())
        key = key * len(coded.dictionary) + coded.indices.to_numpy()
    order = np.argsort(key, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(key[order])) + 1)
    groups.sort(key=lambda rows: int(rows[0]))
    firsts = table.select(columns).take(pa.array([rows[0] for rows in groups])).to_pydict()
    return dict(zip(zip(*firsts.values(), strict=True), groups, strict=True))


def curves(table: pa.Table, *columns: str) -> dict[tuple[str, ...], tuple[Ints, Floats]]:
    """Steps and values of each combination of texts in some columns; the last value of a step counts."""
    steps, values = ints(table, "step"), floats(table, "value")
    curves = {}
    for key, mine in rows_of_each(table, *columns).items():
        at = steps[mine]
        if not (at[1:] > at[:-1]).all():
            mine = mine[np.argsort(at, kind="stable")]
            at = steps[mine]
            mine = mine[np.append(at[1:] > at[:-1], np.True_)]
        curves[key] = (steps[mine], values[mine])
    return curves


def curves_by_name(table: pa.Table) -> dict[str, tuple[Ints, Floats]]:
    """Steps and values of each metric."""
    return {name: curve for (name,), curve in curves(table, "name").items()}


def wide(long: pa.Table, names: list[str]) -> pa.Table:
    """One row per step with time, type and one column per metric, from one row per step and metric; the last counts.

    A metric that a step did not have is null; one that was NaN is NaN.
    """
    steps, values, times = ints(long, "step"), floats(long, "value"), floats(long, "time_s")
    rows = rows_of_each(long, "name")
    of = {name: rows[name,] for name in names}
    kept = np.sort(np.concatenate([np.zeros(0, np.int64), *of.values()]))
    axis, row = np.unique(steps[kept], return_inverse=True)
    columns = {"step": pa.array(axis), "time_s": placed(len(axis), row, times[kept])}
    last = np.zeros(len(axis), np.int64)
    last[row] = kept
    columns["type"] = long.column("type").take(pa.array(last))
    columns |= {name: placed(len(axis), np.searchsorted(axis, steps[mine]), values[mine]) for name, mine in of.items()}
    return pa.table(columns)


def placed(rows: int, at: Ints, values: Floats) -> pa.Array:
    """A column with the values at the given rows, the last of several, and null elsewhere."""
    column, missing = np.zeros(rows), np.ones(rows, np.bool_)
    column[at], missing[at] = values, False
    return pa.array(column, mask=missing)
