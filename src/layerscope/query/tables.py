"""Tables of a run: from the store's rows to named, aligned columns, as any data frame."""

from __future__ import annotations

import importlib
import itertools
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from layerscope.errors import MissingError
from layerscope.model import summary_spec
from layerscope.model.records import Flags, Floats, Ids, Ints
from layerscope.stats import derived
from layerscope.store.reader import KEYS, encoded
from layerscope.store.record_batches import arrays_of
from layerscope.store.row_filter import key_columns, places

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
    """Rows and named columns: `.pandas()`, `.polars()` or `.arrow()` takes them on."""

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


#: What tells one history from another, in the order of the columns of every table.
IDENTITY = ("site", "port", "kind", "mode", "context", "dtype", "phase", "local", "rank")


def numbers(series: pa.Table) -> Ids:
    """Distinct numbers of the series in a table of series."""
    return np.unique(ints(series, "series")).astype(np.int32)


def ints(table: pa.Table, column: str) -> Ints:
    """One integer column as numpy array."""
    array: Ints = table.column(column).to_numpy().astype(np.int64)
    return array


def floats(table: pa.Table, column: str) -> Floats:
    """One column of numbers as numpy array."""
    array: Floats = table.column(column).to_numpy().astype(np.float64)
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
    asked: dict[str, None] = {}

    def column(name: str) -> Floats:
        asked[name] = None
        return np.ones(1)

    for name in stats:
        derived.statistic(name, column)
    return list(asked)


def has_left_range(rows: pa.Table) -> bool:
    """Whether a sum in the rows has left float64, so that further columns tell what it stands for."""
    return any(not np.isfinite(floats(rows, name)).all() for name in summary_spec.SUMS[:3] if name in rows.column_names)


def moments_of(rows: pa.Table) -> dict[str, Floats]:
    """The moment columns of rows as float64 arrays."""
    return {name: floats(rows, name) for name in rows.column_names if name in summary_spec.COLUMN}


def named(rows: pa.Table, series: pa.Table) -> tuple[pa.Table, pa.Table, Ints]:
    """Rows that belong to the given series, in the series' order and by step; what each belongs to; which series."""
    fields = ("rank", "series")
    at = places(key_columns(rows, fields), key_columns(series, fields))
    order = np.lexsort((ints(rows, "step"), at))
    order = order[at[order] >= 0]
    return rows.take(pa.array(order)), series.take(pa.array(at[order])), at[order]


def with_extras(moments: pa.Table | None, custom: pa.Table, names: list[str]) -> pa.Table:
    """The rows of moments with custom statistics as further columns, null where a row has none.

    A row that has custom statistics but no moments, because they were dropped or not asked for, is there too.
    """
    fields = ("rank", "series", "step")
    theirs, values = key_columns(custom, fields), floats(custom, "value")
    table = custom.select(KEYS).slice(0, 0) if moments is None else moments
    at = places(theirs, key_columns(table, fields))
    if (at < 0).any():
        last = places(theirs, theirs) == np.arange(len(at))  # several names share a row
        alone = custom.select(KEYS).filter(pa.array((at < 0) & last))
        table = pa.concat_tables([table, alone], promote_options="default")
        at = places(theirs, key_columns(table, fields))
    rows = rows_of_each(custom, "name")
    none = np.zeros(0, np.int64)
    found = {name: rows.get((name,), none) for name in names}
    added = {name: _placed(len(table), at[mine], values[mine]) for name, mine in found.items()}
    return pa.table([*table.columns, *added.values()], names=[*table.column_names, *added])


def rows_of_each(table: pa.Table, *columns: str) -> dict[tuple[str, ...], Ints]:
    """The rows of each combination of texts in some columns, in the order of first appearance."""
    texts = list(zip(*(table.column(name).to_pylist() for name in columns), strict=True))
    found: dict[tuple[str, ...], list[int]] = {}
    for row, key in enumerate(texts):
        found.setdefault(key, []).append(row)
    return {key: np.array(rows, np.int64) for key, rows in found.items()}


def curves(table: pa.Table, *columns: str) -> dict[tuple[str, ...], tuple[Ints, Floats]]:
    """Steps and values of each combination of texts in some columns; the last value of a step counts."""
    steps, values = ints(table, "step"), floats(table, "value")
    found = {}
    for key, mine in rows_of_each(table, *columns).items():
        at = steps[mine]
        if not (at[1:] > at[:-1]).all():
            mine = mine[np.argsort(at, kind="stable")]
            at = steps[mine]
            mine = mine[np.append(at[1:] > at[:-1], np.True_)]
        found[key] = (steps[mine], values[mine])
    return found


def curves_by_name(table: pa.Table) -> dict[str, tuple[Ints, Floats]]:
    """Steps and values of each metric, or of each custom statistic of one series."""
    return {name: curve for (name,), curve in curves(table, "name").items()}


def bits_of(rows: pa.Table, bits: pa.Table) -> derived.EncodedRows:
    """The bit-counts of each row; of a row whose bit-counts were dropped, none."""
    fields = ("rank", "series", "session", "step")
    at = places(key_columns(rows, fields), key_columns(bits, fields))
    present = at >= 0
    found = at[present]
    in_place = len(found) == bits.num_rows and bool(np.all(found == np.arange(len(found))))
    m, offsets, content = encoded(bits if in_place else bits.take(pa.array(found)))
    ends = np.append(offsets[0], offsets[np.cumsum(present)])
    whole = np.full(len(at), summary_spec.COARSE_M, np.uint8)
    whole[present] = m
    moments = moments_of(rows.select(["min", "max"]))
    return derived.EncodedRows(whole, ends, content, moments["min"], moments["max"])


