"""An opened run: its state, its steps and what the training loop said of them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa

from layerscope.query import rows
from layerscope.query.named import Named
from layerscope.query.table import Table
from layerscope.records import Graph
from layerscope.select import Pattern, Patterns, matching
from layerscope.store.parts import Lately
from layerscope.store.reader import Reader


class OpenedRun:
    """A run folder: `series()`, `steps()`, `metrics()`, `events()`, `cost()`, `graph()`, `named()`."""

    def __init__(self, path: str | Path, *, lately: Lately | None = None) -> None:
        self._reader = Reader(Path(path), lately)
        self.path = self._reader.folder
        self.name = self.path.resolve().name
        self._named: tuple[object, Named] | None = None

    @property
    def reader(self) -> Reader:
        """The tables as they are stored, for what needs many rows at once."""
        return self._reader

    @property
    def revision(self) -> object:
        """A token that changes when rows were added."""
        return self._reader.revision()

    @property
    def problems(self) -> list[str]:
        """What could not be read, one sentence each; empty for a sound run."""
        return problems_of(self._reader)

    @property
    def last_step(self) -> int | None:
        """The last step of which anything was recorded, None if there is none; quick, however long the run is."""
        return self._reader.last_step

    def status(self) -> str:
        """`"running"`, `"finished"`, or `"stopped"` when the training ended without closing the run."""
        return self._reader.status()

    def graph(self) -> Graph | None:
        """The watched model's modules, the calls of them that were seen, and how data flowed between these."""
        return self._reader.graph()

    def _classes(self, patterns: Iterable[Pattern]) -> dict[str, str] | None:
        """The names of the modules' classes by path, if a pattern asks for them."""
        if not any(isinstance(pattern, type) for pattern in patterns):
            return None
        graph = self.graph()
        return {} if graph is None else {module.path: module.class_name for module in graph.modules}

    def series(self) -> Table:
        """Every history in the run, in the order of first appearance."""
        return Table(self._reader.series())

    def metrics(self, names: Patterns = "*") -> Table:
        """The training loop's own numbers: one row per step with its time and type, one column per metric."""
        long = self._reader.metrics()
        found = list(dict.fromkeys(long.column("name").to_pylist()))
        return Table(rows.wide(long, matching(names, found, "Metric")))

    def steps(self) -> Table:
        """The steps in which tensors were named: type, iterations, batch, samples, categories, losses, reason."""
        return self.named().steps()

    def events(self) -> Table:
        """Notes, warnings and drops, in the order in which they happened."""
        return Table(self._reader.events())

    def cost(self) -> Table:
        """What recording took of each recorded step: seconds, their share of the step, tensors and bytes."""
        table = self._reader.costs()
        whole, part = rows.floats(table, "step_s"), rows.floats(table, "recording_s")
        share = pa.array(np.divide(part, whole, where=whole > 0, out=np.zeros(len(whole))), mask=~(whole > 0))
        columns = ("step", "step_s", "recording_s", "summaries", "bytes", "rank")
        return Table(table.select(columns).add_column(3, "share", share))

    def named(self) -> Named:
        """The named tensors as they are by now: statistics, kept values and dependency graphs, quickly found."""
        revision = self.revision
        if self._named is None or self._named[0] != revision:
            self._named = (revision, Named(self._reader))
        return self._named[1]


def problems_of(reader: Reader) -> list[str]:
    """What a reader has left out so far, and which files are damaged or missing, one sentence each."""
    left_out = [f"{count} {what} were left out." for what, count in reader.problems.items() if count]
    return [*left_out, *reader.damage()]
