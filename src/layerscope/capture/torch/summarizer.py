"""Where the tensors of a step are taken in: each is summarized once, whatever names it has."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor

from layerscope.capture.core.collector import Collector
from layerscope.capture.torch.tensor_tree import local_part
from layerscope.errors import ArgumentError, LayerscopeError, SelectError
from layerscope.model.records import Kind, Mode, Phase
from layerscope.stats.derived import RESERVED
from layerscope.stats.torch import add, add_many, dtype_name, is_oversized, is_wrapper, thinned

StatisticsFunction = Callable[[Tensor], Mapping[str, float]]


class SeriesKey(NamedTuple):
    """What a tensor is: the words of its series but its type."""

    site: str
    port: str
    kind: Kind
    mode: Mode
    phase: Phase
    context: str = ""
    local: str = ""  # what this process holds of the tensor, if not all of it


@dataclass(frozen=True, slots=True)
class SummaryOptions:
    """How much of each tensor is looked at, and for what."""

    sample: int | None = None  # of a larger tensor only so many elements count
    own: StatisticsFunction | None = None  # further statistics, the user's own
    evaluation: int = 16  # forwards of an evaluation; 0: those of recorded steps only

    def __post_init__(self) -> None:
        if self.sample is not None and (not isinstance(self.sample, int) or self.sample < 1):
            raise ArgumentError(f"sample={self.sample!r} is no number of elements. Give at least 1, or None for all.")
        if self.own is not None and not callable(self.own):
            raise ArgumentError(f"statistics={self.own!r} cannot be called: give a function from a tensor to a dict.")


class Summarizer:
    """Takes the tensors of the step in progress into a collector, and reports those it cannot read."""

    def __init__(self, collector: Collector, report: Callable[[str], None], extent: SummaryOptions) -> None:
        self.collector = collector
        self.report = report
        self._own = extent.own
        self._sample = extent.sample
        self._seen: dict[int, tuple[weakref.ref[Tensor], int, int]] = {}
        self._told: set[str] = set()

    def start_over(self) -> None:
        """Forget the tensors of the step."""
        self._seen.clear()

    def add(self, tensor: Tensor, place: SeriesKey) -> int | None:
        """Row of the tensor's summary, which is counted into its series; None if the tensor cannot be read."""
        if is_wrapper(tensor):
            tensor, (place,) = _local(tensor, [place])
        row = self.read(tensor, place.site, place.kind)
        if row is not None:
            self.collector.count(row, (*place, dtype_name(tensor)), tensor.shape)
        return row

    def add_all(self, those: Sequence[tuple[Tensor, Sequence[SeriesKey]]]) -> list[int | None]:
        """The same for several, each counted into one series or more.

        They may be written through `.data`, which leaves no trace: all are read anew.
        """
        those = [_local(tensor, places) if is_wrapper(tensor) else (tensor, places) for tensor, places in those]
        if self._own is not None or self._sample is not None or any(tensor.is_nested for tensor, _ in those):
            rows = [self._read_anew(tensor, places[0]) for tensor, places in those]
        else:
            found, errors = add_many(self.collector.arena, [tensor for tensor, _ in those])
            rows = [row if row >= 0 else None for row in found]
            for at, error in errors.items():
                tensor, (place, *_) = those[at]
                self._leave_out(tensor, place.site, place.kind, error)
        for (tensor, places), row in zip(those, rows, strict=True):
            for place in places if row is not None else ():
                assert row is not None
                self.collector.count(row, (*place, dtype_name(tensor)), tensor.shape)
        return rows

    def _read_anew(self, tensor: Tensor, place: SeriesKey) -> int | None:
        self.forget(tensor)
        row = self.read(tensor, place.site, place.kind)
        self.forget(tensor)
        return row

    def read(self, tensor: Tensor, site: str, kind: Kind) -> int | None:
        """Row of the tensor's summary, made now or earlier in the step; None if it cannot be read."""
        known = self.known(tensor)
        if known is not None:
            return known
        try:
            if tensor.is_nested:  # torch stops at the question for its shape
                raise SelectError("A nested tensor has no one shape. Record its `.to_padded_tensor(0.0)`.")
            row = add(self.collector.arena, tensor if self._sample is None else thinned(tensor, self._sample))
        except LayerscopeError as error:
            self._leave_out(tensor, site, kind, error)
            return None
        self.note(tensor, row)
        if self._own is not None:
            if is_oversized(tensor):
                what = f"{kind.value} of {site!r}"
                self.tell_once(f"own {what}", f"{what} has no custom statistics: it is a view too large to copy.")
            else:
                self._add_own(tensor, row)
        return row

    def reads_all(self, elements: int) -> bool:
        """Whether a tensor of so many elements is looked at whole, and by nobody else."""
        return self._own is None and (self._sample is None or elements <= self._sample)

    def known(self, tensor: Tensor) -> int | None:
        """The tensor's row in this step, if it was summarized and has not changed since."""
        seen = self._seen.get(id(tensor))
        return seen[2] if seen is not None and seen[0]() is tensor and seen[1] == tensor._version else None

    def note(self, tensor: Tensor, row: int) -> None:
        """Know the tensor's row for the rest of the step."""
        if not tensor.is_inference():  # which has no version to tell whether it changed
            self._seen[id(tensor)] = (weakref.ref(tensor), tensor._version, row)

    def forget(self, tensor: Tensor) -> None:
        """Read the tensor anew the next time."""
        self._seen.pop(id(tensor), None)

    def _leave_out(self, tensor: Tensor, site: str, kind: Kind, error: LayerscopeError) -> None:
        if is_functorch_wrapped_tensor(tensor):
            self.tell_once("torch.func", "Tensors inside transforms of torch.func have no values, and are left out.")
        else:
            what = f"{kind.value} of {site!r}"
            self.tell_once(what, f"{what} is not recorded: {error}")

    def tell_once(self, what: str, why: str) -> None:
        """Report why something is left out, unless that was done before."""
        if what not in self._told:
            self._told.add(what)
            self.report(why)

    def _add_own(self, tensor: Tensor, row: int) -> None:
        assert self._own is not None
        try:
            with torch.no_grad():
                numbers = {_name(name): float(value) for name, value in self._own(tensor.detach()).items()}
        except Exception as error:  # noqa: BLE001  it is the user's: told once, and the rest is recorded
            self._own = None
            self.report(f"The custom statistics are left out: {type(error).__name__}: {error}")
            return
        for name, number in numbers.items():
            self.collector.add_extra(row, name, number)


def _local(tensor: Tensor, places: Sequence[SeriesKey]) -> tuple[Tensor, Sequence[SeriesKey]]:
    part, local = local_part(tensor)
    return part, [place._replace(local=local) for place in places]


def _name(name: str) -> str:
    if name.lower() in RESERVED:
        raise SelectError(f"a statistic or column {name!r} exists already. Give yours another name.")
    return name
