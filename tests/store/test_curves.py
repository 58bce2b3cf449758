"""Curves that were kept elsewhere, added to a run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import layerscope as ls
from layerscope.errors import ArgumentError, BusyError, SelectError
from layerscope.store.folder import create
from layerscope.store.writer import FolderSink
from tests.store.runs import put_steps

pytestmark = pytest.mark.feature("T6")
COLUMNS = {"step": [0, 2, 4], "val_loss": [3.5, None, 1.5], "lr": [1, 2, 3]}


def indexed(columns: dict[str, list[Any]]) -> pd.DataFrame:
    return pd.DataFrame(columns).set_index("step")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    sink = FolderSink(create(tmp_path / "run"))
    put_steps(sink, range(5))
    sink.close()
    return tmp_path / "run"


@pytest.mark.parametrize("make", [dict, pa.table, pl.DataFrame, pd.DataFrame, indexed])
def test_a_table_of_any_library_becomes_metrics_beside_those_that_were_recorded(make: Any, folder: Path) -> None:
    run = ls.open(folder)
    before, stats = run.metrics().arrow(), run.stats().pandas()
    assert run.add_curves(make(COLUMNS)) == ["val_loss", "lr"]
    after = run.metrics().arrow().to_pydict()
    assert after["step"] == [0, 1, 2, 3, 4]
    assert after["loss"] == before["loss"].to_pylist()
    assert after["time_s"] == before["time_s"].to_pylist()
    assert after["val_loss"] == [3.5, None, None, None, 1.5]
    assert after["lr"] == [1.0, None, 2.0, None, 3.0]
    pd.testing.assert_frame_equal(run.stats().pandas(), stats)
    assert run.status() == "finished"


def test_a_curve_added_again_counts_and_the_first_one_stays_in_the_history(folder: Path) -> None:
    run = ls.open(folder)
    run.add_curves({"step": [1], "loss": [math.nan]})
    run.add_curves({"epoch": [1.0], "loss": [7.0]}, step="epoch")
    assert run.metrics().arrow()["loss"].to_pylist() == [1.0, 7.0, 1 / 3, 0.25, 0.2]
    history = run.reader.metrics(history=True)
    values = [row["value"] for row in history.to_pylist() if (row["step"], row["name"]) == (1, "loss")]
    assert values[0] == 0.5
    assert math.isnan(values[1])
    assert values[2:] == [7.0]


def test_a_killed_run_is_not_taken_for_a_finished_one_when_curves_are_added(folder: Path) -> None:
    create(folder, resume=True).lock.release()  # as a writer that died leaves it
    run = ls.open(folder)
    assert run.status() == "stopped"
    run.add_curves(COLUMNS)
    assert run.status() == "stopped"
    assert run.metrics().arrow()["lr"].to_pylist() == [1.0, None, 2.0, None, 3.0]


@pytest.mark.parametrize(
    ("curves", "told"),
    [
        ({"loss": [1.0]}, "no column 'step' with the steps, only loss"),
        ({"step": [0]}, "no column beside 'step'"),
        ({"step": [0.5], "loss": [1.0]}, "Column 'step' does not hold whole steps"),
        ({"step": [None], "loss": [1.0]}, "Column 'step' lacks 1 steps"),
        ({"step": [-1], "loss": [1.0]}, "Column 'step' has step -1"),
        ({"step": [0], "name": ["a"]}, "Column 'name' holds string, not numbers"),
        ({"step": [0, 1], "loss": [1.0]}, "The curves are no table"),
        ([1.0, 2.0], "The curves are no table"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_by_the_name_of_its_column(
    curves: object, told: str, folder: Path
) -> None:
    run = ls.open(folder)
    before = run.metrics().arrow()
    with pytest.raises((ArgumentError, SelectError), match=told):
        run.add_curves(curves)
    assert run.metrics().arrow().equals(before)


def test_a_run_that_is_being_recorded_is_left_alone(folder: Path) -> None:
    sink = FolderSink(create(folder, resume=True))
    with pytest.raises(BusyError, match="is being recorded by process"):
        ls.open(folder).add_curves(COLUMNS)
    sink.close()
