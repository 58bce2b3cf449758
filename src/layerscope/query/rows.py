"""Between the store's rows and the tables users see: naming, aligning, pivoting."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pyarrow as pa

from layerscope.records import Floats, Ids, Ints
from layerscope.stats import derive, spec
from layerscope.store.order import key_columns, places
from layerscope.store.reader import encoded

#: What tells one history from another, in the order of the columns of every table.
IDENTITY = ("site", "port", "kind", "mode", "dtype", "reading", "rank")


def numbers(series: pa.Table) -> Ids:
    """Distinct numbers of the series in a table of series."""
    return np.unique(ints(series, "series")).astype(np.int32)


def ints(table: pa.Table, column: str) -> Ints:
    """One integer column as numpy array."""
    array: Ints = table.column(column).to_numpy().astype(np.int64)
    return array


def columns_for(stats: list[str]) -> list[str]:
    """The moments that must be read to derive the statistics."""
    asked: dict[str, None] = {}

    def column(name: str) -> Floats:
        asked[name] = None
        return np.ones(1)

    for name in stats:
        derive.statistic(name, column)
    return list(asked)


def moments_of(rows: pa.Table) -> dict[str, Floats]:
    """The moment columns of rows as float64 arrays."""
    return {name: rows.column(name).to_numpy().astype(np.float64) for name in rows.column_names if name in spec.COLUMN}


def named(rows: pa.Table, series: pa.Table) -> tuple[pa.Table, pa.Table, Ints]:
    """Rows that belong to the given series, in the series' order and by step; what each belongs to; which series."""
    fields = ("rank", "series")
    at = places(key_columns(rows, fields), key_columns(series, fields))
    order = np.lexsort((ints(rows, "step"), at))
    order = order[at[order] >= 0]
    return rows.take(pa.array(order)), series.take(pa.array(at[order])), at[order]


def decoded(rows: pa.Table, bits: pa.Table) -> derive.BitRows:
    """The bit-counts of each row, clipped to its extremes; of a row whose bit-counts were dropped, none."""
    fields = ("rank", "series", "session", "step")
    at = places(key_columns(rows, fields), key_columns(bits, fields))
    present = np.flatnonzero(at >= 0)
    found = derive.decode_bits(*encoded(bits.take(pa.array(at[present]))))
    moments = moments_of(rows)
    whole = dataclasses.replace(found, rows=len(at), row=present[found.row])
    return derive.clip(whole, moments["min"], moments["max"])


def assembled(rows: pa.Table, identity: pa.Table, columns: dict[str, pa.Array]) -> pa.Table:
    """The table a user sees: step, what the row is about, and the columns asked for."""
    described = {name: identity.column(name) for name in IDENTITY}
    return pa.table({"step": rows.column("step"), **described, **columns})


def lists(matrix: Floats) -> pa.Array:
    """A list column whose rows are the rows of a matrix."""
    offsets = np.arange(0, matrix.size + 1, matrix.shape[1], dtype=np.int64)
    return pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(matrix.ravel()))


def column(name: str, values: Floats) -> pa.Array:
    """One statistic as a column; counts are whole numbers."""
    return pa.array(values.astype(np.int64) if name in spec.COUNTS else values)


def binned(owner: Ints, moments: dict[str, Floats], bits: derive.BitRows, bins: int) -> tuple[Floats, Floats]:
    """Edges common to the rows of one owner, and each row's counts between them; zeros are counted where zero is.

    Rows of one owner stand together, as `named` leaves them.
    """
    edges, counts = np.zeros((bits.rows, bins + 1)), np.zeros((bits.rows, bins))
    ends = [*np.flatnonzero(np.diff(owner, prepend=-1)).tolist(), bits.rows]
    for first, last in itertools.pairwise(ends):
        chosen = slice(first, last)
        edges[chosen] = axis = _axis(moments["min"][chosen], moments["max"][chosen], bins)
        counts[chosen] = derive.histogram(_part(bits, first, last), axis)
        zero_bin = min(int(np.searchsorted(axis, 0.0, side="right")) - 1, bins - 1)
        if zero_bin >= 0:
            counts[chosen, zero_bin] += moments["zeros"][chosen]
    return edges, counts


def _part(bits: derive.BitRows, first: int, last: int) -> derive.BitRows:
    """The buckets of rows first to last − 1, renumbered from 0."""
    start, stop = np.searchsorted(bits.row, (first, last))
    cut = slice(start, stop)
    return derive.BitRows(
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
    """One row per step and one column per KPI, from one row per step and KPI; the last value of a step counts.

    A KPI that a step did not have is null; one that was NaN is NaN.
    """
    steps, values, times = ints(long, "step"), long.column("value").to_numpy(), long.column("time_s").to_numpy()
    of = np.array(long.column("name").to_pylist(), dtype=object)
    kept = np.isin(of, names)
    axis = np.unique(steps[kept])
    columns = {"step": pa.array(axis), "time_s": _pivoted(axis, steps[kept], times[kept])}
    columns |= {name: _pivoted(axis, steps[of == name], values[of == name]) for name in names}
    return pa.table(columns)


def _pivoted(axis: Ints, steps: Ints, values: Floats) -> pa.Array:
    at = np.searchsorted(axis, steps)
    column, missing = np.zeros(len(axis)), np.ones(len(axis), np.bool_)
    column[at], missing[at] = values, False
    return pa.array(column, mask=missing)
