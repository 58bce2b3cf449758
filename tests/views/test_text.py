"""What the terminal shows."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
from rich.console import Console, RenderableType

from layerscope.model.text import number_text, quantity, shape_text
from layerscope.query.tables import Table
from layerscope.store.reader import Reader
from layerscope.views import terminal
from tests.server.runs import write_run


def printed(shown: RenderableType, width: int = 120) -> str:
    written = io.StringIO()
    Console(width=width, file=written, soft_wrap=True).print(shown)
    return written.getvalue()


def statistics(sites: list[str]) -> Table:
    """A table like that of a run: much of it is the same in every row."""
    same = {"kind": "output", "mode": "train", "rank": 0}
    numbers = {name: [-1.2345e-10 * (at + 1) for at in range(len(sites))] for name in ("mean", "std", "rms")}
    return Table(
        pa.table({"step": [1] * len(sites), "site": sites} | {k: [v] * len(sites) for k, v in same.items()} | numbers)
    )


def test_an_overview_names_the_run_its_metrics_and_its_sites(tmp_path: Path) -> None:
    told = printed(terminal.overview(Reader(write_run(tmp_path / "first", site="net.0[bold]"))))
    assert "first  finished  5 steps, the last is 4" in told
    assert "loss" in told
    assert "█" in told
    assert "net.0[bold]" in told


def test_a_long_table_shows_its_beginning_its_end_and_its_length() -> None:
    table = Table(pa.table({"step": list(range(1000)), "rms": [float(step) for step in range(1000)]}))
    told = printed(terminal.table(table, most=6)).splitlines()
    assert [line.split()[0] for line in told if line.strip()][2:] == ["0", "1", "2", "…", "997", "998", "999", "1000"]


def test_a_curve_marks_what_is_not_a_number() -> None:
    assert terminal.sparkline(np.arange(4), np.array([0.0, 1.0, np.nan, 1.0])).plain == "▁█×█"


def test_a_table_that_fits_shows_every_column() -> None:
    told = printed(terminal.table(statistics(["a", "b"])))
    assert told.split()[:8] == ["step", "site", "kind", "mode", "rank", "mean", "std", "rms"]


def test_a_table_too_wide_says_its_constant_columns_once_above_it() -> None:
    told = printed(terminal.table(statistics(["a", "b"])), 60).splitlines()
    assert told[0] == "kind output · mode train · rank 0"
    assert told[2].split() == ["step", "site", "mean", "std", "rms"]
    assert max(map(len, told)) <= 60


def test_no_number_is_ever_cut_and_no_letter_of_a_name_lost() -> None:
    name = "encoder.layers.0.self_attention.projection"
    told = printed(terminal.table(statistics([name, "b"])), 30)
    assert told.count("-1.2345e-10") == 3
    assert "…" not in told
    assert "".join(re.findall(r"[a-z_.0]{4,12}(?= )", told.split("─ ")[1])).startswith(name)


def test_one_row_keeps_all_its_columns() -> None:
    assert "train" in printed(terminal.table(statistics(["a"])), 30)


def test_whole_numbers_times_and_short_lists_are_shown_in_full() -> None:
    table = Table(
        pa.table(
            {"time_s": [1794780123.4567], "sum": [12345678.0], "rms": [0.123456789], "shape": [[2, 3]], "n": [10**12]}
        )
    )
    assert repr(table).splitlines()[1].split("  ")[-5:] == [
        "1794780123.457",
        "12345678",
        "0.123457",
        "[2, 3]",
        "1000000000000",
    ]
    assert printed(terminal.table(table)).splitlines()[3].split() == [
        "1794780123.457",
        "12345678",
        "0.12346",
        "2×3",
        "1000000000000",
    ]
    long = Table(pa.table({"counts": [list(range(64))]}))
    assert repr(long).splitlines()[1].strip() == "[64 values]"


def test_numbers_quantities_and_shapes_are_written_as_the_page_writes_them() -> None:
    golden = json.loads((Path(__file__).parents[1] / "golden" / "text.json").read_text(encoding="utf-8"))
    assert [number_text(x, digits) for x, digits, _ in golden["numbers"]] == [text for *_, text in golden["numbers"]]
    assert [quantity(x, unit) for x, unit, _ in golden["quantities"]] == [text for *_, text in golden["quantities"]]
    assert [shape_text(shape) for shape, _ in golden["shapes"]] == [text for _, text in golden["shapes"]]
