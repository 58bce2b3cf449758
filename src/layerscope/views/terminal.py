"""Tables and runs for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table as RichTable
from rich.text import Text

from layerscope.model.records import Floats, Ints
from layerscope.model.text import shape_text
from layerscope.query import run_tables
from layerscope.query.tables import SHORT_LIST, cell_text
from layerscope.views.scalar import Screen, metrics_in_order, scalar_view

if TYPE_CHECKING:
    from layerscope.query.tables import Table
    from layerscope.store.reader import Reader


BARS = "▁▂▃▄▅▆▇█"
BROKEN = "×"  # a value that is NaN or infinite
MOST_ROWS = 60
DIGITS = 5
NARROWEST = 12  # columns of text fold to this width, not further
WIDEST = 100_000  # what a table would like to be is measured without a limit
STATUS_COLORS = {"running": "green", "finished": "default", "stopped": "yellow"}


def sparkline(steps: Ints, values: Floats, width: int = 40) -> Text:
    """A small curve of blocks; a cross where a value was NaN or infinite."""
    view = scalar_view("", steps, values, Screen(width=width))
    finite = view.last[np.isfinite(view.last)]
    low, span = (finite.min(), np.ptp(finite)) if len(finite) else (0.0, 0.0)
    line = Text()
    for value, broken in zip(view.last, view.not_finite, strict=True):
        level = int((len(BARS) - 1) * (value - low) / span) if span > 0 and np.isfinite(value) else 0
        line.append(BROKEN, "bold red") if broken else line.append(BARS[level], "yellow")
    return line


def table(content: Table, most: int = MOST_ROWS) -> RenderableType:
    """A table of results; of a long one the first and last rows.

    Where it is too wide for the terminal, columns with the same value in every row are said once, above it.
    """
    return _Results(content, most)


class _Results:
    """A table that fits itself to the width it is given."""

    def __init__(self, content: Table, most: int) -> None:
        self._content, self._most = content, most

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns = self._content.columns
        drawn = self._drawn(columns)
        if drawn.natural_width(console, options) > options.max_width:
            alike = constant_columns(self._content.arrow())
            if alike:
                yield Text(" · ".join(f"{name} {value}" for name, value in alike.items()), "dim")
                drawn = self._drawn([name for name in columns if name not in alike])
        yield drawn
        yield Text(f"{len(self._content)} {'row' if len(self._content) == 1 else 'rows'}", "dim")

    def _drawn(self, columns: Sequence[str]) -> Grid:
        arrow, most = self._content.arrow().select(list(columns)), self._most
        parts = [arrow] if len(arrow) <= most else [arrow.slice(0, most // 2), arrow.slice(len(arrow) - most // 2)]
        cells: list[list[Text]] = []
        for at, part in enumerate(parts):
            if at:
                cells.append([Text("…") for _ in columns])
            cells += [[cell(row[name], name) for name in columns] for row in part.to_pylist()]
        return Grid({name: _is_numeric(arrow.schema.field(name).type) for name in columns}, cells)


def constant_columns(content: pa.Table) -> dict[str, str]:
    """Columns with one value in all of several rows, and that value; the first column always stays in the table."""
    if len(content) < 2:
        return {}
    plain = [name for name in content.column_names[1:] if not pa.types.is_nested(content.schema.field(name).type)]
    return {
        name: cell(content.column(name)[0].as_py(), name).plain
        for name in plain
        if pc.count_distinct(content.column(name), mode="all").as_py() == 1
    }


class Grid:
    """Rows under their headings: numeric columns stay whole, the others fold where the terminal is narrow.

    A terminal that is too narrow even so wraps the lines itself: rather ugly than a number that lacks its exponent.
    """

    def __init__(self, columns: dict[str, bool], rows: Sequence[Sequence[Text]]) -> None:
        self._table = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
        self._foldable = 0  # characters that folding saves
        for at, (name, numeric) in enumerate(columns.items()):
            widest = max([len(name), *(row[at].cell_len for row in rows)])
            least = widest if numeric else min(widest, NARROWEST)
            self._foldable += widest - least
            self._table.add_column(
                Text(name),
                justify="right" if numeric else "left",
                no_wrap=numeric,
                overflow="crop" if numeric else "fold",
                min_width=least,
            )
        for row in rows:
            self._table.add_row(*row)

    def natural_width(self, console: Console, options: ConsoleOptions) -> int:
        """The width it has where there is room."""
        return Measurement.get(console, options.update(max_width=WIDEST), self._table).maximum

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        least = self.natural_width(console, options) - self._foldable
        yield from console.render(self._table, options.update(max_width=max(options.max_width, least)))


def _is_numeric(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def cell(value: object, column: str = "") -> Text:
    """One value; a name from a run is text, never markup."""
    if isinstance(value, list):
        return Text(shape_text(value) if len(value) <= SHORT_LIST else f"{len(value)} values")
    broken = isinstance(value, float) and not np.isfinite(value)
    return Text(cell_text(column, value, DIGITS), "bold red" if broken else "")


def overview(reader: Reader) -> RenderableType:
    """What a run holds: its state, its metrics with their curves, and its sites."""
    status = reader.status()
    metrics = run_tables.metrics(reader).arrow()
    steps: Ints = metrics.column("step").to_numpy()
    title = Text.assemble((reader.folder.resolve().name, "bold"), "  ", (status, STATUS_COLORS.get(status, "red")))
    if len(steps):
        title.append(f"  {len(steps)} steps, the last is {steps[-1]}")
    parts: list[RenderableType] = [title]
    names = metrics_in_order(metrics.column_names)
    if names:
        parts.append(_metrics(names, [metrics.column(name) for name in names], steps))
    if custom := run_tables.custom_statistics(reader):
        parts.append(Text(f"custom statistics: {', '.join(custom)}"))
    contexts = [context for context in reader.series()["context"].unique().to_pylist() if context]
    if contexts:
        parts.append(Text(f"contexts: {', '.join(contexts)}"))
    parts += _overhead(run_tables.overhead(reader))
    parts.append(_sites(reader))
    parts[1:1] = [Text(problem, "red") for problem in reader.problems()]  # all that reading the rest has met
    return Group(*parts)


def _overhead(overhead: Table) -> list[Text]:
    took, whole = (sum(filter(None, overhead[name])) for name in ("recording_s", "step_s"))
    if not whole > 0:
        return []
    return [Text(f"recording took {100 * took / whole:.3g} % of the time of {len(overhead)} steps", "dim")]


def _metrics(names: list[str], columns: list[object], steps: Ints) -> Grid:
    rows = []
    for name, column in zip(names, columns, strict=True):
        values = np.array(column, np.float64)  # a metric that a step did not have is NaN here
        given = np.asarray(column.is_valid(), np.bool_)  # type: ignore[attr-defined]
        kept = values[given]
        if len(kept):
            curve = sparkline(steps[given], kept)
            rows.append([Text(name), cell(float(kept[0])), cell(float(kept[-1])), curve])
    return Grid({"Metric": False, "first": True, "last": True, "over the steps": False}, rows)


def _sites(reader: Reader) -> RenderableType:
    kinds: dict[str, list[str]] = {}
    shapes: dict[str, object] = {}
    for row in reader.series().to_pylist():
        of_site = kinds.setdefault(row["site"], [])
        if row["kind"] not in of_site:
            of_site.append(row["kind"])
        shapes.setdefault(row["site"], row["shape"])
    if not kinds:
        return Text("No sites yet: nothing has been recorded.", "dim")
    rows = [[Text(site), cell(shapes[site]), Text(", ".join(kinds[site]))] for site in list(kinds)[:MOST_ROWS]]
    grid = Grid({"site": False, "shape": True, "kinds": False}, rows)
    left_out = len(kinds) - MOST_ROWS
    return Group(grid, Text(f"… and {left_out} more sites", "dim")) if left_out > 0 else grid
