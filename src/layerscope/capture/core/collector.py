"""The step in progress: which series have which summaries, and its metrics, until the step ends."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, SupportsFloat

import numpy as np

from layerscope.capture.core.named_tensors import StepData
from layerscope.errors import ArgumentError
from layerscope.model.records import CustomStatistics, Kind, Mode, Phase, Series, Sink, Summaries
from layerscope.stats import merging
from layerscope.stats.kernel import Arena

COLUMNS = ("step", "time_s", "type")  # of every table of metrics


class MetricReader:
    """Checks the names of metrics, which SQL compares without case, and turns their values into floats."""

    def __init__(self) -> None:
        self._names: set[str] = set()  # that were checked
        self._spelling: dict[str, str] = {}  # by their names in lower case

    def read(self, metrics: Mapping[str, SupportsFloat]) -> dict[str, float]:
        """The metrics as floats."""
        if not metrics.keys() <= self._names:
            for name in metrics:
                self._check(name)
        return {name: _number(name, value) for name, value in metrics.items()}

    def _check(self, name: str) -> None:
        if name in COLUMNS:
            raise ArgumentError(
                f"A metric cannot be called {name!r}: every table of metrics has a column of that name. Rename it."
            )
        first = self._spelling.setdefault(name.lower(), name)
        if first != name:
            raise ArgumentError(
                f"The metrics {first!r} and {name!r} differ only in case, which SQL ignores. Rename one of them."
            )
        self._names.add(name)


def _number(name: str, value: SupportsFloat) -> float:
    # A tensor that requires grad warns when it is turned into a number, but not when it is asked for its item.
    item = getattr(value, "item", None)
    try:
        return float(value if item is None else item())
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentError(
            f"Metric {name!r} is not one number but {type(value).__name__} ({error}). Give a float."
        ) from error


Rows = dict[int, list[int]]  # series → rows of the arena
Identity = tuple[str, str, Kind, Mode, Phase, str, str, str]  # the last: context, local part and data type


class EndedSteps:
    """The last `keep_last` steps that were not recorded, but may still be."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._steps: deque[StepData] = deque()

    def add(self, ended: StepData) -> None:
        """Keep a step in memory until it is too old."""
        self._steps.append(ended)
        self.remove_before(ended.step - self.size + 1)

    def remove_from(self, first: int) -> list[StepData]:
        """Remove and return the steps from the given number on."""
        removed: list[StepData] = []
        while self._steps and self._steps[-1].step >= first:
            removed.insert(0, self._steps.pop())
        return removed

    def remove_before(self, step: int) -> None:
        """Remove older steps."""
        while self._steps and self._steps[0].step < step:
            self._steps.popleft()


