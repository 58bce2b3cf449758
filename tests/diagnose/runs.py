"""Runs made by hand: the tensors of every step as a function of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from layerscope.diagnose.findings import Diagnosis
from layerscope.diagnose.rules import check
from layerscope.model.records import (
    CallGraph,
    CustomStatistics,
    Event,
    Floats,
    Kind,
    Metric,
    Mode,
    ModuleNode,
    Phase,
    Series,
)
from layerscope.store.folder import create
from layerscope.store.writer import FolderSink
from tests.server.runs import summaries

READINGS = {Kind.WEIGHT: Phase.STEP, Kind.WEIGHT_GRAD: Phase.OPTIMIZER, Kind.UPDATE: Phase.OPTIMIZER}
Key = tuple[str, Kind] | tuple[str, Kind, Phase]
Tensors = Callable[[int], Mapping[Key, npt.ArrayLike]]
RNG = np.random.default_rng(0)


def noise(*shape: int, scale: float = 1.0) -> Floats:
    """A tensor like any other."""
    return RNG.normal(0.0, scale, shape or (16,))


def series_of(key: Key, shape: tuple[int, ...]) -> Series:
    """The series of a tensor, as a listener would name it."""
    site, kind = key[:2]
    reading = key[2] if len(key) == 3 else READINGS.get(kind, Phase.FORWARD)
    return Series(site, f"{kind.value}.0", kind, Mode.TRAIN, reading, "float32", shape)


class Made:
    """A run that is being made."""

    def __init__(self, folder: Path, modules: Mapping[str, str] | None = None, rank: int = 0) -> None:
        self.folder = folder
        self.sink = FolderSink(create(folder, resume=rank > 0, rank=rank))
        self.sink.put(CallGraph(tuple(ModuleNode(path, name, 0, "") for path, name in (modules or {}).items())))

    def steps(self, steps: Sequence[int], tensors: Tensors, loss: Callable[[int], float] | None = None) -> Made:
        """Write the tensors of some steps, and their loss."""
        for step in steps:
            made = {key: np.asarray(tensor, np.float64) for key, tensor in tensors(step).items()}
            numbers = [self.sink.series_id(series_of(key, tensor.shape)) for key, tensor in made.items()]
            if made:
                self.sink.put(summaries(step, numbers, [tensor.ravel() for tensor in made.values()]))
            if loss is not None:
                self.sink.put(Metric(step, "loss", loss(step), float(step)))
        return self

    def ratio(self, step: int, site: str, value: float) -> None:
        """Write the ratio of an update."""
        number = self.sink.series_id(series_of((site, Kind.UPDATE), (4, 4)))
        self.sink.put(CustomStatistics(step, np.array([number], np.int32), ("ratio",), np.array([value])))

    def skip(self, steps: Sequence[int]) -> None:
        """Say of some steps that their update was not made."""
        for step in steps:
            self.sink.put(Event(step, "skipped", "The update was skipped.", float(step)))

    def check(self) -> Diagnosis:
        """What the rules find once the run is closed."""
        self.sink.close()
        return check(self.folder)


def rules(diagnosis: Diagnosis) -> list[str]:
    """The rules that found something, causes before consequences."""
    return [found.rule for found in diagnosis.all_findings()]
