"""Several named tensors sample by sample: what goes with what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from layerscope.records import SAMPLE_STATISTICS, Floats, Ints

MOST_CELLS = 8  # numbers of one sample that are shown; of a larger tensor one statistic of them
MOST_POINTS = 20_000

Row = tuple[int, int]  # step and sample
Kept = Mapping[Row, npt.NDArray[Any]]  # the values of each sample, flat


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
    real = np.abs(values) if np.iscomplexobj(values) else values.astype(np.float64)
    if not real.size:
        return float("nan")
    of = {
        "mean": real.mean,
        "mean_abs": lambda: np.abs(real).mean(),
        "std": real.std,
        "abs_max": lambda: np.abs(real).max(),
    }
    return float(of[statistic]())


def sample_column(key: str, kept: Kept, rows: Sequence[Row], statistic: str) -> SampleColumn:
    """The numbers of one tensor in the given rows."""
    found = [kept.get(row) for row in rows]
    size = max((values.size for values in found if values is not None), default=1)
    if size > MOST_CELLS:
        numbers = [np.nan if values is None else reduced(values, statistic) for values in found]
        return SampleColumn(key, statistic, 1, np.array(numbers, np.float64))
    cells = np.full((len(rows), size), np.nan)
    for at, values in enumerate(found):
        if values is not None and values.size == size:
            cells[at] = np.abs(values) if np.iscomplexobj(values) else values
    return SampleColumn(key, "", size, cells.ravel())


def points(first: Kept, second: Kept, statistic: str) -> tuple[Floats, Floats, Ints, Ints]:
    """One tensor against another: number by number where a sample has equally many of both, else by a statistic."""
    x: list[Floats] = []
    y: list[Floats] = []
    of: list[Row] = []
    for row, values in first.items():
        other = second.get(row)
        if other is None:
            continue
        same = values.size == other.size
        pair = (values, other) if same else (_one(values, statistic), _one(other, statistic))
        x.append(np.asarray(pair[0], np.float64).ravel())
        y.append(np.asarray(pair[1], np.float64).ravel())
        of += [row] * len(x[-1])
    nothing = np.zeros(0)
    chosen = slice(max(0, len(of) - MOST_POINTS), None)  # the newest
    steps, samples = (np.array([row[at] for row in of], np.int64)[chosen] for at in (0, 1))
    return np.concatenate([nothing, *x])[chosen], np.concatenate([nothing, *y])[chosen], steps, samples


def _one(values: npt.NDArray[Any], statistic: str) -> npt.NDArray[Any]:
    return values if values.size == 1 else np.array([reduced(values, statistic)])


def per_sample(statistic: str) -> str:
    """The statistic of a sample's values in the name of one over the batch.

    >>> per_sample("std_of_sample_abs_max"), per_sample("rms")
    ('abs_max', 'mean')
    """
    last = statistic.rpartition("_of_sample_")[2]
    return last if last in SAMPLE_STATISTICS else SAMPLE_STATISTICS[0]
