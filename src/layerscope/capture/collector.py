"""The step in progress: which series have which summaries, until the step ends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from layerscope.records import Kind, Mode, Reading, Series, Sink, Summaries
from layerscope.stats import combine
from layerscope.stats.kernel import Arena

Identity = tuple[str, str, Kind, Mode, Reading, str]
AddTensor = Callable[[Arena, Any], int]  # Any: each framework hands in its own tensors


class Collector:
    """Summaries of the step in progress.

    A tensor is summarised once and may belong to several series: a container's output is its last child's. A series
    may have several tensors, such as one per micro-batch: they are added up when the step ends.
    """

    def __init__(self, sink: Sink, add_tensor: AddTensor) -> None:
        self._sink = sink
        self._add_tensor = add_tensor
        self._arena = Arena()
        self._numbers: dict[Identity, int] = {}
        self._rows: dict[int, list[int]] = {}
        self._lock = threading.Lock()  # forward hooks may run in several threads

    def add(self, tensor: object, identity: Identity, shape: tuple[int, ...], row: int | None = None) -> int:
        """Count a tensor into a series; `row` is that of its summary if this step already made it. Gives the row."""
        with self._lock:
            if row is None:
                row = self._add_tensor(self._arena, tensor)
            number = self._numbers.get(identity)
            if number is None:
                number = self._numbers[identity] = self._sink.series_id(Series(*identity, shape))
            self._rows.setdefault(number, []).append(row)
            return row

    def finish(self, step: int) -> None:
        """Hand the step's summaries to the sink and start over."""
        with self._lock:
            rows, self._rows = self._rows, {}
            summaries = self._arena.drain()
        if rows:
            self._sink.put(_gathered(step, rows, summaries))


def _gathered(step: int, rows: dict[int, list[int]], summaries: combine.Encoded) -> Summaries:
    """The step's record: a series with the very rows of another is an alias of it."""
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
    alias = [-1 if mine else owners[group] for group, mine in zip(groups.values(), own, strict=True)]
    return Summaries(
        step=step,
        series=np.fromiter(groups, np.int32, len(groups)),
        moments=picked.moments,
        m=picked.m,
        offsets=picked.offsets,
        bits=picked.bits,
        alias=np.array(alias, np.int32),
        scale=np.ones(len(groups)),
        merged=np.array([len(group) for group in groups.values()], np.int32),
    )
