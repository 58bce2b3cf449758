"""What crosses the wire besides views: plain records, from which the page's types are generated."""

from __future__ import annotations

from dataclasses import dataclass

from layerscope.model.records import Floats
from layerscope.server.routes.findings import FindingCounts
from layerscope.views.scalar import ScalarView


@dataclass(frozen=True, slots=True)
class RunEntry:
    """One line of the list of runs."""

    name: str
    status: str  # "running", "finished", "stopped", or "unreadable"
    last_step: int | None
    metrics: tuple[str, ...]
    metric_values: Floats  # the last value of each
    sparkline: Floats  # the first metric, thinned
    problem: str | None  # what is wrong with the run, and what to do
    findings: FindingCounts | None = None  # None until it has been checked


@dataclass(frozen=True, slots=True)
class RunList:
    """The runs that are served."""

    folder: str
    version: str
    runs: tuple[RunEntry, ...]


@dataclass(frozen=True, slots=True)
class SeriesEntry:
    """One history that a run holds."""

    series: int
    rank: int
    site: str
    port: str
    kind: str
    mode: str
    context: str  # "" for none
    dtype: str
    phase: str
    local: str  # "" for the whole tensor
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LimitedStatistic:
    """A statistic that only tensors of some kinds have."""

    stat: str
    kinds: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SiteList:
    """Everything that can be shown of a run: its series, in the order of first appearance, and the statistics."""

    run: str
    stats: tuple[str, ...]
    series: tuple[SeriesEntry, ...]
    traces: int  # saved in it
    formats: tuple[str, ...]  # whose limits can be shown
    limited: tuple[LimitedStatistic, ...] = ()  # every kind has the other statistics
    left_out: int = 0  # series that a saved report has no room for


@dataclass(frozen=True, slots=True)
class EventEntry:
    """A note, a warning or a loss of rows at a step."""

    step: int
    level: str
    text: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """What is always in sight of a run: its metrics over the steps and what happened."""

    run: str
    first_step: int | None
    last_step: int | None
    metrics: tuple[ScalarView, ...]
    events: tuple[EventEntry, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """Sent over the live channel when a run has new rows, another status, appeared or vanished."""

    run: str
    status: str  # as in `RunEntry`, or "gone"
    revision: str


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a request was refused, as JSON, with a status of 4xx or 5xx."""

    problem: str
