"""Many metric names: time grows with their number, not with its square."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import layerscope as ls
from layerscope.errors import ArgumentError
from layerscope.query import tables
from layerscope.store.reader import Reader
from layerscope.views.open_run import OpenRun, RunOrProblem
from layerscope.views.run_overview import metrics_view, run_entry, timeline
from layerscope.views.scalar import Screen

FEW, MANY = 2000, 8000
MOST = 9.0  # times as long for four times as many names: 4 if linear, 16 if quadratic


def metrics(count: int) -> dict[str, float]:
    return {f"group{at % 7}/metric_{at}": float(at) for at in range(count)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs, called by the number of their metric names."""
    folder = tmp_path_factory.mktemp("runs")
    for count in (FEW, MANY):
        with ls.watch(None, to=folder / str(count), every=1) as run:
            for _ in range(3):
                run.step(**metrics(count))
    return folder


def cpu_s(work: Callable[[], object], rounds: int = 3) -> float:
    """Computing time of this thread for one call, the least of some."""
    found = []
    for _ in range(rounds):
        began = time.thread_time()
        work()
        found.append(time.thread_time() - began)
    return min(found)


def first_step(folder: Path, count: int) -> float:
    given, found = metrics(count), []
    for number in range(3):
        with ls.watch(None, to=folder / f"{count}-{number}", every=1) as run:
            began = time.thread_time()
            run.step(**given)
            found.append(time.thread_time() - began)
    return min(found)


def test_the_first_step_takes_linear_time_in_the_number_of_metrics(tmp_path: Path) -> None:
    assert first_step(tmp_path, MANY) < MOST * first_step(tmp_path, FEW)


@pytest.mark.parametrize("given", ["*", "group1/*", "each"])
def test_the_table_of_metrics_takes_linear_time(folder: Path, given: str) -> None:
    def read(count: int) -> object:
        return ls.open(folder / str(count)).metrics(list(metrics(count)) if given == "each" else given)

    few, many = (cpu_s(partial(read, count)) for count in (FEW, MANY))
    assert many < MOST * few


@pytest.mark.parametrize("question", ["list of runs", "timeline", "metrics by type"])
def test_the_server_takes_linear_time(folder: Path, question: str) -> None:
    runs = {count: OpenRun(Reader(folder / str(count))) for count in (FEW, MANY)}

    def ask(count: int) -> object:
        if question == "list of runs":
            return run_entry(str(count), "finished", runs[count].reader)
        if question == "timeline":
            return timeline(runs[count], Screen())
        return metrics_view([RunOrProblem(str(count), runs[count])], Screen())

    few, many = (cpu_s(partial(ask, count)) for count in (FEW, MANY))
    assert many < MOST * few


def test_metrics_keep_their_values_and_the_last_of_a_step_counts(tmp_path: Path) -> None:
    with ls.watch(None, to=tmp_path / "run", every=1) as run:
        run.step(loss=1.0, b=2.0)
        run.step(b=3.0)
        run.step(loss=4.0)
    opened = ls.open(tmp_path / "run")
    opened.add_curves({"step": [2, 0], "loss": [5.0, 6.0]})
    found = tables.curves_by_name(ls.open(tmp_path / "run").reader.metrics())
    assert {name: (list(steps), list(values)) for name, (steps, values) in found.items()} == {
        "loss": ([0, 2], [6.0, 5.0]),
        "b": ([0, 1], [2.0, 3.0]),
    }
    assert np.array_equal(opened.metrics("b").arrow()["b"].to_pylist(), [2.0, 3.0])


def test_names_that_differ_only_in_case_are_still_refused(tmp_path: Path) -> None:
    with ls.watch(None, to=tmp_path / "run", every=1) as run:
        run.step(loss=1.0)
        with pytest.raises(ArgumentError, match="'loss' and 'Loss' differ only in case"):
            run.step(Loss=1.0)
        with pytest.raises(ArgumentError, match="'loss' and 'Loss' differ only in case"):
            run.step(Loss=1.0)
        run.step(loss=1.0)