def assembled(rows: pa.Table, identity: pa.Table, columns: dict[str, pa.Array]) -> pa.Table:
    """The table a user sees: step, what the row is about, and the columns asked for."""
    described = {name: identity.column(name) for name in IDENTITY}
    return pa.table({"step": rows.column("step"), **described, **columns})


def kept(values: pa.Table) -> dict[str, pa.Array]:
    """Samples, shape and numbers of rows of kept values."""
    arrays = [a.view(a.real.dtype).reshape(*a.shape, 2) if a.dtype.kind == "c" else a for a in arrays_of(values)]
    offsets = np.cumsum([0, *(array.size for array in arrays)])
    flat = np.concatenate([np.zeros(0), *(array.ravel().astype(np.float64) for array in arrays)])
    return {
        "samples": values.column("samples"),
        "shape": pa.array([array.shape for array in arrays], pa.list_(pa.int64())),
        "value": pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(flat)),
    }


def lists(matrix: Floats) -> pa.Array:
    """A list column whose rows are the rows of a matrix."""
    offsets = np.arange(0, matrix.size + 1, matrix.shape[1], dtype=np.int64)
    return pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(matrix.ravel()))


def column(name: str, values: Floats, lacking: Flags | None = None) -> pa.Array:
    """One statistic as a column, null where it is lacking; counts are whole numbers."""
    known = values if lacking is None else np.where(lacking, 0.0, values)
    return pa.array(known.astype(np.int64) if name in summary_spec.COUNTS else known, mask=lacking)


def statistics(rows: pa.Table, names: list[str]) -> dict[str, pa.Array]:
    """Each statistic of the rows: derived from their moments, or the user's own and so a column already."""
    moments = moments_of(rows)
    read = [rows.column(name) for name in moments]
    lacking = np.asarray(read[0].is_null().to_numpy(), np.bool_) if read and read[0].null_count else None
    return {
        name: column(name, derived.statistic(name, moments.__getitem__), lacking)
        if name in derived.STATS
        else rows.column(name)
        for name in names
    }


def binned(owner: Ints, moments: dict[str, Floats], bits: derived.BitRows, bins: int) -> tuple[Floats, Floats]:
    """Edges common to the rows of one owner, and each row's counts between them; zeros are counted where zero is.

    Rows of one owner stand together, as `named` leaves them.
    """
    edges, counts = np.zeros((bits.rows, bins + 1)), np.zeros((bits.rows, bins))
    ends = [*np.flatnonzero(np.diff(owner, prepend=-1)).tolist(), bits.rows]
    for first, last in itertools.pairwise(ends):
        chosen = slice(first, last)
        edges[chosen] = axis = _axis(moments["min"][chosen], moments["max"][chosen], bins)
        counts[chosen] = derived.histogram(_part(bits, first, last), axis)
        zero_bin = min(int(np.searchsorted(axis, 0.0, side="right")) - 1, bins - 1)
        if zero_bin >= 0:
            counts[chosen, zero_bin] += moments["zeros"][chosen]
    return edges, counts


def _part(bits: derived.BitRows, first: int, last: int) -> derived.BitRows:
    """The buckets of rows first to last − 1, renumbered from 0."""
    start, stop = np.searchsorted(bits.row, (first, last))
    cut = slice(start, stop)
    return derived.BitRows(
        last - first, bits.row[cut] - first, bits.low[cut], bits.high[cut], bits.counts[cut], bits.exponent[cut]
    )


def _axis(smallest: Floats, largest: Floats, bins: int) -> Floats:
    if np.isnan(smallest).all():
        return np.linspace(0.0, 1.0, bins + 1)
    low, high = float(np.nanmin(smallest)), float(np.nanmax(largest))
    if low == high:  # all elements are equal: give the one bin that holds them a width
        high = low + max(abs(low), 1.0) * 1e-3
    return np.linspace(low, high, bins + 1)


def wide(long: pa.Table, names: list[str]) -> pa.Table:
    """One row per step with time, type and one column per metric, from one row per step and metric; the last counts.

    A metric that a step did not have is null; one that was NaN is NaN.
    """
    steps, values, times = ints(long, "step"), floats(long, "value"), floats(long, "time_s")
    rows = rows_of_each(long, "name")
    of = {name: rows[name,] for name in names}
    kept = np.sort(np.concatenate([np.zeros(0, np.int64), *of.values()]))
    axis = np.unique(steps[kept])
    columns = {"step": pa.array(axis), "time_s": _pivoted(axis, steps[kept], times[kept])}
    last = np.zeros(len(axis), np.int64)
    last[np.searchsorted(axis, steps[kept])] = kept
    columns["type"] = long.column("type").take(pa.array(last))
    columns |= {name: _pivoted(axis, steps[mine], values[mine]) for name, mine in of.items()}
    return pa.table(columns)


def _pivoted(axis: Ints, steps: Ints, values: Floats) -> pa.Array:
    return _placed(len(axis), np.searchsorted(axis, steps), values)


def _placed(rows: int, at: Ints, values: Floats) -> pa.Array:
    """A column with the values at their places, the last of several, and null elsewhere."""
    column, missing = np.zeros(rows), np.ones(rows, np.bool_)
    column[at], missing[at] = values, False
    return pa.array(column, mask=missing)