class Collector:
    """Summaries of the step in progress.

    A tensor is summarized once and may belong to several series: a container's output is its last child's. A series
    may have several tensors, such as one per micro-batch: they are added up when the step ends.
    """

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self.arena = Arena()  # takes turns by itself
        self._numbers: dict[Identity, int] = {}
        self._rows: Rows = {}
        self.aside: Hashable | None = None  # what the next rows belong to, if it may be something else than the step
        self._aside: dict[Any, Rows] = {}
        self._late: dict[int, Rows] = {}  # rows of other steps than the one in progress
        self._custom: dict[int, dict[str, float]] = {}
        self._phases: dict[int, Phase | None] = {}  # of series that a scale may be on
        self._lock = threading.Lock()  # forward hooks may run in several threads

    def count(self, row: int, identity: Identity, shape_of: Callable[[Any], tuple[int, ...]], tensor: Any) -> None:
        """Count a summary in the arena into a series; the shape is asked for when the series is new."""
        with self._lock:
            number = self._numbers.get(identity)
            if number is None:
                number = self._add(identity, shape_of(tensor))
            rows = self._rows if self.aside is None else self._aside.setdefault(self.aside, {})
            rows.setdefault(number, []).append(row)

    def number(self, identity: Identity, shape: tuple[int, ...]) -> int:
        """Number of a series."""
        with self._lock:
            number = self._numbers.get(identity)
            return self._add(identity, shape) if number is None else number

    def count_into(self, number: int, row: int) -> None:
        """Count a summary into a series whose number is known."""
        with self._lock:
            self._rows.setdefault(number, []).append(row)

    def _add(self, identity: Identity, shape: tuple[int, ...]) -> int:
        site, port, kind, mode, phase, context, local, dtype = identity
        series = Series(site, port, kind, mode, phase, dtype, shape, context, local)
        number = self._numbers[identity] = self.sink.series_id(series)
        self._phases[number] = _scaled_at(identity)
        return number

    def add_custom(self, row: int, name: str, value: float) -> None:
        """Keep a number that a summary does not hold with the tensor of the row."""
        with self._lock:
            self._custom.setdefault(row, {})[name] = value

    def has_rows(self, *, aside: bool = True) -> bool:
        """Whether anything was counted in the step in progress, or put aside."""
        return bool(self._rows or (aside and self._aside))

    def put_aside(self) -> list[Any]:
        """What rows were put aside for."""
        return list(self._aside)

    def settle(self, own: Iterable[Hashable], apart: Iterable[tuple[int, Any]]) -> None:
        """Of the rows that were put aside, let some belong to the step in progress and some to the step they name."""
        with self._lock:
            for key in own:
                _join(self._rows, self._aside[key])
            for key in apart:
                _join(self._late.setdefault(key[0], {}), self._aside[key])
            self._aside = {}
            self.aside = None

    def discard(self) -> None:
        """Forget the step in progress."""
        with self._lock:
            if len(self.arena):
                self._put_late(self.arena.drain(), self._custom)
            self._rows, self._aside, self._custom, self.aside = {}, {}, {}, None

    def _put_late(self, summaries: merging.Encoded, custom: Mapping[int, Mapping[str, float]]) -> None:
        late, self._late = self._late, {}
        for step, rows in late.items():
            self.sink.put(_gathered(step, rows, summaries, {}))
            if custom:
                self.sink.put(_custom(step, rows, custom))

    def finish(self, data: StepData, scales: Mapping[Phase, float | None]) -> None:
        """Add the summaries to the step, and start over.

        `scales` are the factors that were on gradients, by when these were read: they are divided by them, and left out
        if the factor is not known.
        """
        with self._lock:
            rows, self._rows = self._rows, {}
            custom, self._custom = self._custom, {}
            summaries = self.arena.drain()
            self._put_late(summaries, custom)
        if any(scale != 1.0 for scale in scales.values()):
            scale_of = {n: scales.get(phase, 1.0) if (phase := self._phases[n]) else 1.0 for n in rows}
            factors = {number: scale for number, scale in scale_of.items() if scale is not None}
            rows = {number: rows[number] for number in factors}
        else:
            factors = {}
        if rows:
            record = _gathered(data.step, rows, summaries, factors)
            data.records.append(record)
            data.summaries, data.bytes = len(summaries.m), data.bytes + record.moments.nbytes + record.bits.nbytes
            if custom:
                data.records.append(_custom(data.step, rows, custom))


def _join(rows: Rows, others: Rows) -> None:
    for number, members in others.items():
        rows.setdefault(number, []).extend(members)


def _scaled_at(identity: Identity) -> Phase | None:
    """When the gradients of a series were read, if a scale may have been on them then."""
    _, _, kind, _, phase, _, _, _ = identity
    return phase if phase is Phase.BACKWARD or (kind, phase) == (Kind.WEIGHT_GRAD, Phase.STEP) else None


def _gathered(step: int, rows: Rows, summaries: merging.Encoded, factors: Mapping[int, float]) -> Summaries:
    """The step's record: a series with the very rows of another is an alias of it, behind those that are none."""
    owners: dict[tuple[int, ...], int] = {}
    aliases: dict[int, int] = {}
    for number, members in rows.items():
        owner = owners.setdefault(tuple(members), number)
        if owner != number:
            aliases[number] = owner
    if any(len(group) > 1 for group in owners):
        summaries = merging.add_up(summaries, list(owners))
    elif [*owners] != [(row,) for row in range(len(summaries.m))]:
        summaries = merging.take(summaries, np.array([row for (row,) in owners]))
    numbers = np.array([*owners.values(), *aliases], np.int32)
    scale = np.ones(len(numbers))
    if factors:
        scale = np.array([factors[number] for number in numbers.tolist()])
        summaries = merging.divided(summaries, scale[: len(owners)])
    return Summaries(
        step,
        numbers,
        *merging.lengthened(summaries, len(aliases)),
        alias=np.array([*[-1] * len(owners), *aliases.values()], np.int32),
        scale=scale,
        merged=np.array([len(rows[number]) for number in numbers.tolist()], np.int32),
    )


def _custom(step: int, rows: Rows, custom: Mapping[int, Mapping[str, float]]) -> CustomStatistics:
    """The numbers of each series; of several tensors in the step, their mean."""
    series, names, means = [], [], []
    for number, members in rows.items():
        known = [custom[row] for row in members if row in custom]
        for name in dict.fromkeys(name for numbers in known for name in numbers):
            values = [numbers[name] for numbers in known if name in numbers]
            series.append(number)
            names.append(name)
            means.append(sum(values) / len(values))
    return CustomStatistics(step, np.array(series, np.int32), tuple(names), np.array(means, np.float64))
