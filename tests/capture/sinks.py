"""A sink that keeps what it is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from layerscope.model import summary_spec
from layerscope.model.records import (
    Dependencies,
    DependencyLink,
    Event,
    Floats,
    Ids,
    Kind,
    Mode,
    NamedNode,
    Record,
    Series,
    Summaries,
    TensorValues,
)
from layerscope.stats import derived


@dataclass
class ListSink:
    series: list[Series] = field(default_factory=list)
    records: list[Record | Value] = field(default_factory=list)
    graphs: list[Dependencies] = field(default_factory=list)
    closed: bool = False
    cpu_s: float = 0.0

    def series_id(self, series: Series) -> int:
        if series not in self.series:
            self.series.append(series)
        return self.series.index(series)

    def dependencies_id(self, nodes: tuple[NamedNode, ...], links: tuple[DependencyLink, ...]) -> int:
        for graph in self.graphs:
            if (graph.nodes, graph.links) == (nodes, links):
                return graph.number
        self.graphs.append(Dependencies(len(self.graphs), nodes, links))
        return len(self.graphs) - 1

    def put(self, *records: Record) -> None:
        for record in records:
            self.records += each(record) if isinstance(record, TensorValues) else [record]

    def when_program_ends(self, close: Callable[[], Callable[[], None] | None]) -> None:
        pass

    def call_soon(self, close: Callable[[], None]) -> None:
        close()

    def close(self) -> None:
        self.closed = True

    def summaries(self) -> list[Summaries]:
        return [record for record in self.records if isinstance(record, Summaries)]

    def warnings(self) -> list[Event]:
        return [record for record in self.records if isinstance(record, Event) and record.level == "warning"]

    def moments(
        self, site: str, kind: Kind, *, step: int = 0, port: str | None = None, mode: Mode = Mode.TRAIN
    ) -> Floats:
        """The one row of moments that fits; aliases are followed."""
        (number,) = [
            i
            for i, s in enumerate(self.series)
            if (s.site, s.kind, s.mode) == (site, kind, mode) and port in (None, s.port)
        ]
        (summaries,) = [s for s in self.summaries() if s.step == step]
        (row,) = np.flatnonzero(summaries.series == number)
        if summaries.alias[row] >= 0:
            (row,) = np.flatnonzero(summaries.series == summaries.alias[row])
        moments: Floats = summaries.moments[row]
        return moments

    def stat(self, name: str, site: str, kind: Kind, **where: object) -> float:
        moments = self.moments(site, kind, **where)  # type: ignore[arg-type]  # passed through as given
        return float(
            derived.statistic(
                name, lambda column: moments[summary_spec.COLUMN[column] : summary_spec.COLUMN[column] + 1]
            )[0]
        )


class Value(NamedTuple):
    """One of the values that were handed over together."""

    step: int
    series: int
    samples: Ids
    array: npt.NDArray[Any]


def each(values: TensorValues) -> list[Value]:
    """The values one by one."""
    rows = zip(values.series, values.samples, values.arrays, strict=True)
    return [Value(values.step, *row) for row in rows]
