"""SQL over a run, by DuckDB."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import pyarrow as pa

from layerscope.errors import SelectError
from layerscope.query.table import Table


def answer(query: str, views: Mapping[str, Callable[[], Table]]) -> pa.Table:
    """The result of the query; a view is only read when the query mentions its name.

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
            answer = connection.sql(query)
            return pa.table({}) if answer is None else answer.to_arrow_table()
        except duckdb.Error as error:
            raise SelectError(f"The query failed: {error}. The views are: {', '.join(views)}.") from error
