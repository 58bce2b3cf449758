"""What the rules look at: histories of one kind as matrices, losses, skipped steps; read as far as they are needed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from layerscope.diagnose.findings import Evidence
from layerscope.model.records import CallGraph, Floats, Ints, Kind, Mode, name_in
from layerscope.query.tables import rows_of_each
from layerscope.store.columns import values
from layerscope.store.reader import Reader

FEWEST_STEPS = 8  # recorded ones: with fewer, a median over time says little
BEGINNING = 5  # steps that stand for the level at the start
MOST_STEPS = 400  # of a longer run so many, spread evenly: medians stay the same, and it takes a fraction of the time

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
    """What one row of a matrix is the history of."""

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
    """Histories of one kind: row i of a moment belongs to places[i], column j to steps[j]; NaN where nothing is."""

    places: tuple[SeriesInfo, ...]
    steps: Ints
    moments: dict[str, Floats]

    def where(self, kept: Iterable[bool]) -> KindHistories:
        """Only the rows to be kept."""
        at = np.flatnonzero(list(kept))
        rows = {name: matrix[at] for name, matrix in self.moments.items()}
        return KindHistories(tuple(self.places[i] for i in at), self.steps, rows)

    def evidence(self, row: int, column: int, stat: str, value: float) -> Evidence:
        """One number as evidence."""
        place = self.places[row]
        return Evidence(place.site, place.kind.value, int(self.steps[column]), stat, float(value), place.context)


class RunEvidence:
    """One run as rules see it. `until` is set once it is known: from that step on nothing but the cause counts."""

    def __init__(self, folder: Path) -> None:
        self.reader = Reader(folder)
        self.series: list[dict[str, Any]] = self.reader.series().to_pylist()  # Any: numbers, texts and a shape
        self.kinds = {Kind(row["kind"]) for row in self.series}
        self.until: int | None = None
        self._known: dict[Kind, KindHistories] = {}

    @cached_property
    def known(self) -> dict[tuple[int, int], dict[str, Any]]:
        """The series by rank and number."""
        return {(row["rank"], row["series"]): row for row in self.series}

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
        """A site as sentences name it: with its class, for a number in a Sequential tells nothing, and its context."""
        name = self.class_of(site)
        return f"{site!r}{f' ({name})' if name else ''}{f' in context {context!r}' if context else ''}"

    @cached_property
    def finiteness(self) -> pa.Table:
        """Of every row how many elements it has, and how many of them are finite."""
        return self.reader.moments(None, None, ["count", "finite"])

    @cached_property
    def recorded(self) -> Ints:
        """The steps of which summaries were recorded."""
        return np.unique(values(self.finiteness["step"]))

    @cached_property
    def skipped(self) -> dict[int, str]:
        """The recorded steps whose update was not made, and what was said about each."""
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
        table = self.reader.metrics()
        steps, numbers = values(table["step"]), values(table["value"])
        return {
            name: (steps[mine], numbers[mine])
            for (name,), mine in rows_of_each(table, "name").items()
            if "loss" in name.lower() and "scale" not in name.lower()
        }

    @property
    def steps(self) -> Ints:
        """The recorded steps that rules look at: those before anything was not finite."""
        return self.recorded if self.until is None else self.recorded[self.recorded < self.until]

    def histories(self, kind: Kind) -> KindHistories:
        """The histories of a kind in training mode, up to where something was not finite."""
        if kind not in self._known:
            steps = self.steps if kind in UNTHINNED else _thinned(self.steps)
            chosen = [row for row in self._chosen(kind) if row["mode"] == Mode.TRAIN.value]
            numbers = np.array([row["series"] for row in chosen], np.int32)
            wanted = None if len(steps) == len(self.recorded) else steps
            table = self.reader.moments(numbers, wanted, COLUMNS[kind])
            self._known[kind] = _matrices(table, chosen, steps, COLUMNS[kind])
        return self._known[kind]

    def own(self, kind: Kind, name: str) -> KindHistories:
        """One custom statistic of a kind, thinned out."""
        steps = _thinned(self.steps)
        chosen = self._chosen(kind)
        table = self.reader.custom_statistics(np.array([row["series"] for row in chosen], np.int32), steps, [name])
        return _matrices(table.append_column(name, table.column("value")), chosen, steps, (name,))

    def sampled(self, kind: Kind) -> list[str]:
        """The sites of which, in training mode, only a part of the elements was ever looked at."""
        return list(dict.fromkeys(place.site for place in self.histories(kind).places if not place.whole))

    def _chosen(self, kind: Kind) -> list[dict[str, Any]]:
        """The series of a kind; the shape of one is that of its first row, so later ones may be smaller than it."""
        return [
            {**row, "whole": not 0 < self._most_elements.get((row["rank"], row["series"]), 0) < math.prod(row["shape"])}
            for row in self.series
            if row["kind"] == kind.value
        ]

    @cached_property
    def _most_elements(self) -> dict[tuple[int, int], int]:
        """By rank and series, the most elements that one of its rows was made of."""
        names = ("rank", "series", "count")
        rank, number, count = (values(self.finiteness[name]).astype(np.int64) for name in names)
        across = 1 + int(number.max(initial=0))
        most = np.zeros((1 + int(rank.max(initial=0))) * across, np.int64)
        np.maximum.at(most, rank * across + number, count)
        return {divmod(key, across): elements for key, elements in enumerate(most.tolist())}


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


def _matrices(table: pa.Table, series: list[dict[str, Any]], steps: Ints, columns: tuple[str, ...]) -> KindHistories:
    """One row for each tensor and context; series that differ in the data type only are one history."""
    places: dict[tuple[object, ...], tuple[int, SeriesInfo]] = {}
    ranks = values(table["rank"]).astype(np.int64)  # they number their series each for itself
    most = 1 + max((row["series"] for row in series), default=0)
    row_of = np.full((1 + max((*(row["rank"] for row in series), ranks.max(initial=0)))) * most, -1, np.int64)
    for row in series:
        key = tuple(row[name] for name in ("rank", "site", "port", "phase", "context"))
        number, shape = row["series"], tuple(row["shape"])
        names = (row["site"], row["port"], Kind(row["kind"]), row["phase"], row["dtype"])
        place = SeriesInfo(*names, shape, number, row["whole"], row["context"])
        row_of[row["rank"] * most + number] = places.setdefault(key, (len(places), place))[0]
    at = row_of[ranks * most + values(table["series"])]
    time = np.searchsorted(steps, values(table["step"]))
    inside = (at >= 0) & (time < len(steps))  # not another rank's number, nor recorded after the steps were listed
    matrices = {}
    for name in columns:
        matrices[name] = np.full((len(places), len(steps)), np.nan)
        matrices[name][at[inside], time[inside]] = values(table[name])[inside]
    return KindHistories(tuple(place for _, place in places.values()), steps, matrices)
