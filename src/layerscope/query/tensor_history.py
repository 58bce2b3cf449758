"""What was read of named tensors, held for the next question: statistics by series, values by series and step."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from layerscope.model import summary_spec
from layerscope.model.records import BATCH_STATISTICS, SINGULAR_MAX, Floats, Ids, Ints
from layerscope.query import tables
from layerscope.stats import derived
from layerscope.store.reader import Reader
from layerscope.store.record_batches import arrays_of

_Found = TypeVar("_Found")
Numbers = tuple[int, ...]  # of the series of one tensor: there are several where its type or mode changed
_ROWS_AT_ONCE = 2_048  # of moments: they lie together on disk, and cost little more to read than one of them
_BLOCKS = 32
_SERIES = 64  # whose values or statistics are held
_SERIES_BYTES = 2 << 20  # of values at all steps, beyond which they are read step by step
_BYTES_AT_ONCE = 32 << 20
_STEPS = 32  # whose values are held, of series that are larger


@dataclass(frozen=True, slots=True)
class KeptValues:
    """The values of a named tensor at one step."""

    samples: Ids  # which ones, by their places in the batch; none where the tensor has no batch
    array: npt.NDArray[Any]  # as recorded, the samples first


class LRUCache(OrderedDict[Any, Any]):  # Any: keys and what was found by them, of one kind in each
    """What was found before, the least recently asked for forgotten first."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def get_or(self, key: object, find: Callable[[], _Found]) -> _Found:
        """What is held by the key, or is found now."""
        if key in self:
            self.move_to_end(key)
            held: _Found = self[key]
            return held
        self[key] = found = find()
        if len(self) > self._most:
            self.popitem(last=False)
        return found


@dataclass(frozen=True, slots=True)
class TensorHistory:
    """Summaries of one tensor, a row for each step, and what was recorded beside them."""

    steps: Ints
    moments: Mapping[str, Floats]
    beside: Mapping[str, tuple[Ints, Floats]]  # steps and values of further statistics

    def at(self, step: int) -> dict[str, float]:
        """Every statistic at one step."""
        found: dict[str, float] = {}
        places = np.flatnonzero(self.steps == step)[-1:]
        if len(places):
            row = {name: column[places] for name, column in self.moments.items()}
            found = {name: float(derived.statistic(name, row.__getitem__)[0]) for name in derived.STATS}
        for name, (steps, values) in self.beside.items():
            there = values[steps == step]
            if len(there):
                found[name] = float(there[-1])
        return found

    def curve(self, statistic: str) -> tuple[Ints, Floats]:
        """Steps and values of one statistic."""
        if statistic in derived.STATS:
            return self.steps, derived.statistic(statistic, self.moments.__getitem__)
        return self.beside.get(statistic, (np.zeros(0, np.int64), np.zeros(0)))


