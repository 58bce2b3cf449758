"""Named tensors of a run: their steps, dependency graphs, histories, kept values and statistics of samples."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from layerscope.model import summary_spec
from layerscope.model.lru_cache import LRUCache
from layerscope.model.records import (
    BATCH_STATISTICS,
    SAMPLE_STATISTICS,
    Dependencies,
    Flags,
    Floats,
    Ids,
    Ints,
    Kind,
    StepInfo,
    call_site,
    gradient_port,
)
from layerscope.query import tables
from layerscope.query.history import HistoryCache, SeriesNumbers
from layerscope.query.tables import Table
from layerscope.stats import derived
from layerscope.store.reader import Reader, arrays_of, numbers_of

_LARGE = 1e150  # squares of larger numbers leave float64
_SERIES = 64  # whose values are cached
_SERIES_BYTES = 2 << 20  # of values at all steps, beyond which they are read step by step
_BYTES_AT_ONCE = 32 << 20
_STEPS = 32  # whose values are cached, of series that are larger


@dataclass(frozen=True, slots=True)
class KeptValues:
    """The values of a named tensor at one step."""

    samples: Ids  # which ones, by their places in the batch; none where the tensor has no batch
    array: npt.NDArray[Any]  # as recorded, the samples first


class SampleRows(NamedTuple):
    """Statistics of samples: row i is of sample `samples[i]` at step `steps[i]`."""

    steps: Ints
    samples: Ints
    statistics: dict[str, Floats]


def statistics_of(samples: npt.NDArray[Any]) -> dict[str, Floats]:
    """Every statistic of each sample; the samples lie along the first axis. Of complex numbers, of magnitudes."""
    kind, count = samples.dtype.name, len(samples)
    with np.errstate(invalid="ignore"):  # a signalling NaN is a NaN
        real = np.abs(samples) if samples.dtype.kind == "c" else samples
        wide = real.reshape(count, samples.size // max(count, 1)).astype(np.float64)
    finite = np.isfinite(wide)
    moments = _counts(wide, finite, summary_spec.SMALLEST_NORMAL.get(kind, 0.0))
    known = wide if finite.all() else np.where(finite, wide, 0.0)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        moments |= _sums(known) | _extremes(known, finite)
        statistics = {name: derived.statistic(name, moments.__getitem__) for name in derived.STATS}
        # Two passes know it better than raw sums do, which is all that a summary has.
        unit = np.where(moments["abs_max"] > _LARGE, moments["abs_max"], 1.0)
        apart = np.where(finite, known / unit[:, None] - (statistics["mean"] / unit)[:, None], 0.0)
        statistics["std"] = np.sqrt(np.square(apart).sum(1) / _or_nan(moments["finite"])) * unit
    return statistics


def _or_nan(count: Floats) -> Floats:
    return np.where(count > 0, count, np.nan)


def _counts(wide: Floats, finite: Flags, smallest_normal: float) -> dict[str, Floats]:
    counted: dict[str, Flags] = {
        "count": np.ones_like(finite),
        "finite": finite,
        "zeros": wide == 0,
        "subnormal": (wide != 0) & (np.abs(wide) < smallest_normal),
        "nan": np.isnan(wide),
        "pos_inf": np.isposinf(wide),
        "neg_inf": np.isneginf(wide),
    }
    return {name: flags.sum(1).astype(np.float64) for name, flags in counted.items()}


def _sums(known: Floats) -> dict[str, Floats]:
    square = known * known
    fourth = square * square
    powers = (known, np.abs(known), square, square * known, fourth, fourth * fourth)
    sums = {name: power.sum(1) for name, power in zip(summary_spec.SUMS, powers, strict=True)}
    beyond = np.isinf(sums["sum2"])
    if beyond.any():
        small = np.ldexp(known, -summary_spec.DOWN)
        for name, power in zip(summary_spec.SUMS[3:], (small, np.abs(small), small * small), strict=True):
            sums[name] = np.where(beyond, power.sum(1), sums[name])
    return sums


def _extremes(known: Floats, finite: Flags) -> dict[str, Floats]:
    magnitude = np.abs(known)
    extremes = {
        "min": np.where(finite, known, np.inf).min(1, initial=np.inf),
        "max": np.where(finite, known, -np.inf).max(1, initial=-np.inf),
        "abs_min": np.where(magnitude > 0, magnitude, np.inf).min(1, initial=np.inf),
        "abs_max": np.where(finite, magnitude, -np.inf).max(1, initial=-np.inf),
    }
    return {name: np.where(np.isfinite(values), values, np.nan) for name, values in extremes.items()}


def sampled(values: Mapping[int, KeptValues]) -> list[SampleRows]:
    """The statistics of every sample in values by step; values of equal shape are computed together."""
    alike: dict[tuple[str, tuple[int, ...]], list[int]] = {}
    for step, kept in values.items():
        if len(kept.samples):
            alike.setdefault((kept.array.dtype.name, kept.array.shape[1:]), []).append(step)
    groups = []
    for steps in alike.values():
        chosen = [values[step] for step in steps]
        samples = np.concatenate([kept.samples for kept in chosen]).astype(np.int64)
        of = np.repeat(np.array(steps, np.int64), [len(kept.samples) for kept in chosen])
        groups.append(SampleRows(of, samples, statistics_of(np.concatenate([kept.array for kept in chosen]))))
    return groups


def joined(parts: Sequence[SampleRows]) -> SampleRows:
    """The rows of several parts; a statistic that a part lacks is NaN."""
    names = dict.fromkeys(name for _, _, statistics in parts for name in statistics)
    steps, samples = (np.concatenate([np.zeros(0, np.int64), *(part[k] for part in parts)]) for k in (0, 1))
    columns = {
        name: np.concatenate([statistics.get(name, np.full(len(of), np.nan)) for of, _, statistics in parts])
        for name in names
    }
    return SampleRows(steps, samples, columns)


class ValueCache:
    """Kept values: those of a small series all at once, those of a large one step by step."""

    def __init__(self, reader: Reader, rank: int, steps: Ints) -> None:
        self._reader = reader
        self._rank = rank
        self._steps = steps
        self._bytes: dict[SeriesNumbers, int] = {}  # of one step, where that was seen
        self._series: LRUCache[SeriesNumbers, dict[int, KeptValues]] = LRUCache(_SERIES)
        self._arrays: LRUCache[tuple[SeriesNumbers, int], KeptValues | None] = LRUCache(_STEPS)

    def at(self, numbers: SeriesNumbers, step: int) -> KeptValues | None:
        """The values at one step; of several series that have any, the last."""
        if not numbers:
            return None
        if (numbers, step) not in self._arrays and self._is_small(numbers):
            return self._whole(numbers).get(step)
        kept = self._arrays.get((numbers, step), lambda: self._read(numbers, np.array([step])).get(step))
        if kept is not None:
            self._bytes[numbers] = kept.array.nbytes
        return kept

    def all(self, numbers: SeriesNumbers, steps: Ints | None = None) -> Iterator[dict[int, KeptValues]]:
        """The values at every step, or at some, a bounded number of bytes at a time."""
        chosen = self._steps if steps is None else steps
        if self._is_small(numbers):
            whole = self._whole(numbers)
            yield whole if steps is None else {step: whole[step] for step in chosen.tolist() if step in whole}
            return
        first, at_once = 0, _STEPS
        while numbers and first < len(chosen):
            values = self._read(numbers, chosen[first : first + at_once])
            yield values
            first += at_once
            size = max((kept.array.nbytes for kept in values.values()), default=0)
            at_once = max(_BYTES_AT_ONCE // size, 1) if size else at_once

    def _is_small(self, numbers: SeriesNumbers) -> bool:
        return numbers in self._series or self._bytes.get(numbers, _SERIES_BYTES) * len(self._steps) < _SERIES_BYTES

    def _whole(self, numbers: SeriesNumbers) -> dict[int, KeptValues]:
        return self._series.get(numbers, lambda: self._read(numbers, None))

    def _read(self, numbers: SeriesNumbers, steps: Ints | None) -> dict[int, KeptValues]:
        table = of_rank(self._reader.values(list(numbers), steps), self._rank)
        samples = [np.array(row, np.int32) for row in table["samples"].to_pylist()]
        return dict(zip(tables.ints(table, "step").tolist(), map(KeptValues, samples, arrays_of(table)), strict=True))


def of_rank(table: pa.Table, rank: int) -> pa.Table:
    """The rows of one rank."""
    ranks = tables.ints(table, "rank")
    return table if (ranks == rank).all() else table.filter(pa.array(ranks == rank))


_LISTS = {"graphs": pa.int64(), "samples": pa.int64(), "categories": pa.string(), "losses": pa.string()}
_SAMPLED_KNOWN = 256  # tensors whose statistics of samples are cached


class NamedTensors:
    """The named tensors of a run when this was created: `steps()`, `graph()`, `statistics()`, `values()`.

    Its name, its role if it has one, and the iteration of the step identify a tensor. `loss=None` is its value; else
    its gradient, `""` of a loss that was given no name. A parameter of the model is the same in every iteration;
    its gradient is what the loss added to it, or in a run that names no losses the gradient that was applied.
    """

    def __init__(self, reader: Reader, rank: int = 0) -> None:
        self._reader = reader
        self._rank = rank
        self._infos = {info.step: info for info in _infos(of_rank(reader.steps(), rank))}
        self._tables: dict[str | None, Table] = {}
        self._histories = HistoryCache(reader, of_rank(reader.series(), rank), len(self._infos))
        self._values = ValueCache(reader, rank, np.array(sorted(self._infos), np.int64))
        self._samples: LRUCache[SeriesNumbers, SampleRows] = LRUCache(_SAMPLED_KNOWN)

    def steps(self, type: str | None = None) -> Table:
        """The steps in which tensors were named, or those of one type.

        step, type, iterations, batch, samples, categories, losses, reason
        """
        if type not in self._tables:
            chosen = [info for info in self._infos.values() if type in (None, info.type)]
            names = [name for name in StepInfo.__slots__ if name != "graphs"]
            kinds = {"step": pa.int64(), "iterations": pa.int64(), "batch": pa.int64()}
            kinds |= {name: pa.list_(kind) for name, kind in _LISTS.items()}
            columns = {
                name: pa.array([getattr(i, name) for i in chosen], kinds.get(name, pa.string())) for name in names
            }
            self._tables[type] = Table(pa.table(columns))
        return self._tables[type]

    def types(self) -> list[str]:
        """The types of these steps, in alphabetical order."""
        return sorted({info.type for info in self._infos.values()})

    def graph(self, step: int, iteration: int) -> Dependencies | None:
        """Tensors named in an iteration and their dependencies, None if there are none; 0 has the initial values."""
        info = self._infos.get(step)
        if info is None or not 0 <= iteration < len(info.graphs):
            return None
        return self._graphs.get(info.graphs[iteration])

    def graphs(self) -> list[Dependencies]:
        """The dependency graphs of all steps, each once, in the order of first appearance."""
        used = {number for info in self._infos.values() for number in info.graphs}
        return [graph for number, graph in self._graphs.items() if number in used]

    @cached_property
    def _graphs(self) -> dict[int, Dependencies]:
        return {graph.number: graph for graph in self._reader.dependencies()}

    def statistics(
        self,
        step: int,
        name: str,
        role: str = "",
        iteration: int = 1,
        loss: str | None = None,
        sample: int | None = None,
    ) -> dict[str, float]:
        """The statistics of a tensor by name: of all its values, or of one sample; empty if there are none.

        Of a tensor without a batch, one sample is all of it.
        """
        numbers = self._numbers(name, role, iteration, loss)
        if sample is None or self._lacks_batch(numbers, step):
            return self._histories.of(numbers).at(step)
        kept = self._values.at(numbers, step)
        if kept is not None and sample in kept.samples:
            place = int(np.flatnonzero(kept.samples == sample)[0])
            of_sample = statistics_of(kept.array[place : place + 1])
            return {name: float(values[0]) for name, values in of_sample.items()}
        _, samples, columns = self._recorded_samples(numbers, np.array([step]))
        mine = samples == sample
        return {name: float(column[mine][-1]) for name, column in columns.items()} if mine.any() else {}

    def values(
        self, step: int, name: str, role: str = "", iteration: int = 1, loss: str | None = None
    ) -> KeptValues | None:
        """The kept values of a tensor at one step, None if none were kept."""
        return self._values.at(self._numbers(name, role, iteration, loss), step)

    def has_samples(self, step: int, name: str, role: str = "", iteration: int = 1, loss: str | None = None) -> bool:
        """Whether a tensor has a batch, as far as is known: a parameter has none, nor has a loss."""
        return not self._lacks_batch(self._numbers(name, role, iteration, loss), step)

    def samples(
        self, steps: Ints, name: str, role: str = "", iteration: int = 1, loss: str | None = None
    ) -> tuple[dict[int, KeptValues], SampleRows]:
        """The samples of a tensor at some steps: their kept values by step, and statistics kept in place of values."""
        numbers = self._numbers(name, role, iteration, loss)
        values = {step: kept for part in self._values.all(numbers, steps) for step, kept in part.items()}
        return values, self._recorded_samples(numbers, steps)

    def history(  # noqa: PLR0913 -- what tells one curve from another
        self,
        name: str,
        statistic: str,
        role: str = "",
        iteration: int = 1,
        loss: str | None = None,
        sample: int | None = None,
        type: str | None = None,
    ) -> tuple[Ints, Floats]:
        """Steps and values of one statistic of a tensor, of all its values or of one sample, where there is one."""
        numbers = self._numbers(name, role, iteration, loss)
        of_type = [step for step, info in self._infos.items() if type in (None, info.type)]
        if sample is None or self._lacks_batch_at(numbers, of_type):
            steps, values = self._histories.of(numbers).curve(statistic)
        else:
            steps, samples, columns = self._samples.get(numbers, lambda: self._sampled(numbers))
            mine = samples == sample
            steps, values = steps[mine], columns.get(statistic, np.full(len(steps), np.nan))[mine]
        shown = np.isin(steps, of_type)
        return steps[shown], values[shown]

    def _numbers(self, name: str, role: str, iteration: int, loss: str | None) -> SeriesNumbers:
        """The series of a tensor: of a recorded one, else of a parameter."""
        kind = Kind.TENSOR if loss is None else Kind.TENSOR_GRAD
        bare, _, context = name.partition("@")  # as the graphs name what was recorded in a context
        key = (call_site(bare, iteration), gradient_port(role, loss or ""), kind.value, context)
        return self._series.get(key) or self._series.get((*self.of_parameter(name, role, loss), "")) or ()

    def of_parameter(self, name: str, role: str, loss: str | None) -> tuple[str, str, str]:
        """Site, port and kind of a parameter's weights, or of its gradient: what a loss added to it.

        Where losses have no names, that is the gradient as it was applied.
        """
        base = name.removesuffix(".")  # so marked where a recorded tensor has the name of the parameter's module
        site, word = f"{base}.{role}" if role else base, (Kind.WEIGHT if loss is None else Kind.WEIGHT_GRAD).value
        added = (site, gradient_port(word, loss or ""), Kind.TENSOR_GRAD.value)
        return added if loss or (loss is not None and (*added, "") in self._series) else (site, word, word)

    @cached_property
    def _series(self) -> dict[tuple[str, str, str, str], SeriesNumbers]:
        """The numbers of series by site, port, kind and context."""
        table = of_rank(self._reader.series(), self._rank)
        numbers: dict[tuple[str, str, str, str], SeriesNumbers] = {}
        columns = [table[name].to_pylist() for name in ("site", "port", "kind", "context", "series")]
        for site, port, kind, context, number in zip(*columns, strict=True):
            key = (site, port, kind, context)
            numbers[key] = (*numbers.get(key, ()), number)
        return numbers

    def _sampled(self, numbers: SeriesNumbers) -> SampleRows:
        """Statistics of every sample at every step: computed from values, else as they were recorded."""
        parts = [part for values in self._values.all(numbers) for part in sampled(values)]
        read = self._recorded_samples(numbers, None)
        steps, samples, columns = joined([*parts, *([read] if len(read.steps) else [])])
        order = np.argsort(steps, kind="stable")
        return SampleRows(steps[order], samples[order], {name: column[order] for name, column in columns.items()})

    def _recorded_samples(self, numbers: SeriesNumbers, steps: Ints | None) -> SampleRows:
        """Statistics of samples that were recorded in place of their values."""
        table = of_rank(self._reader.sample_stats(list(numbers), steps), self._rank)
        samples = table["samples"].to_pylist()
        statistics = np.concatenate([np.zeros((0, len(SAMPLE_STATISTICS))), *numbers_of(table)])
        places = np.array([sample for row in samples for sample in row], np.int64)
        step_of = np.repeat(tables.ints(table, "step"), [len(row) for row in samples])
        return SampleRows(step_of, places, dict(zip(SAMPLE_STATISTICS, statistics.T, strict=True)))

    def _lacks_batch(self, numbers: SeriesNumbers, step: int) -> bool:
        """Whether a tensor is known to have no samples."""
        kept = self._values.at(numbers, step)
        return numbers in self._parameters if kept is None else len(kept.samples) == 0

    def _lacks_batch_at(self, numbers: SeriesNumbers, steps: list[int]) -> bool:
        """The same for several steps: decided by the newest that has values or statistics over the batch."""
        if numbers in self._parameters:
            return True
        whole = self._histories.of(numbers)
        batched = set(whole.curve(BATCH_STATISTICS[0])[0].tolist())
        for step in reversed(whole.steps[np.isin(whole.steps, steps)].tolist()):
            if step in batched:
                return False
            if self._values.at(numbers, step) is not None:
                return self._lacks_batch(numbers, step)
        return False

    @cached_property
    def _parameters(self) -> set[SeriesNumbers]:
        kinds = (Kind.WEIGHT.value, Kind.WEIGHT_GRAD.value)
        added = (Kind.WEIGHT_GRAD.value, Kind.TENSOR_GRAD.value)  # what a loss added to a gradient
        return {
            numbers
            for (_, port, kind, _), numbers in self._series.items()
            if kind in kinds or (port.partition("@")[0], kind) == added
        }


def _infos(table: pa.Table) -> list[StepInfo]:
    columns = {name: table[name].to_pylist() for name in StepInfo.__slots__}
    columns |= {name: [tuple(json.loads(text or "[]")) for text in columns[name]] for name in _LISTS}
    return [StepInfo(*row) for row in zip(*columns.values(), strict=True)]
