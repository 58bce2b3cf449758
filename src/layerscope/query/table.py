"""A table of results that becomes a data frame of the user's choice."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from layerscope.errors import MissingError

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
