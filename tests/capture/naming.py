"""A recorder of named tensors into a list, and what is found there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

from layerscope.capture.core.named_tensors import Detail
from layerscope.capture.core.recorder import Recorder
from layerscope.capture.core.schedule import Every, KeepIf, schedule_of
from layerscope.capture.torch.listener import TorchListener
from layerscope.capture.torch.targets import choose
from layerscope.model.records import CustomStatistics, Event, Kind, SampleStats, StepInfo, call_site
from tests.capture.recording import record_with
from tests.capture.sinks import ListSink, Value

record = partial(record_with, TorchListener)

Array = npt.NDArray[Any]
LinkText = tuple[str, str]


class Recording(ListSink):
    def of(self, kind: type[Any], step: int | None = None) -> list[Any]:
        return [r for r in self.records if isinstance(r, kind) and step in (None, r.step)]

    def infos(self) -> list[StepInfo]:
        """By step; of one that was put again, what was put last."""
        found = {info.step: info for info in self.of(StepInfo)}
        return [found[step] for step in sorted(found)]

    def steps(self) -> list[int]:
        return [info.step for info in self.infos()]

    def events(self, level: str) -> list[Event]:
        return [event for event in self.of(Event) if event.level == level]

    def number(self, name: str, iteration: int = 1, port: str = "tensor", kind: Kind = Kind.TENSOR) -> int:
        site = call_site(name, iteration)
        (number,) = [i for i, s in enumerate(self.series) if (s.site, s.port, s.kind) == (site, port, kind)]
        return number

    def named(self, kind: Kind = Kind.TENSOR) -> set[tuple[str, str]]:
        return {(s.site, s.port) for s in self.series if s.kind is kind}

    def value(self, step: int, name: str, iteration: int = 1, port: str = "tensor") -> Value:
        kind = Kind.TENSOR_GRAD if "@" in port or port.startswith("grad:") else Kind.TENSOR
        number = self.number(name, iteration, port.removeprefix("grad:"), kind)
        (value,) = [value for value in self.of(Value, step) if value.series == number]
        return value  # type: ignore[no-any-return]

    def sample_stats(self, step: int, name: str, iteration: int = 1) -> SampleStats | None:
        number = self.number(name, iteration)
        return next((found for found in self.of(SampleStats, step) if found.series == number), None)

    def custom_statistics(self, step: int, name: str, iteration: int = 1, kind: Kind = Kind.TENSOR) -> dict[str, float]:
        number = self.number(name, iteration, kind=kind)
        return {
            name: value
            for extras in self.of(CustomStatistics, step)
            for series, name, value in zip(extras.series, extras.names, extras.values, strict=True)
            if series == number
        }

    def links(self, step: int, iteration: int = 1) -> set[LinkText]:
        """`("memory-1", "output")`: output depends on what memory was one iteration ago; roles behind a colon."""
        (info,) = [info for info in self.infos() if info.step == step]
        if info.graphs[iteration] < 0:
            return set()
        return {
            (
                f"{link.source}{':' * bool(link.source_role)}{link.source_role}{f'-{link.back}' * bool(link.back)}",
                f"{link.target}{':' * bool(link.target_role)}{link.target_role}",
            )
            for link in self.graphs[info.graphs[iteration]].links
        }


@contextmanager
def recording(
    model: nn.Module | None = None,
    every: Every = 1,
    *,
    detail: Detail | None = None,
    keep_last: int = 0,
    keep_if: KeepIf | None = None,
) -> Iterator[tuple[Recording, Recorder]]:
    sink = Recording()
    schedule = replace(schedule_of(every), keep_last=keep_last, keep_if=keep_if)
    with record(choose(model, None, ("tensor*", "weight*"), "*"), schedule, sink, detail) as run:
        yield sink, run


def per_sample(array: Array) -> Array:
    """Mean, mean magnitude, standard deviation and largest magnitude of each sample, in float64."""
    flat = array.astype(np.float64).reshape(len(array), -1)
    sizes = np.abs(flat)
    return np.stack((flat.mean(1), sizes.mean(1), flat.std(1), sizes.max(1)), 1)
