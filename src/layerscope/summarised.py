"""`Summary`: a model's modules with shapes and costs, as text and as a table."""

from __future__ import annotations

from layerscope.operations import PassRecord
from layerscope.query.model_summary import module_rows, summary_table
from layerscope.query.table import Table
from layerscope.viz.summary_text import summary_text


class Summary:
    """What `summary(model, x)` gives: print it, or take `rows` on as a table."""

    def __init__(self, record: PassRecord) -> None:
        self._rows = module_rows(record)

    @property
    def rows(self) -> Table:
        """One row per module."""
        return summary_table(self._rows)

    def __repr__(self) -> str:
        return summary_text(self._rows)
