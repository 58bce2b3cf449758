"""What the terminal shows."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
from rich.console import Console, RenderableType

from layerscope.query.run import Run
from layerscope.query.table import Table
from layerscope.viz import text
from tests.server.runs import write_run


def printed(shown: RenderableType) -> str:
    written = io.StringIO()
    Console(width=120, file=written).print(shown)
    return written.getvalue()


def test_an_overview_names_the_run_its_kpis_and_its_sites(tmp_path: Path) -> None:
    told = printed(text.overview(Run(write_run(tmp_path / "first", site="net.0[bold]"))))
    assert "first  finished  5 steps, the last is 4" in told
    assert "loss" in told
    assert "█" in told
    assert "net.0[bold]" in told


def test_a_long_table_shows_its_beginning_its_end_and_its_length() -> None:
    table = Table(pa.table({"step": list(range(1000)), "rms": [float(step) for step in range(1000)]}))
    told = printed(text.table(table, most=6)).splitlines()
    assert [line.split()[0] for line in told if line.strip()][2:] == ["0", "1", "2", "…", "997", "998", "999", "1000"]


def test_a_curve_marks_what_is_not_a_number() -> None:
    assert text.sparkline(np.arange(4), np.array([0.0, 1.0, np.nan, 1.0])).plain == "▁█×█"
