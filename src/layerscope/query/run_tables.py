"""The tables of a run: statistics, histograms, quantiles, exponents, values, metrics, overhead, and SQL over them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from layerscope.errors import ArgumentError, SelectError
from layerscope.model import summary_spec
from layerscope.model.patterns import Pattern, Patterns, listed, matching
from layerscope.model.records import Floats, Ints
from layerscope.query import tables
from layerscope.query.history import History, in_series_order, read_history
from layerscope.query.tables import IDENTITY, Table
from layerscope.stats import derived
from layerscope.store.reader import Reader, Steps, arrays_of


def open_run(folder: Path) -> Reader:
    """A reader of the run in a folder."""
    return Reader(folder)


def custom_statistics(reader: Reader) -> tuple[str, ...]:
    """The names of the statistics that the user added."""
    return tuple(name for name in reader.custom_names if name.lower() not in derived.RESERVED)


def statistics(reader: Reader) -> tuple[str, ...]:
    """The names of all statistics of the run: the built-in ones, then the custom ones."""
    return *derived.STATS, *custom_statistics(reader)


def module_classes(reader: Reader, patterns: Iterable[Pattern]) -> dict[str, str] | None:
    """The names of the modules' classes by path, None if no pattern is a class."""
    if not any(isinstance(pattern, type) for pattern in patterns):
        return None
    graph = reader.graph()
    return {} if graph is None else {module.path: module.class_name for module in graph.modules}


def select_series(reader: Reader, sites: Patterns, kind: Patterns, mode: Patterns, context: Patterns) -> pa.Table:
    """The rows of the table of series that match; every pattern must match something."""
    table = reader.series()
    for column, patterns in (("site", sites), ("kind", kind), ("mode", mode), ("context", context)):
        names = table.column(column).to_pylist()
        several = listed(patterns, column)
        classes = module_classes(reader, several) if column == "site" else None
        kept = set(matching(several, list(dict.fromkeys(names)), column, classes))
        table = table.filter(pa.array([name in kept for name in names], pa.bool_()))
    return table


def series_history(reader: Reader, number: int, rank: int = 0) -> History:
    """Every summary of one series, with its bit-counts and custom statistics."""
    series = reader.series()
    mine = (tables.ints(series, "series") == number) & (tables.ints(series, "rank") == rank)
    return read_history(reader, series.filter(pa.array(mine)), custom=None, bits=True)


def _assembled(series: pa.Table, owner: Ints, steps: Ints, columns: Mapping[str, pa.Array]) -> Table:
    """The table a user sees: step, the series that the row is of, and the columns asked for."""
    identity = series.select(IDENTITY).take(pa.array(owner))
    return Table(pa.table({"step": pa.array(steps), **dict(zip(IDENTITY, identity.columns, strict=True)), **columns}))


def stats(reader: Reader, series: pa.Table, names: Sequence[str], steps: Steps = None) -> Table:
    """Statistics, one row per series and step that has any of them; null where one is missing."""
    built_in, custom = ([name for name in names if (name in derived.STATS) is each] for each in (True, False))
    columns = tables.columns_for(built_in) if built_in or not custom else None
    history = read_history(reader, series, steps, columns=columns, custom=custom)
    sums = [history.moments[name] for name in summary_spec.SUMS[:3] if name in history.moments]
    if columns is not None and not all(np.isfinite(column).all() for column in sums):
        # A sum overflowed float64: further columns contain the scaled sums.
        columns = [*dict.fromkeys((*columns, *summary_spec.SUMS[2:]))]
        history = read_history(reader, series, steps, columns=columns, custom=custom)
    points = [history.points(name) for name in custom]
    owner, of_step, places = _united_rows(
        [(history.owner, history.steps), *((each.owner, each.steps) for each in points)]
    )
    values = {name: tables.placed(len(owner), places[0], history.stat(name)) for name in built_in}
    values |= {name: column.cast(pa.int64()) for name, column in values.items() if name in summary_spec.COUNTS}
    own = zip(custom, points, places[1:], strict=True)
    values |= {name: tables.placed(len(owner), place, each.values) for name, each, place in own}
    return _assembled(series, owner, of_step, {name: values[name] for name in names})


def _united_rows(several: Sequence[tuple[Ints, Ints]]) -> tuple[Ints, Ints, list[Ints]]:
    """Series and steps that occur in any of several lists of them, and where in these the rows of each list are."""
    if len(several) == 1:
        return *several[0], [np.arange(len(several[0][0]))]
    axis = np.unique(np.concatenate([steps for _, steps in several]))
    cells = [owner * len(axis) + np.searchsorted(axis, steps) for owner, steps in several]
    rows = np.unique(np.concatenate(cells))
    owner, step = np.divmod(rows, max(len(axis), 1))
    return owner, axis[step], [np.searchsorted(rows, cell) for cell in cells]


