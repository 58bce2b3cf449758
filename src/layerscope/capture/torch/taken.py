"""What was read of a named tensor, and the records that are made of it when the step is over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from layerscope.capture.named import ALL, STATISTICS, Entry
from layerscope.records import BATCH_STATISTICS, SINGULAR_MAX, Extras, Ids, Record, SampleStats, Values
from layerscope.stats.rows import RowArena

_NO_SAMPLES = np.zeros(0, np.int32)
_TOGETHER = 1 << 20  # bytes of values in one record
#: Types that numpy has none for.
_AS_FLOAT32 = frozenset(
    found
    for name in dir(torch)
    if name.startswith(("bfloat16", "float8", "float4")) and (found := getattr(torch, name))
)
_SIZES = dict.fromkeys(_AS_FLOAT32, 4) | {torch.complex32: 8}  # of an element that is kept otherwise


class Take:
    """What was read of one tensor or gradient."""

    row = series = -1
    loss = ""  # of a gradient
    local = ""  # what of the tensor this process has, if not all of it
    first = 0  # place of the first sample's statistics
    batch = -1  # place of the batch's, if there is one
    singular: float | None = None
    array: npt.NDArray[Any] | None = None  # the batch first; a copy
    held = 0  # samples in it, the first ones

    def __init__(self, entry: Entry, dtype: str, *, is_value: bool) -> None:
        self.entry = entry
        self.dtype = dtype
        self.is_value = is_value  # and no gradient
        self.level = entry.level


def kept_size(tensor: Tensor, *, is_value: bool) -> int:
    """Bytes that are kept of each element."""
    if tensor.dtype is torch.float16 and not is_value:
        return 4  # a gradient is divided by AMP's scale in float32
    return _SIZES.get(tensor.dtype) or tensor.element_size()


def copied(tensor: Tensor, entry: Entry, samples: int) -> npt.NDArray[Any]:  # Any: whatever the tensor holds
    """The first samples of a tensor, or all of one without a batch."""
    plain = tensor.detach()
    try:
        array = plain.numpy()
    except (TypeError, RuntimeError):  # of a type that numpy lacks, on another device, or with a sign still to change
        with torch.no_grad():
            if plain.dtype in _AS_FLOAT32 or plain.dtype is torch.complex32:
                plain = plain.to(torch.complex64 if plain.is_complex() else torch.float32)
            array = plain.resolve_conj().resolve_neg().cpu().numpy()
    if entry.batch_dim:
        array = np.moveaxis(array, entry.batch_dim, 0)
    return (array if entry.batch_dim is None else array[:samples]).copy()


class Places:
    """The chosen samples, as far as a tensor has and holds them."""

    def __init__(self, samples: tuple[int, ...] = ()) -> None:
        self.samples = samples
        self._known: dict[tuple[int, int, bool], tuple[Ids, Ids, bool]] = {}
        self.extras: dict[tuple[int, ...], tuple[Ids, tuple[str, ...]]] = {}  # series and names of each number

    def of(self, batch: int, held: int, *, every: bool) -> tuple[Ids, Ids, bool]:
        """Those whose values are held, those that are not, and whether the former are all that is held, in order."""
        found = self._known.get((batch, held, every))
        if found is None:
            mine = [place for place in (range(batch) if every else self.samples) if place < batch]
            there = [place for place in mine if place < held]
            rest = [place for place in mine if place >= held]
            found = np.array(there, np.int32), np.array(rest, np.int32), there == list(range(held))
            self._known[batch, held, every] = found
        return found


class Ending:
    """Makes the records of a step that is over; `scale` is what gradients were multiplied by."""

    def __init__(self, step: int, rows: RowArena, places: Places, scale: float) -> None:
        self._step = step
        self._rows = rows
        self._places = places
        self._scale = scale
        self._records: list[Record] = []
        self._series: list[int] = []  # of values that are not yet among the records
        self._samples: list[Ids] = []
        self._arrays: list[npt.NDArray[Any]] = []
        self._waiting_bytes = self.kept_bytes = 0  # of them, and of all values

    def records(self, takes: Sequence[Take]) -> list[Record]:
        """All that is kept beyond the summaries."""
        for take in takes:
            self._add(take)
        self._hand_over()
        if any(take.batch >= 0 or take.singular is not None for take in takes):
            self._records.append(self._extras(takes))
        return self._records

    def _add(self, take: Take) -> None:
        """Values and statistics of the chosen samples of one tensor."""
        array, batch, samples = take.array, take.entry.batch, _NO_SAMPLES
        if take.entry.batch_dim is not None:
            if take.batch < 0 or take.level < STATISTICS:
                return
            samples, rest, whole = self._places.of(batch, take.held, every=take.level == ALL)
            if len(rest):
                scale = 1.0 if take.is_value else self._scale
                numbers = self._rows.numbers[take.first + rest] / scale
                self._records.append(SampleStats(self._step, take.series, rest, numbers))
            if not len(samples):
                return
            array = array if whole or array is None else array[samples]
        if array is not None:
            array = array if take.is_value or self._scale == 1.0 else _divided(array, self._scale)
            self._series.append(take.series)
            self._samples.append(samples)
            self._arrays.append(array)
            self._waiting_bytes += array.nbytes
            if self._waiting_bytes >= _TOGETHER:
                self._hand_over()

    def _hand_over(self) -> None:
        if self._series:
            values = (self._series, self._samples, self._arrays)
            self._records.append(Values(self._step, *values, self._waiting_bytes))
        self.kept_bytes += self._waiting_bytes
        self._series, self._samples, self._arrays, self._waiting_bytes = [], [], [], 0

    def _extras(self, takes: Sequence[Take]) -> Extras:
        """Statistics over the batch of those over each sample, and largest singular values."""
        batches = [take for take in takes if take.batch >= 0]
        matrices = [take for take in takes if take.singular is not None]
        numbers = self._rows.over[[take.batch for take in batches]]
        singular = np.array([take.singular for take in matrices], np.float64)
        if self._scale != 1.0:
            numbers[[not take.is_value for take in batches]] /= self._scale
            singular[[not take.is_value for take in matrices]] /= self._scale
        series = (*(take.series for take in batches), -1, *(take.series for take in matrices))
        known = self._places.extras.get(series)
        if known is None:
            self._places.extras.clear()
            repeated = np.repeat(np.array(series[: len(batches)], np.int32), len(BATCH_STATISTICS))
            whose = np.append(repeated, np.array(series[len(batches) + 1 :], np.int32))
            known = whose, BATCH_STATISTICS * len(batches) + (SINGULAR_MAX,) * len(matrices)
            self._places.extras[series] = known
        return Extras(self._step, *known, np.append(numbers, singular) if matrices else numbers.ravel())


def _divided(array: npt.NDArray[Any], scale: float) -> npt.NDArray[Any]:
    """A gradient without AMP's scale."""
    # A scale can be beyond the range of float16, and what it kept from vanishing there would vanish now.
    array = array.astype(np.float32) if array.dtype == np.float16 else array
    divided: npt.NDArray[Any] = array / array.dtype.type(scale)
    return divided
