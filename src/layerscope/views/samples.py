"""Several named tensors sample by sample: what goes with what."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from layerscope.model.records import SAMPLE_STATISTICS, Floats, Ints

MOST_CELLS = 8  # numbers of one sample that are shown; of a larger tensor one statistic of them
MOST_POINTS = 20_000

Row = tuple[int, int]  # step and sample


@dataclass(frozen=True, slots=True)
class Kept:
    """What was kept of the samples of one tensor."""

    values: Mapping[Row, npt.NDArray[Any]]  # of each sample, flat
    told: Mapping[Row, float]  # one statistic of each sample whose values were not kept

    def reduced(self, row: Row, statistic: str) -> float:
        """One statistic of a sample, NaN where nothing was kept."""
        values = self.values.get(row)
        return self.told.get(row, np.nan) if values is None else reduced(values, statistic)

    def rows(self) -> set[Row]:
        """The samples of which anything was kept."""
        return {*self.values, *self.told}


NOTHING = Kept({}, {})


@dataclass(frozen=True, slots=True)
class SampleColumn:
    """One tensor of the selected step, a row for each sample."""

    key: str  # name@role
    statistic: str  # of the values of a sample, "" where they are shown themselves
    shown: int  # numbers in each row
    numbers: Floats  # row by row; NaN where nothing was kept


@dataclass(frozen=True, slots=True)
class RunSamples:
    """The samples of one run: a table of the selected step, and points for the first two tensors in all steps."""

    run: str
    problem: str
    step: int
    samples: tuple[int, ...]
    categories: tuple[str, ...]
    columns: tuple[SampleColumn, ...]
    x: Floats
    y: Floats
    point_steps: Ints
    point_samples: Ints
    steps: int  # that the points are of


@dataclass(frozen=True, slots=True)
class SamplesView:
    """The same tensors, sample by sample, in one run or several."""

    keys: tuple[str, ...]  # of the tensors shown
    choices: tuple[str, ...]  # of those that could be
    runs: tuple[RunSamples, ...]


def reduced(values: npt.NDArray[Any], statistic: str) -> float:
    """One statistic of the values of one sample."""
    real = _real(values)
    if not real.size:
        return float("nan")
    of: dict[str, Callable[[], float]] = {
        "mean": real.mean,
        "mean_abs": np.abs(real).mean,
        "std": real.std,
        "abs_max": np.abs(real).max,
    }
    return float(of[statistic]())


def sample_column(key: str, kept: Kept, rows: Sequence[Row], statistic: str) -> SampleColumn:
    """The numbers of one tensor in the given rows."""
    found = [kept.values.get(row) for row in rows]
    size = max((values.size for values in found if values is not None), default=1)
    if size > MOST_CELLS or any(row in kept.told for row in rows):
        return SampleColumn(key, statistic, 1, np.array([kept.reduced(row, statistic) for row in rows], np.float64))
    cells = np.full((len(rows), size), np.nan)
    for at, values in enumerate(found):
        if values is not None and values.size == size:
            cells[at] = _real(values)
    return SampleColumn(key, "", size, cells.ravel())


def points(first: Kept, second: Kept, statistic: str) -> tuple[Floats, Floats, Ints, Ints]:
    """One tensor against another: number by number where a sample has equally many of both, else by a statistic."""
    x: list[Floats] = []
    y: list[Floats] = []
    of: list[Row] = []
    for row in sorted(first.rows() & second.rows()):
        mine, other = first.values.get(row), second.values.get(row)
        if mine is not None and other is not None and mine.size == other.size:
            x.append(_real(mine))
            y.append(_real(other))
        else:
            x.append(_one(first, row, statistic))
            y.append(_one(second, row, statistic))
        of += [row] * len(x[-1])
    nothing = np.zeros(0)
    chosen = slice(max(0, len(of) - MOST_POINTS), None)  # the newest
    steps, samples = (np.array([row[at] for row in of], np.int64)[chosen] for at in (0, 1))
    return np.concatenate([nothing, *x])[chosen], np.concatenate([nothing, *y])[chosen], steps, samples


def _one(kept: Kept, row: Row, statistic: str) -> Floats:
    values = kept.values.get(row)
    return _real(values) if values is not None and values.size == 1 else np.array([kept.reduced(row, statistic)])


def _real(values: npt.NDArray[Any]) -> Floats:
    return (np.abs(values) if np.iscomplexobj(values) else values).astype(np.float64)


def per_sample(statistic: str) -> str:
    """The statistic of a sample's values in the name of one over the batch.

    >>> per_sample("std_of_sample_abs_max"), per_sample("rms")
    ('abs_max', 'mean')
    """
    last = statistic.rpartition("_of_sample_")[2]
    return last if last in SAMPLE_STATISTICS else SAMPLE_STATISTICS[0]
