"""Tables and runs for the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from layerscope.records import Floats, Ints
from layerscope.viz.scalar import kpis_in_order, scalar_view
from layerscope.viz.screen import Screen

if TYPE_CHECKING:
    from layerscope.query.run import Run
    from layerscope.query.table import Table

BARS = "▁▂▃▄▅▆▇█"
BROKEN = "×"  # a value that is NaN or infinite
MOST_ROWS = 60
STATUS_COLOURS = {"running": "green", "finished": "default", "stopped": "yellow"}


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
    """A table of results; of a long one the first and last rows."""
    arrow = content.arrow()
    shown = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
    numeric = {name: _is_numeric(str(arrow.schema.field(name).type)) for name in content.columns}
    for name in content.columns:
        shown.add_column(Text(name), justify="right" if numeric[name] else "left")
    cut = len(content) - most
    parts = [arrow] if cut <= 0 else [arrow.slice(0, most // 2), arrow.slice(len(content) - most // 2)]
    for at, part in enumerate(parts):
        if at:
            shown.add_row(*("…" for _ in content.columns))
        for row in part.to_pylist():
            shown.add_row(*(cell(row[name]) for name in content.columns))
    count = Text(f"{len(content)} {'row' if len(content) == 1 else 'rows'}", "dim")
    return Group(shown, count)


def _is_numeric(kind: str) -> bool:
    return kind.startswith(("int", "uint", "float", "double"))


def cell(value: object) -> Text:
    """One value; a name from a run is text, never markup."""
    if isinstance(value, float):
        return Text(f"{value:.5g}", "" if np.isfinite(value) else "bold red")
    if isinstance(value, list):
        return Text("×".join(map(str, value)) if len(value) <= 6 else f"{len(value)} values")
    return Text("" if value is None else str(value))


def overview(run: Run) -> RenderableType:
    """What a run holds: its state, its KPIs with their curves, and its sites."""
    status = run.status()
    kpis = run.kpis().arrow()
    steps: Ints = kpis.column("step").to_numpy()
    title = Text.assemble((run.name, "bold"), "  ", (status, STATUS_COLOURS.get(status, "red")))
    if len(steps):
        title.append(f"  {len(steps)} steps, the last is {steps[-1]}")
    parts: list[RenderableType] = [title]
    parts += [Text(problem, "red") for problem in run.problems]
    names = kpis_in_order(kpis.column_names)
    if names:
        parts.append(_kpis(names, [kpis.column(name) for name in names], steps))
    parts.append(_sites(run))
    return Group(*parts)


def _kpis(names: list[str], columns: list[object], steps: Ints) -> RichTable:
    shown = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("KPI", "first", "last", "over the steps"):
        shown.add_column(name, justify="right" if name in ("first", "last") else "left")
    for name, column in zip(names, columns, strict=True):
        values = np.array(column, np.float64)  # a KPI that a step did not have is NaN here
        given = np.asarray(column.is_valid(), np.bool_)  # type: ignore[attr-defined]
        kept = values[given]
        if len(kept):
            curve = sparkline(steps[given], kept)
            shown.add_row(Text(name), cell(float(kept[0])), cell(float(kept[-1])), curve)
    return shown


def _sites(run: Run) -> RenderableType:
    rows = run.series().arrow().to_pylist()
    kinds: dict[str, list[str]] = {}
    shapes: dict[str, object] = {}
    for row in rows:
        of_site = kinds.setdefault(row["site"], [])
        if row["kind"] not in of_site:
            of_site.append(row["kind"])
        shapes.setdefault(row["site"], row["shape"])
    if not kinds:
        return Text("No sites yet: nothing has been recorded.", "dim")
    shown = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("site", "shape", "kinds"):
        shown.add_column(name)
    for site in list(kinds)[:MOST_ROWS]:
        shown.add_row(Text(site), cell(shapes[site]), Text(", ".join(kinds[site])))
    left_out = len(kinds) - MOST_ROWS
    return Group(shown, Text(f"… and {left_out} more sites", "dim")) if left_out > 0 else shown