def histograms(reader: Reader, series: pa.Table, steps: Steps, bins: int) -> Table:
    """Histograms over each series' own range, one row per series and step: `edges` and `counts` are lists."""
    if bins < 1:
        raise ArgumentError(f"bins={bins} leaves nothing to count into. Give at least 1.")
    history = read_history(reader, series, steps, bits=True)
    edges, counts = _binned(history.owner, history.moments, history.bits.decoded(), bins)
    columns = {"edges": _lists(edges), "counts": _lists(counts)}
    columns |= {name: pa.array(history.moments[name].astype(np.int64)) for name in ("nan", "pos_inf", "neg_inf")}
    return _assembled(series, history.owner, history.steps, columns)


def _binned(owner: Ints, moments: Mapping[str, Floats], bits: derived.BitRows, bins: int) -> tuple[Floats, Floats]:
    """Edges common to the rows of one owner, and each row's counts between them; zeros are counted where zero is.

    Rows of one owner are neighbors.
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


def _lists(matrix: Floats) -> pa.Array:
    """A list column whose rows are the rows of a matrix."""
    offsets = np.arange(0, matrix.size + 1, matrix.shape[1], dtype=np.int64)
    return pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(matrix.ravel()))


def quantiles(reader: Reader, series: pa.Table, steps: Steps, shares: Sequence[float]) -> Table:
    """Values below which the given shares of a tensor's elements lie, one row per series and step."""
    for share in shares:
        if not 0 <= share <= 1:
            raise ArgumentError(
                f"{share} is no share of the elements. Give numbers between 0 and 1: 0.5 for the median."
            )
    history = read_history(reader, series, steps, bits=True)
    values = derived.quantiles(history.bits.decoded(), history.moments["zeros"], np.array(shares))
    columns = {f"q{share:g}": pa.array(column) for share, column in zip(shares, values.T, strict=True)}
    return _assembled(series, history.owner, history.steps, columns)


def exponents(reader: Reader, series: pa.Table, steps: Steps = None) -> Table:
    """How many elements have which base-2 exponent, one row per series, step and exponent that occurs."""
    history = read_history(reader, series, steps, bits=True)
    present, counts = derived.exponents(history.bits.decoded())
    row, column = np.nonzero(counts)
    columns = {"exponent": pa.array(present[column]), "count": pa.array(counts[row, column])}
    return _assembled(series, history.owner[row], history.steps[row], columns)


def kept_values(reader: Reader, series: pa.Table, steps: Steps = None) -> Table:
    """Kept values, one row per series and step: samples, shape and numbers; a complex number is two numbers."""
    rows, owner = in_series_order(reader.values(np.unique(tables.ints(series, "series")), steps), series)
    arrays = [a.view(a.real.dtype).reshape(*a.shape, 2) if a.dtype.kind == "c" else a for a in arrays_of(rows)]
    offsets = np.cumsum([0, *(array.size for array in arrays)])
    flat = np.concatenate([np.zeros(0), *(array.ravel().astype(np.float64) for array in arrays)])
    columns = {
        "samples": rows.column("samples"),
        "shape": pa.array([array.shape for array in arrays], pa.list_(pa.int64())),
        "value": pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(flat)),
    }
    return _assembled(series, owner, tables.ints(rows, "step"), columns)


def metrics(reader: Reader, names: Patterns = "*") -> Table:
    """The training loop's own numbers: one row per step with its time and type, one column per metric."""
    long = reader.metrics()
    return Table(tables.wide(long, matching(names, list(dict.fromkeys(long.column("name").to_pylist())), "Metric")))


def overhead(reader: Reader) -> Table:
    """What recording took of each recorded step: seconds, their share of the step, tensors and bytes."""
    table = reader.overhead()
    whole, part = tables.floats(table, "step_s"), tables.floats(table, "recording_s")
    share = pa.array(np.divide(part, whole, where=whole > 0, out=np.zeros(len(whole))), mask=~(whole > 0))
    columns = ("step", "step_s", "recording_s", "summaries", "bytes", "rank")
    return Table(table.select(columns).add_column(3, "share", share))


def sql(query: str, views: Mapping[str, Callable[[], Table]]) -> Table:
    """The result of an SQL query by DuckDB; a view is only read when the query mentions its name.

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
            result = connection.sql(query)
            return Table(pa.table({}) if result is None else result.to_arrow_table())
        except duckdb.Error as error:
            raise SelectError(f"The query failed: {error}. The views are: {', '.join(views)}.") from error
