"""The last step of a run on the page: the largest of any table, whatever was recorded first."""

from __future__ import annotations

from pathlib import Path

from layerscope.model.records import Kind, Metric, Mode, Phase, Series
from layerscope.server.catalogue import Catalogue
from layerscope.store.folder import create
from layerscope.store.reader import Reader
from layerscope.store.writer import FolderSink
from layerscope.views.run_overview import step_range
from tests.server.runs import summaries, tensor_at


def written(folder: Path, *, metric_at: int | None = None) -> Path:
    """A run whose first series ends at step 4 and whose second goes on to step 9."""
    sink = FolderSink(create(folder))
    first, second = (
        sink.series_id(Series(site, "output.0", Kind.OUTPUT, Mode.TRAIN, Phase.FORWARD, "float64", (500,)))
        for site in ("first", "second")
    )
    for step in range(2, 10):
        numbers = [first, second] if step < 5 else [second]
        sink.put(summaries(step, numbers, [tensor_at(step)] * len(numbers)))
    if metric_at is not None:
        sink.put(Metric(metric_at, "loss", 1.0, 0.0))
    sink.close()
    return folder


def test_the_last_step_without_metrics_is_that_of_the_series_that_lasts_longest(tmp_path: Path) -> None:
    written(tmp_path / "run")
    (entry,) = Catalogue(tmp_path).entries()
    assert entry.last_step == 9
    assert step_range(Reader(tmp_path / "run"), {}) == (2, 9)


def test_the_last_step_is_that_of_a_tensor_where_the_metrics_end_earlier(tmp_path: Path) -> None:
    written(tmp_path / "run", metric_at=3)
    (entry,) = Catalogue(tmp_path).entries()
    assert entry.last_step == 9