class Statistics:
    """Statistics over all values, read a block of neighboring series at a time."""

    def __init__(self, reader: Reader, rank: int, steps: int) -> None:
        self._reader = reader
        self._rank = rank
        self._width = max(_ROWS_AT_ONCE // max(steps, 1), 1)
        self._blocks, self._wholes = LRUCache(_BLOCKS), LRUCache(_SERIES)

    def of(self, numbers: Numbers) -> TensorHistory:
        """The summaries of a tensor at every step."""
        return self._wholes.get_or(numbers, lambda: self._united(numbers))

    def _united(self, numbers: Numbers) -> TensorHistory:
        parts = [self._of(number) for number in numbers]
        if not parts:
            return TensorHistory(np.zeros(0, np.int64), dict.fromkeys(summary_spec.MOMENTS, np.zeros(0)), {})
        if len(parts) == 1:
            return parts[0]
        names = dict.fromkeys(name for part in parts for name in part.beside)
        steps, moments = _in_order(
            [(part.steps, [part.moments[name] for name in summary_spec.MOMENTS]) for part in parts]
        )
        beside = {
            name: _in_order([(part.beside[name][0], [part.beside[name][1]]) for part in parts if name in part.beside])
            for name in names
        }
        return TensorHistory(
            steps,
            dict(zip(summary_spec.MOMENTS, moments, strict=True)),
            {name: (own_steps, own[0]) for name, (own_steps, own) in beside.items()},
        )

    def _of(self, number: int) -> TensorHistory:
        block = number // self._width
        moments, custom = (_of_series(table, number) for table in self._blocks.get_or(block, lambda: self._read(block)))
        curves = tables.curves_by_name(custom)
        beside = {name: curves[name] for name in (*BATCH_STATISTICS, SINGULAR_MAX, *curves) if name in curves}
        return TensorHistory(tables.ints(moments, "step"), tables.moments_of(moments), beside)

    def _read(self, block: int) -> tuple[pa.Table, pa.Table]:
        numbers = np.arange(block * self._width, (block + 1) * self._width)
        custom = of_rank(self._reader.custom_statistics(numbers), self._rank)  # first: they are written after moments
        return of_rank(self._reader.moments(numbers), self._rank), custom


class ValueBlock:
    """Kept values: those of a small series all at once, those of a large one step by step."""

    def __init__(self, reader: Reader, rank: int, steps: Ints) -> None:
        self._reader = reader
        self._rank = rank
        self._steps = steps
        self._bytes: dict[Numbers, int] = {}  # of one step, where that was seen
        self._series, self._arrays = LRUCache(_SERIES), LRUCache(_STEPS)

    def at(self, numbers: Numbers, step: int) -> KeptValues | None:
        """The values at one step; of several series that have any, the last."""
        if not numbers:
            return None
        if (numbers, step) not in self._arrays and self._is_small(numbers):
            return self._whole(numbers).get(step)
        kept: KeptValues | None = self._arrays.get_or(
            (numbers, step), lambda: self._read(numbers, np.array([step])).get(step)
        )
        if kept is not None:
            self._bytes[numbers] = kept.array.nbytes
        return kept

    def all(self, numbers: Numbers, steps: Ints | None = None) -> Iterator[dict[int, KeptValues]]:
        """The values at every step, or at some, a bounded number of bytes at a time."""
        wanted = self._steps if steps is None else steps
        if self._is_small(numbers):
            whole = self._whole(numbers)
            yield whole if steps is None else {step: whole[step] for step in wanted.tolist() if step in whole}
            return
        first, at_once = 0, _STEPS
        while numbers and first < len(wanted):
            found = self._read(numbers, wanted[first : first + at_once])
            yield found
            first += at_once
            size = max((kept.array.nbytes for kept in found.values()), default=0)
            at_once = max(_BYTES_AT_ONCE // size, 1) if size else at_once

    def _is_small(self, numbers: Numbers) -> bool:
        return numbers in self._series or self._bytes.get(numbers, _SERIES_BYTES) * len(self._steps) < _SERIES_BYTES

    def _whole(self, numbers: Numbers) -> dict[int, KeptValues]:
        return self._series.get_or(numbers, lambda: self._read(numbers, None))

    def _read(self, numbers: Numbers, steps: Ints | None) -> dict[int, KeptValues]:
        table = of_rank(self._reader.values(list(numbers), steps), self._rank)
        samples = [np.array(row, np.int32) for row in table["samples"].to_pylist()]
        return dict(zip(tables.ints(table, "step").tolist(), map(KeptValues, samples, arrays_of(table)), strict=True))


def of_rank(table: pa.Table, rank: int) -> pa.Table:
    """The rows of one rank."""
    ranks = tables.ints(table, "rank")
    return table if (ranks == rank).all() else table.filter(pa.array(ranks == rank))


def _of_series(table: pa.Table, number: int) -> pa.Table:
    """The rows of one series, of a table that is sorted by series."""
    first, last = np.searchsorted(tables.ints(table, "series"), (number, number + 1))
    return table.slice(first, last - first)


def _in_order(parts: list[tuple[Ints, list[Floats]]]) -> tuple[Ints, list[Floats]]:
    """Columns of several parts in one, by step."""
    steps = np.concatenate([np.zeros(0, np.int64), *(part[0] for part in parts)])
    order = np.argsort(steps, kind="stable")
    columns = [np.concatenate(column)[order] for column in zip(*(part[1] for part in parts), strict=True)]
    return steps[order], columns
