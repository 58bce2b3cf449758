"""Real run folders for the tests of the server, made without a framework."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from layerscope.model import summary_spec
from layerscope.model.records import CustomStatistics, Event, Floats, Kind, Metric, Mode, Phase, Series, Summaries
from layerscope.stats.kernel import summarize
from layerscope.store.folder import create
from layerscope.store.writer import FolderSink


def summaries(step: int, series: list[int], tensors: list[Floats]) -> Summaries:
    """The summaries of some tensors at one step."""
    made = [summarize(tensor, summary_spec.SMALLEST_NORMAL["float64"]) for tensor in tensors]
    encoded = [summary_spec.encode(summary.bits) for summary in made]
    rows = len(made)
    return Summaries(
        step=step,
        series=np.array(series, np.int32),
        moments=np.stack([summary.moments for summary in made]),
        m=np.array([summary.bits.m for summary in made], np.uint8),
        offsets=np.cumsum([0, *map(len, encoded)]),
        bits=np.frombuffer(b"".join(encoded), np.uint8).copy(),
        alias=np.full(rows, -1, np.int32),
        scale=np.ones(rows),
        merged=np.ones(rows, np.int32),
    )


def tensor_at(step: int) -> Floats:
    """What the site `layer` holds at a step."""
    return np.random.default_rng(step).normal(0.1 * step, 1.0, 500)


class Writing:
    """A run that is being written: one site, one metric."""

    def __init__(self, folder: Path, site: str = "layer") -> None:
        self.sink = FolderSink(create(folder))
        self.site = site
        self.series = self.series_of("float64")

    def series_of(self, dtype: str) -> int:
        """The number of the site's output in a data type."""
        return self.sink.series_id(Series(self.site, "output.0", Kind.OUTPUT, Mode.TRAIN, Phase.FORWARD, dtype, (500,)))

    def tensor(self, step: int, series: int) -> None:
        """Write one tensor of a step, and nothing else."""
        self.sink.put(summaries(step, [series], [tensor_at(step)]))

    def metric(self, step: int, value: float) -> None:
        """Write the metric of a step, and nothing else."""
        self.sink.put(Metric(step, "loss", value, float(step)))

    def own(self, step: int, name: str, value: float) -> None:
        """Write an custom statistic of a step, and nothing else."""
        self.sink.put(CustomStatistics(step, np.array([self.series], np.int32), (name,), np.array([value])))

    def note(self, step: int, text: str) -> None:
        """Write a note."""
        self.sink.put(Event(step, "note", text, float(step)))

    def step(self, step: int) -> None:
        """Write one step, to the disk."""
        self.tensor(step, self.series)
        self.metric(step, 1.0 / (step + 1))
        assert self.sink.flush()


def write_run(folder: Path, steps: int = 5, site: str = "layer") -> Path:
    """A finished run."""
    writing = Writing(folder, site)
    for step in range(steps):
        writing.step(step)
    writing.sink.close()
    return folder
