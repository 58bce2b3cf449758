"""Real run folders for the tests of the server, made without a framework."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from layerscope.records import Floats, Kind, Kpi, Mode, Reading, Series, Summaries
from layerscope.stats import spec
from layerscope.stats.reference import summarize
from layerscope.store.folder import create
from layerscope.store.writer import FolderSink


def summaries(step: int, series: list[int], tensors: list[Floats]) -> Summaries:
    """The summaries of some tensors at one step."""
    made = [summarize(tensor, spec.SMALLEST_NORMAL["float64"]) for tensor in tensors]
    encoded = [spec.encode(summary.bits) for summary in made]
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
    """A run that is being written: one site, one KPI."""

    def __init__(self, folder: Path, site: str = "layer") -> None:
        self.sink = FolderSink(create(folder))
        self.series = self.sink.series_id(
            Series(site, "output.0", Kind.OUTPUT, Mode.TRAIN, Reading.FORWARD, "float64", (500,))
        )

    def step(self, step: int) -> None:
        """Write one step, to the disk."""
        self.sink.put(summaries(step, [self.series], [tensor_at(step)]))
        self.sink.put(Kpi(step, "loss", 1.0 / (step + 1), float(step)))
        assert self.sink.flush()


def write_run(folder: Path, steps: int = 5, site: str = "layer") -> Path:
    """A finished run."""
    writing = Writing(folder, site)
    for step in range(steps):
        writing.step(step)
    writing.sink.close()
    return folder
