"""The step in progress: which series have which summaries, until the step ends."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from layerscope.capture.dependencies import Dependence
from layerscope.records import Extras, Kind, Mode, Reading, Record, Series, Sink, Summaries
from layerscope.stats import combine
from layerscope.stats.kernel import Arena

Identity = tuple[str, str, Kind, Mode, Reading, str, str, str]  # the last: context, local part and data type


class Taken(NamedTuple):
    """What a step came to."""

    summaries: int
    bytes: int
    records: tuple[Record, ...] = ()
    dependence: Dependence | None = None  # between tensors that were named, if any were


class Collector:
    """Summaries of the step in progress.

    A tensor is summarised once and may belong to several series: a container's output is its last child's. A series
    may have several tensors, such as one per micro-batch: they are added up when the step ends.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.arena = Arena()  # takes turns by itself
        self._numbers: dict[Identity, int] = {}
        self._rows: dict[int, list[int]] = {}
        self._extras: dict[int, dict[str, float]] = {}
        self._readings: dict[int, Reading | None] = {}  # of series that a scale may be on
        self._lock = threading.Lock()  # forward hooks may run in several threads

    def count(self, row: int, identity: Identity, shape: tuple[int, ...]) -> None:
        """Count a summary in the arena into a series."""
        with self._lock:
            self._rows.setdefault(self._number(identity, shape), []).append(row)

    def number(self, identity: Identity, shape: tuple[int, ...]) -> int:
        """Number of a series."""
        with self._lock:
            return self._number(identity, shape)

    def count_into(self, number: int, row: int) -> None:
        """Count a summary into a series whose number is known."""
        with self._lock:
            self._rows.setdefault(number, []).append(row)

    def _number(self, identity: Identity, shape: tuple[int, ...]) -> int:
        number = self._numbers.get(identity)
        if number is None:
            site, port, kind, mode, reading, context, local, dtype = identity
            series = Series(site, port, kind, mode, reading, dtype, tuple(shape), context, local)
            number = self._numbers[identity] = self._sink.series_id(series)
            self._readings[number] = _scaled_at(identity)
        return number

    def add_extra(self, row: int, name: str, value: float) -> None:
        """Keep a number that a summary does not hold with the tensor of the row."""
        with self._lock:
            self._extras.setdefault(row, {})[name] = value

    def put(self, record: Record) -> None:
        """Hand a record of another kind to the sink."""
        self._sink.put(record)

    def has_rows(self) -> bool:
        """Whether anything was counted in the step in progress."""
        return bool(self._rows)

    def discard(self) -> None:
        """Forget the step in progress."""
        with self._lock:
            self._rows, self._extras = {}, {}
            if len(self.arena):
                self.arena.drain()

    def finish(self, step: int, scales: Mapping[Reading, float | None] = MappingProxyType({})) -> Taken:
        """The step's summaries; and start over.

        `scales` are the factors that were on gradients, by when these were read: they are divided by them, and left out
        if the factor is not known.
        """
        with self._lock:
            rows, self._rows = self._rows, {}
            extras, self._extras = self._extras, {}
            summaries = self.arena.drain()
        if any(scale != 1.0 for scale in scales.values()):
            scale_of = {n: scales.get(reading, 1.0) if (reading := self._readings[n]) else 1.0 for n in rows}
            factors = {number: scale for number, scale in scale_of.items() if scale is not None}
            rows = {number: rows[number] for number in factors}
        else:
            factors = {}
        if not rows:
            return Taken(0, 0)
        record = _gathered(step, rows, summaries, factors)
        records = (record, _extras(step, rows, extras)) if extras else (record,)
        return Taken(len(summaries.m), record.moments.nbytes + record.bits.nbytes, records)


def _scaled_at(identity: Identity) -> Reading | None:
    """When the gradients of a series were read, if a scale may have been on them then."""
    _, _, kind, _, reading, _, _, _ = identity
    return reading if reading is Reading.BACKWARD or (kind, reading) == (Kind.WEIGHT_GRAD, Reading.STEP) else None


def _gathered(
    step: int, rows: dict[int, list[int]], summaries: combine.Encoded, factors: Mapping[int, float]
) -> Summaries:
    """The step's record: a series with the very rows of another is an alias of it, behind those that are none."""
    owners: dict[tuple[int, ...], int] = {}
    aliases: dict[int, int] = {}
    for number, members in rows.items():
        owner = owners.setdefault(tuple(members), number)
        if owner != number:
            aliases[number] = owner
    if any(len(group) > 1 for group in owners):
        summaries = combine.add_up(summaries, list(owners))
    elif [*owners] != [(row,) for row in range(len(summaries.m))]:
        summaries = combine.take(summaries, np.array([row for (row,) in owners]))
    numbers = np.array([*owners.values(), *aliases], np.int32)
    scale = np.ones(len(numbers))
    if factors:
        scale = np.array([factors[number] for number in numbers.tolist()])
        summaries = combine.divided(summaries, scale[: len(owners)])
    return Summaries(
        step,
        numbers,
        *combine.lengthened(summaries, len(aliases)),
        alias=np.array([*[-1] * len(owners), *aliases.values()], np.int32),
        scale=scale,
        merged=np.array([len(rows[number]) for number in numbers.tolist()], np.int32),
    )


def _extras(step: int, rows: dict[int, list[int]], extras: Mapping[int, Mapping[str, float]]) -> Extras:
    """The numbers of each series; of several tensors in the step, their mean."""
    series, names, means = [], [], []
    for number, members in rows.items():
        held = [extras[row] for row in members if row in extras]
        for name in dict.fromkeys(name for numbers in held for name in numbers):
            values = [numbers[name] for numbers in held if name in numbers]
            series.append(number)
            names.append(name)
            means.append(sum(values) / len(values))
    return Extras(step, np.array(series, np.int32), tuple(names), np.array(means, np.float64))
