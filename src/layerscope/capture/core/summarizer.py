"""Summarizes the tensors of a step: each once, whatever series it belongs to."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from layerscope.capture.core.collector import Collector
from layerscope.capture.core.framework import Framework, NoValues, Tensor
from layerscope.errors import ArgumentError, LayerscopeError, SelectError
from layerscope.model.records import Kind, Mode, Phase
from layerscope.stats.derived import RESERVED

StatisticsFunction = Callable[[Tensor], Mapping[str, Any]]


class SeriesKey(NamedTuple):
    """What a tensor is: its series without the number format."""

    site: str
    port: str
    kind: Kind
    mode: Mode
    phase: Phase
    context: str = ""
    local: str = ""  # what this process holds of the tensor, if not all of it


@dataclass(frozen=True, slots=True)
class SummaryOptions:
    """How much of each tensor is summarized, and which statistics are made beside."""

    sample: int | None = None  # largest number of elements read per tensor
    custom: StatisticsFunction | None = None  # further statistics, by a function of the user
    evaluation: int = 16  # forwards of an evaluation; 0: those of recorded steps only

    def __post_init__(self) -> None:
        if self.sample is not None and (not isinstance(self.sample, int) or self.sample < 1):
            raise ArgumentError(f"sample={self.sample!r} is no number of elements. Give at least 1, or None for all.")
        if self.custom is not None and not callable(self.custom):
            raise ArgumentError(
                f"statistics={self.custom!r} cannot be called: give a function from a tensor to a dict."
            )


class Summarizer:
    """Summarizes the tensors of the step in progress into a collector, and reports those it cannot read."""

    def __init__(
        self, framework: Framework, collector: Collector, report: Callable[[str], None], options: SummaryOptions
    ) -> None:
        self.framework = framework
        self.collector = collector
        self.report = report
        self._custom = options.custom
        self._sample = options.sample
        self._seen: dict[int, tuple[weakref.ref[Tensor], int, int]] = {}
        self._reported: set[str] = set()

    def start_over(self) -> None:
        """Forget the tensors of the step."""
        self._seen.clear()

    def add(self, tensor: Tensor, key: SeriesKey) -> int | None:
        """Row of the tensor's summary, which is counted into its series; None if the tensor cannot be read."""
        tensor, local = self.framework.local_part(tensor)
        if local:
            key = key._replace(local=local)
        row = self.read(tensor, key.site, key.kind)
        if row is not None:
            self.collector.count(row, (*key, self.framework.dtype(tensor)), self.framework.shape, tensor)
        return row

    def add_all(self, tensors: Sequence[tuple[Tensor, Sequence[SeriesKey]]]) -> list[int | None]:
        """The same for several, each counted into one series or more.

        They may be written through `.data`, which leaves no trace: all are read anew.
        """
        framework, local = self.framework, []
        for tensor, keys in tensors:
            part, word = framework.local_part(tensor)
            local.append((part, [key._replace(local=word) for key in keys] if word else keys))
        if self._custom is not None or self._sample is not None:
            rows = [self._read_anew(tensor, keys[0]) for tensor, keys in local]
        else:
            numbers, errors = framework.summarize_all(self.collector.arena, [tensor for tensor, _ in local])
            rows = [row if row >= 0 else None for row in numbers]
            for at, error in errors.items():
                self._leave_out(local[at][1][0].site, local[at][1][0].kind, error)
        for (tensor, keys), row in zip(local, rows, strict=True):
            for key in keys if row is not None else ():
                self.collector.count(row, (*key, framework.dtype(tensor)), framework.shape, tensor)  # type: ignore[arg-type]
        return rows

    def _read_anew(self, tensor: Tensor, key: SeriesKey) -> int | None:
        self.forget(tensor)
        row = self.read(tensor, key.site, key.kind)
        self.forget(tensor)
        return row

    def read(self, tensor: Tensor, site: str, kind: Kind) -> int | None:
        """Row of the tensor's summary, made now or earlier in the step; None if it cannot be read."""
        known = self.known(tensor)
        if known is not None:
            return known
        try:
            row = self.framework.summarize(self.collector.arena, tensor, self._sample)
        except LayerscopeError as error:
            self._leave_out(site, kind, error)
            return None
        self.note(tensor, row)
        if self._custom is not None:
            if self.framework.is_oversized(tensor):
                what = f"{kind.value} of {site!r}"
                self.report_once(f"custom {what}", f"{what} has no custom statistics: it is a view too large to copy.")
            else:
                self._add_custom(self._custom, tensor, row)
        return row

    def reads_all(self, elements: int) -> bool:
        """Whether all elements of such a tensor are summarized, and no custom statistics are made."""
        return self._custom is None and (self._sample is None or elements <= self._sample)

    def known(self, tensor: Tensor) -> int | None:
        """The tensor's row in this step, if it was summarized and has not changed since."""
        seen = self._seen.get(id(tensor))
        if seen is not None and seen[0]() is tensor and seen[1] == self.framework.version(tensor):
            return seen[2]
        return None

    def note(self, tensor: Tensor, row: int) -> None:
        """Know the tensor's row for the rest of the step."""
        version = self.framework.version(tensor)
        if version is not None:
            self._seen[id(tensor)] = (weakref.ref(tensor), version, row)

    def forget(self, tensor: Tensor) -> None:
        """Read the tensor anew the next time."""
        self._seen.pop(id(tensor), None)

    def _leave_out(self, site: str, kind: Kind, error: LayerscopeError) -> None:
        if isinstance(error, NoValues):
            self.report_once(str(error), str(error))
        else:
            what = f"{kind.value} of {site!r}"
            self.report_once(what, f"{what} is not recorded: {error}")

    def report_once(self, what: str, why: str) -> None:
        """Report why something is left out, unless that was done before."""
        if what not in self._reported:
            self._reported.add(what)
            self.report(why)

    def _add_custom(self, custom: StatisticsFunction, tensor: Tensor, row: int) -> None:
        try:
            numbers = {_name(name): float(value) for name, value in self.framework.statistics(custom, tensor).items()}
        except Exception as error:  # noqa: BLE001  the user's function: reported once, and the rest is recorded
            self._custom = None
            self.report(f"The custom statistics are left out: {type(error).__name__}: {error}")
            return
        for name, number in numbers.items():
            self.collector.add_custom(row, name, number)


def _name(name: str) -> str:
    if name.lower() in RESERVED:
        raise SelectError(f"a statistic or column {name!r} exists already. Give yours another name.")
    return name
