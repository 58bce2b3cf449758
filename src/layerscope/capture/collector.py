"""The step in progress: which series have which summaries, until the step ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from layerscope.capture.dependencies import Dependence
from layerscope.records import Extras, Floats, Kind, Mode, Reading, Record, Series, Sink, Summaries
from layerscope.stats import combine
from layerscope.stats.kernel import Arena

Identity = tuple[str, str, Kind, Mode, Reading, str]
AddTensor = Callable[[Arena, Any], int]  # Any: each framework hands in its own tensors


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

    def __init__(self, sink: Sink, add_tensor: AddTensor) -> None:
        self._sink = sink
        self._add_tensor = add_tensor
        self.arena = Arena()  # takes turns by itself
        self._numbers: dict[Identity, int] = {}
        self._rows: dict[int, list[int]] = {}
        self._extras: dict[int, dict[str, float]] = {}
        self._readings: dict[int, Reading | None] = {}  # of series that a scale may be on
        self._lock = threading.Lock()  # forward hooks may run in several threads

    def summarise(self, tensor: object) -> int:
        """Row of the tensor's summary, which is in no series yet."""
        return self._add_tensor(self.arena, tensor)

    def count(self, row: int, identity: Identity, shape: tuple[int, ...]) -> None:
        """Count a summary into a series."""
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
            number = self._numbers[identity] = self._sink.series_id(Series(*identity, shape))
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
        factors = np.ones(len(rows))
        if any(scale != 1.0 for scale in scales.values()):
            scale_of = {n: scales.get(reading, 1.0) if (reading := self._readings[n]) else 1.0 for n in rows}
            rows = {number: members for number, members in rows.items() if scale_of[number] is not None}
            factors = np.array([scale_of[number] for number in rows], np.float64)
        if not rows:
            return Taken(0, 0)
        record = _gathered(step, rows, summaries, factors)
        records = (record, _extras(step, rows, extras)) if extras else (record,)
        return Taken(len(summaries.m), record.moments.nbytes + record.bits.nbytes, records)


def _scaled_at(identity: Identity) -> Reading | None:
    """When the gradients of a series were read, if a scale may have been on them then."""
    _, _, kind, _, reading, _ = identity
    return reading if reading is Reading.BACKWARD or (kind, reading) == (Kind.WEIGHT_GRAD, Reading.STEP) else None


def _gathered(step: int, rows: dict[int, list[int]], summaries: combine.Encoded, scales: Floats) -> Summaries:
    """The step's record: a series with the very rows of another is an alias of it."""
    numbers = np.fromiter(rows, np.int32, len(rows))
    if [*rows.values()] == [[row] for row in range(len(summaries.m))] and (scales == 1).all():  # in order, each once
        ones = np.ones(len(rows), np.int32)
        return Summaries(step, numbers, *summaries, -ones, scales, ones)
    groups = {number: tuple(members) for number, members in rows.items()}
    owners: dict[tuple[int, ...], int] = {}
    for number, group in groups.items():
        owners.setdefault(group, number)
    if any(len(group) > 1 for group in owners):
        summaries = combine.add_up(summaries, list(owners))
        place = {group: index for index, group in enumerate(owners)}
    else:
        place = {group: group[0] for group in owners}
    own = [owners[group] == number for number, group in groups.items()]
    picked = combine.take(
        summaries, np.array([place[g] if mine else -1 for g, mine in zip(groups.values(), own, strict=True)])
    )
    if (scales != 1).any():
        picked = combine.divided(picked, scales)
    alias = [-1 if mine else owners[group] for group, mine in zip(groups.values(), own, strict=True)]
    return Summaries(
        step=step,
        series=numbers,
        moments=picked.moments,
        m=picked.m,
        offsets=picked.offsets,
        bits=picked.bits,
        alias=np.array(alias, np.int32),
        scale=scales,
        merged=np.array([len(group) for group in groups.values()], np.int32),
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
