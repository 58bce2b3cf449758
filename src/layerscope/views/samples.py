"""Several named tensors sample by sample: what goes with what."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from layerscope.errors import SelectError
from layerscope.model.records import SAMPLE_STATISTICS, Dependencies, Floats, Ints, TensorType
from layerscope.query.named_tensors import NamedTensors
from layerscope.query.tensor_query import ResolvedQuery, TensorQuery, resolve_query
from layerscope.views.open_run import Runs
from layerscope.views.tensors import NOTHING_NAMED

MOST_CELLS = 8  # numbers of one sample that are shown; of a larger tensor one statistic of them
MOST_POINTS = 20_000
MOST_STEPS = 200  # whose samples make the points

Row = tuple[int, int]  # step and sample


@dataclass(frozen=True, slots=True)
class Kept:
    """What was kept of the samples of one tensor."""

    values: Mapping[Row, npt.NDArray[Any]]  # of each sample, flat
    statistics: Mapping[Row, float]  # one statistic of each sample whose values were not kept

    def reduced(self, row: Row, statistic: str) -> float:
        """One statistic of a sample, NaN where nothing was kept."""
        values = self.values.get(row)
        return self.statistics.get(row, np.nan) if values is None else reduced(values, statistic)

    def rows(self) -> set[Row]:
        """The samples of which anything was kept."""
        return {*self.values, *self.statistics}


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
    of_rows = [kept.values.get(row) for row in rows]
    size = max((values.size for values in of_rows if values is not None), default=1)
    if size > MOST_CELLS or any(row in kept.statistics for row in rows):
        return SampleColumn(key, statistic, 1, np.array([kept.reduced(row, statistic) for row in rows], np.float64))
    cells = np.full((len(rows), size), np.nan)
    for at, values in enumerate(of_rows):
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


def samples_view(runs: Runs, query: TensorQuery, keys: Sequence[str], stat: str) -> SamplesView:
    """Several tensors of each run sample by sample, given by `name@role`; without any the first two."""
    statistic, keys = per_sample(stat), tuple(keys)
    samples: list[RunSamples] = []
    choices: tuple[str, ...] = ()
    for one in runs:
        if one.run is None:
            raise SelectError(one.problem)
        named, resolved = one.run.named(), resolve_query(one.run.named(), one.name, query)
        if resolved is None:
            samples.append(_no_samples(one.name, NOTHING_NAMED))
            continue
        choices = choices or _sampled(resolved.graph)
        keys = keys or _first_two(resolved, choices)
        samples.append(_run_samples(named, resolved, keys, statistic))
    return SamplesView(keys, choices, tuple(samples))


def _sampled(graph: Dependencies) -> tuple[str, ...]:
    """Keys of the tensors of an iteration that may have samples: `name@role`, or the name alone."""
    return tuple(
        f"{node.name}@{role}" if role else node.name
        for node in graph.nodes
        if node.type is not TensorType.PARAMETER
        for role, shape in node.roles
        if shape
    )


def _first_two(resolved: ResolvedQuery, choices: tuple[str, ...]) -> tuple[str, ...]:
    """What to begin with: the selected tensor, and the loss of each sample."""
    chosen = resolved.selection
    own = f"{chosen.node}@{chosen.role}" if chosen.role else chosen.node
    preferred = [own if own in choices else "", *(key for key in choices if "loss" in key.lower()), *choices]
    return tuple(dict.fromkeys(filter(None, preferred)))[:2]


def _no_samples(run: str, problem: str) -> RunSamples:
    """A run without any samples, and why."""
    nothing = np.zeros(0)
    return RunSamples(run, problem, 0, (), (), (), nothing, nothing, nothing.astype(int), nothing.astype(int), 0)


def _run_samples(named: NamedTensors, resolved: ResolvedQuery, keys: Sequence[str], statistic: str) -> RunSamples:
    """The tensors at the selected step, and the first two of them in the newest steps of the type."""
    chosen, choices = resolved.selection, resolved.choices
    at = int(np.searchsorted(choices.steps, chosen.step))
    steps = choices.steps[max(0, at + 1 - MOST_STEPS) : at + 1]  # up to the selected one
    kept = [_kept(named, resolved, key, steps, statistic) for key in keys]
    rows: list[Row] = [(chosen.step, sample) for sample in choices.samples]
    first, second = [*kept, NOTHING, NOTHING][:2]
    x, y, point_steps, point_samples = points(first, second, statistic)
    return RunSamples(
        run=chosen.run,
        problem="",
        step=chosen.step,
        samples=choices.samples,
        categories=choices.categories,
        columns=tuple(sample_column(key, one, rows, statistic) for key, one in zip(keys, kept, strict=True)),
        x=x,
        y=y,
        point_steps=point_steps,
        point_samples=point_samples,
        steps=len(set(point_steps.tolist())),
    )


def _kept(named: NamedTensors, resolved: ResolvedQuery, key: str, steps: Ints, statistic: str) -> Kept:
    """What was kept of one tensor by step and sample."""
    chosen = resolved.selection
    name, _, role = key.partition("@")
    values, (steps_of, samples_of, columns) = named.samples(steps, name, role, chosen.iteration, chosen.loss)
    flat = {
        (step, sample): kept.array[at].ravel()
        for step, kept in values.items()
        for at, sample in enumerate(kept.samples.tolist())
    }
    rows = zip(steps_of.tolist(), samples_of.tolist(), strict=True)
    statistics = dict(zip(rows, columns[statistic].tolist(), strict=True))
    return Kept(flat, {row: number for row, number in statistics.items() if row not in flat})
