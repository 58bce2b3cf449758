"""Evidence for the rules: histories of one kind as matrices, losses, skipped steps; read when a rule needs them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from layerscope.diagnose.findings import Evidence
from layerscope.model.records import CallGraph, Flags, Floats, Ints, Kind, Mode, name_in
from layerscope.query.history import History, read_history
from layerscope.query.run_tables import open_run
from layerscope.query.tables import curves_by_name

FEWEST_STEPS = 8  # recorded ones: with fewer, a median over time says little
BEGINNING = 5  # steps that stand for the level at the start
MOST_STEPS = 400  # evenly spaced steps of a longer run: medians stay the same, and it takes a fraction of the time

#: The moments that rules need of a kind. Spikes of gradients are sought in all steps, the rest is read thinned out.
COLUMNS = {
    Kind.OUTPUT: ("count", "zeros", "min", "max", "sum2"),
    Kind.OUTPUT_GRAD: ("sum2",),
    Kind.WEIGHT: ("sum", "sum2"),
    Kind.WEIGHT_GRAD: ("sum2", "zeros"),
}
UNTHINNED = (Kind.WEIGHT_GRAD,)


@dataclass(frozen=True, slots=True)
class SeriesInfo:
    """The series of one row of a matrix."""

    site: str
    port: str
    kind: Kind
    phase: str
    dtype: str
    shape: tuple[int, ...]
    number: int  # of its first series: they are numbered in the order in which they were first seen
    whole: bool  # all elements were looked at, not a sample of them
    context: str = ""


@dataclass(frozen=True, slots=True)
class KindHistories:
    """Histories of one kind: row i of a moment belongs to series[i], column j to steps[j]; NaN where nothing is."""

    series: tuple[SeriesInfo, ...]
    steps: Ints
    moments: dict[str, Floats]

    def where(self, kept: Iterable[bool]) -> KindHistories:
        """The flagged rows."""
        at = np.flatnonzero(list(kept))
        rows = {name: matrix[at] for name, matrix in self.moments.items()}
        return KindHistories(tuple(self.series[i] for i in at), self.steps, rows)

    def evidence(self, row: int, column: int, stat: str, value: float) -> Evidence:
        """One number as evidence."""
        series = self.series[row]
        return Evidence(series.site, series.kind.value, int(self.steps[column]), stat, float(value), series.context)


class RunEvidence:
    """The evidence of one run. `until` is the first step that is not finite: rules look only at steps before it."""

    def __init__(self, folder: Path) -> None:
        self.reader = open_run(folder)
        self._series = self.reader.series()
        self.series: list[dict[str, Any]] = self._series.to_pylist()  # Any: numbers, texts and a shape
        self.kinds = {Kind(row["kind"]) for row in self.series}
        self.until: int | None = None
        self._known: dict[Kind, KindHistories] = {}

    @cached_property
    def graph(self) -> CallGraph:
        """The modules and their calls, as far as they are known."""
        return self.reader.graph() or CallGraph(())

    @cached_property
    def classes(self) -> dict[str, str]:
        """The class of each module."""
        return {module.path: module.class_name for module in self.graph.modules}

    def class_of(self, site: str) -> str:
        """The class of the module that a site is a call or a parameter of; "" where it is not known."""
        path = name_in(site, self.classes)
        return self.classes.get(path) or self.classes.get(path.rpartition(".")[0], "")

    def called(self, site: str, context: str = "") -> str:
        """A site in a sentence: with the class of its module and its context."""
        name = self.class_of(site)
        return f"{site!r}{f' ({name})' if name else ''}{f' in context {context!r}' if context else ''}"

    @cached_property
    def finiteness(self) -> History:
        """Of every series and step how many elements there were, and how many of them were finite."""
        return read_history(self.reader, self._series, columns=("count", "finite"))

    @cached_property
    def recorded(self) -> Ints:
        """The steps of which summaries were recorded."""
        return np.unique(self.finiteness.steps)

    def moments(self, rows: Flags, columns: tuple[str, ...]) -> History:
        """Moments of the series and steps that some rows of `finiteness` are of; owners are rows of `series`."""
        owners = np.unique(self.finiteness.owner[rows])
        steps = np.unique(self.finiteness.steps[rows])
        history = read_history(self.reader, self._series.take(pa.array(owners)), steps, columns=columns)
        return replace(history, owner=owners[history.owner])

    @cached_property
    def skipped(self) -> dict[int, str]:
        """The recorded steps whose update was not made, and the message about each."""
        rows = self.reader.events().select(["step", "level", "text"]).to_pylist()
        return {row["step"]: row["text"] for row in rows if row["level"] == "skipped"}

    @property
    def losses(self) -> dict[str, tuple[Ints, Floats]]:
        """Steps and values of every metric with "loss" in its name, up to where something was not finite."""
        if self.until is None:
            return self._losses
        return {
            name: (steps[steps < self.until], loss[steps < self.until]) for name, (steps, loss) in self._losses.items()
        }

    @cached_property
    def _losses(self) -> dict[str, tuple[Ints, Floats]]:
        curves = curves_by_name(self.reader.metrics())
        return {name: curve for name, curve in curves.items() if "loss" in name.lower() and "scale" not in name.lower()}

    @property
    def steps(self) -> Ints:
        """The recorded steps that rules look at: those before anything was not finite."""
        return self.recorded if self.until is None else self.recorded[self.recorded < self.until]

    def histories(self, kind: Kind) -> KindHistories:
        """The histories of a kind in training mode, up to where something was not finite."""
        if kind not in self._known:
            steps = self.steps if kind in UNTHINNED else _thinned(self.steps)
            rows = self._of_kind(kind, Mode.TRAIN)
            read = None if len(steps) == len(self.recorded) else steps
            history = read_history(self.reader, self._series.take(pa.array(rows)), read, columns=COLUMNS[kind])
            self._known[kind] = self._matrices(rows, history, steps, COLUMNS[kind])
        return self._known[kind]

    def custom(self, kind: Kind, name: str) -> KindHistories:
        """One custom statistic of a kind, thinned out."""
        steps, rows = _thinned(self.steps), self._of_kind(kind)
        history = read_history(self.reader, self._series.take(pa.array(rows)), steps, columns=None, custom=[name])
        return self._matrices(rows, history, steps, (name,))

    def sampled(self, kind: Kind) -> list[str]:
        """The sites that were only sampled in training mode: never with all their elements."""
        return list(dict.fromkeys(series.site for series in self.histories(kind).series if not series.whole))

    def _of_kind(self, kind: Kind, mode: Mode | None = None) -> Ints:
        """The rows of `series` that are of a kind."""
        chosen = [row["kind"] == kind.value and (mode is None or row["mode"] == mode.value) for row in self.series]
        return np.flatnonzero(chosen)

    @cached_property
    def _most_elements(self) -> list[int]:
        """For each series the largest number of elements in one of its summaries."""
        most = np.zeros(len(self.series), np.int64)
        np.maximum.at(most, self.finiteness.owner, self.finiteness.moments["count"].astype(np.int64))
        return most.tolist()

    def _matrices(self, rows: Ints, history: History, steps: Ints, columns: tuple[str, ...]) -> KindHistories:
        """One row for each tensor and context; series that differ in the data type only are one history."""
        infos: dict[tuple[object, ...], tuple[int, SeriesInfo]] = {}
        matrix_row = np.zeros(len(rows), np.int64)
        for index, number in enumerate(rows.tolist()):
            row = self.series[number]
            key = tuple(row[name] for name in ("rank", "site", "port", "phase", "context"))
            matrix_row[index] = infos.setdefault(key, (len(infos), self._info(number)))[0]
        matrices = {name: np.full((len(infos), len(steps)), np.nan) for name in columns}
        for name, matrix in matrices.items():
            owner, of_step, values = history.points(name)
            column = np.searchsorted(steps, of_step)
            inside = column < len(steps)  # not recorded after the steps were listed
            matrix[matrix_row[owner[inside]], column[inside]] = values[inside]
        return KindHistories(tuple(info for _, info in infos.values()), steps, matrices)

    def _info(self, number: int) -> SeriesInfo:
        """A row of `series` as a record; its shape is that of its first summary, so later ones may be smaller."""
        row = self.series[number]
        shape = tuple(row["shape"])
        whole = not 0 < self._most_elements[number] < math.prod(shape)
        names = (row["site"], row["port"], Kind(row["kind"]), row["phase"], row["dtype"])
        return SeriesInfo(*names, shape, row["series"], whole, row["context"])


def medians(matrix: Floats) -> Floats:
    """The median of each row without its NaN; NaN of a row that has nothing else."""
    result = np.full(len(matrix), np.nan)
    some = ~np.isnan(matrix).all(axis=1)
    result[some] = np.nanmedian(matrix[some], axis=1)
    return result


def _thinned(steps: Ints) -> Ints:
    if len(steps) <= MOST_STEPS:
        return steps
    return steps[np.linspace(0, len(steps) - 1, MOST_STEPS).astype(np.int64)]
