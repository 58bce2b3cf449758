"""What was read of a named tensor, and the records that are made of it when the step is over."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from layerscope.capture.core.framework import Framework, Tensor
from layerscope.capture.core.named_tensors import ALL, SAMPLES, STATISTICS, Detail, NamedTensor
from layerscope.capture.core.summarizer import Summarizer
from layerscope.model.number_formats import WORDS
from layerscope.model.records import (
    BATCH_STATISTICS,
    SINGULAR_MAX,
    CustomStatistics,
    Ids,
    Kind,
    Record,
    SampleStats,
    TensorValues,
)
from layerscope.stats.kernel import COMPILED, RowArena, format_number

_NO_SAMPLES = np.zeros(0, np.int32)
_TOGETHER = 1 << 20  # bytes of values in one record


class NamedSummary:
    """What was read of one tensor or gradient."""

    row = series = -1
    loss = ""  # of a gradient
    local = ""  # what of the tensor this process has, if not all of it
    first = 0  # place of the first sample's statistics
    batch = -1  # place of the batch's, if there is one
    singular: float | None = None
    array: npt.NDArray[Any] | None = None  # the batch first; a copy
    held = 0  # samples in it, the first ones

    def __init__(self, entry: NamedTensor, dtype: str, *, is_value: bool) -> None:
        self.entry = entry
        self.dtype = dtype
        self.is_value = is_value  # and no gradient
        self.level = entry.level


def kept_size(dtype: str, *, is_value: bool) -> int:
    """Bytes that are kept of each element of a format; of those that numpy lacks, as float32."""
    if dtype.startswith(("bfloat16", "float8", "float4")) or (dtype == "float16" and not is_value):
        return 4  # a gradient is divided by AMP's scale in float32
    return 8 if dtype == "complex32" else np.dtype(dtype).itemsize


def copied(array: npt.NDArray[Any], entry: NamedTensor, samples: int) -> npt.NDArray[Any]:  # Any: as the tensor's
    """The first samples of a tensor, or all of one without a batch."""
    if entry.batch_dim:
        array = np.moveaxis(array, entry.batch_dim, 0)
    return (array if entry.batch_dim is None else array[:samples]).copy()


def sample_statistics(rows: RowArena, framework: Framework, tensor: Tensor, batch_dim: int) -> tuple[int, int]:
    """Where in the arena the statistics of the samples and of the batch are; of complex numbers, of magnitudes."""
    place = framework.in_place(tensor) if batch_dim == 0 else None
    if place is not None and place[2] & 255 < len(WORDS):
        address, count, number = place
        return rows.add(address, count, number, framework.shape(tensor)[0])
    array = framework.array(tensor)
    array = np.abs(array) if np.iscomplexobj(array) else array
    array = array if array.dtype.name in WORDS else array.astype(np.float32)
    array = np.ascontiguousarray(np.moveaxis(array, batch_dim, 0))
    return rows.add(array.ctypes.data, array.size, format_number(array.dtype.name), len(array))


class NamedSeries:
    """The chosen samples, as far as a tensor has and holds them."""

    def __init__(self, samples: tuple[int, ...] = ()) -> None:
        self.samples = samples
        self._known: dict[tuple[int, int, bool], tuple[Ids, Ids, bool]] = {}
        self.custom: dict[tuple[int, ...], tuple[Ids, tuple[str, ...]]] = {}  # series and names of each number

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


class StepRecordBuilder:
    """Makes the records of a step that is over; `scale` is what gradients were multiplied by."""

    def __init__(self, step: int, rows: RowArena, places: NamedSeries, scale: float) -> None:
        self._step = step
        self._rows = rows
        self._places = places
        self._scale = scale
        self._records: list[Record] = []
        self._series: list[int] = []  # of values that are not yet among the records
        self._samples: list[Ids] = []
        self._arrays: list[npt.NDArray[Any]] = []
        self._waiting_bytes = self.kept_bytes = 0  # of them, and of all values

    def records(self, takes: Sequence[NamedSummary]) -> list[Record]:
        """All that is kept beyond the summaries."""
        for take in takes:
            self._add(take)
        self._hand_over()
        if any(take.batch >= 0 or take.singular is not None for take in takes):
            self._records.append(self._custom(takes))
        return self._records

    def _add(self, take: NamedSummary) -> None:
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
            self._records.append(TensorValues(self._step, *values, self._waiting_bytes))
        self.kept_bytes += self._waiting_bytes
        self._series, self._samples, self._arrays, self._waiting_bytes = [], [], [], 0

    def _custom(self, takes: Sequence[NamedSummary]) -> CustomStatistics:
        """Statistics over the batch of those over each sample, and largest singular values."""
        batches = [take for take in takes if take.batch >= 0]
        matrices = [take for take in takes if take.singular is not None]
        numbers = self._rows.over[[take.batch for take in batches]]
        singular = np.array([take.singular for take in matrices], np.float64)
        if self._scale != 1.0:
            numbers[[not take.is_value for take in batches]] /= self._scale
            singular[[not take.is_value for take in matrices]] /= self._scale
        series = (*(take.series for take in batches), -1, *(take.series for take in matrices))
        known = self._places.custom.get(series)
        if known is None:
            self._places.custom.clear()
            repeated = np.repeat(np.array(series[: len(batches)], np.int32), len(BATCH_STATISTICS))
            whose = np.append(repeated, np.array(series[len(batches) + 1 :], np.int32))
            known = whose, BATCH_STATISTICS * len(batches) + (SINGULAR_MAX,) * len(matrices)
            self._places.custom[series] = known
        return CustomStatistics(self._step, *known, np.append(numbers, singular) if matrices else numbers.ravel())


def _divided(array: npt.NDArray[Any], scale: float) -> npt.NDArray[Any]:
    """A gradient without AMP's scale."""
    # A scale can be beyond the range of float16, and what it kept from vanishing there would vanish now.
    array = array.astype(np.float32) if array.dtype == np.float16 else array
    divided: npt.NDArray[Any] = array / array.dtype.type(scale)
    return divided


_ALIGNED, _MOST_EXPECTED = 16, 1 << 20  # bytes
_MOST_PLANS = 4096


class Plan(NamedTuple):
    """What is read at once of tensors of one form, type and detail."""

    batch: int  # samples whose statistics are made
    held: int  # samples whose values are copied
    shape: tuple[int, ...]  # of the copy
    dtype: np.dtype[Any] | None  # None: nothing is copied
    size: int  # bytes of the copy
    counted: int  # the same as they are kept


class NamedTensorSummarizer:
    """Takes tensors in, as deep as is asked for; `start_over` with each step."""

    def __init__(self, intake: Summarizer, detail: Detail, *, holds: bool) -> None:
        self.rows = RowArena()
        self._intake = intake
        self._framework = intake.framework
        self._detail = detail
        self._holds = holds  # all samples until the step ends, for some may be chosen then
        self._lock = threading.RLock()  # forward hooks may run in several threads
        self._plans: dict[tuple[object, ...], Plan | None] = {}  # None: it takes several looks
        self._expected = self._copied = 0  # bytes of the next step's copies, if it is like the last; of this one's
        self.start_over()

    def start_over(self) -> None:
        """Forget the step."""
        self.rows.start_over()
        self.bytes = 0  # of values that are held
        self.too_large: dict[str, None] = {}  # names of which less is kept than was asked for
        self._values: set[int] = set()  # rows of what was named
        self._expected = min(self._copied, _MOST_EXPECTED) or self._expected
        self._memory = np.empty(0, np.uint8)  # for copies, which belong to the step's records
        self._at = self._used = self._copied = 0

    def take(self, entry: NamedTensor, tensor: Tensor, *, is_value: bool) -> NamedSummary | None:
        """What was read of a tensor; None if it cannot be."""
        place = self._framework.in_place(tensor)
        with self._lock:
            row = self._intake.known(tensor)
            if row is not None and is_value and row in self._values:
                # It may be written through an array of numpy's, which leaves no trace.
                self._intake.forget(tensor)
                row = None
            plan = None if place is None or row is not None else self._plan(entry, place, is_value=is_value)
            if plan is None or place is None or self.bytes + plan.counted > self._detail.bytes_per_step:
                take = self._slowly(entry, tensor, is_value=is_value)
            else:
                take = self._at_once(NamedSummary(entry, WORDS[place[2] & 255], is_value=is_value), tensor, place, plan)
            if is_value and take is not None:
                self._values.add(take.row)
        return take

    def _at_once(self, take: NamedSummary, tensor: Tensor, place: list[int], plan: Plan) -> NamedSummary:
        """Read a tensor that lies in one piece."""
        batch, take.held, shape, dtype, size, counted = plan
        offset = self._room(size) if size else 0
        numbers_at = over_at = 0
        if batch:
            take.first, take.batch, numbers_at, over_at = self.rows.reserve(batch)
        beside = (batch, numbers_at, over_at, self._at + offset, size)
        take.row = self._intake.collector.arena.take(place, self._framework.threads(place[1]), *beside)
        self._intake.note(tensor, take.row)
        if dtype is not None:
            take.array = np.ndarray(shape, dtype, self._memory, offset)
            self.bytes += counted
        return take

    def _plan(self, entry: NamedTensor, place: list[int], *, is_value: bool) -> Plan | None:
        key = (entry.shape, entry.batch_dim, entry.level, place[1], place[2], is_value)
        try:
            return self._plans[key]
        except KeyError:
            if len(self._plans) >= _MOST_PLANS:
                self._plans.clear()
            plan = self._plans[key] = self._planned(entry, place, is_value=is_value)
            return plan

    def _planned(self, entry: NamedTensor, place: list[int], *, is_value: bool) -> Plan | None:
        (_, count, number), batch = place, entry.batch
        several_looks = (
            not COMPILED
            or entry.batch_dim  # the samples do not lie one behind the other
            or count == 0
            or count != math.prod(entry.shape)
            or number & 255 >= len(WORDS)
            or not self._intake.reads_all(count)
            or _is_matrix(entry, WORDS[number & 255])
        )
        if several_looks:
            return None
        if entry.level < SAMPLES:
            return Plan(batch, 0, (), None, 0, 0)
        kept_alone = self._holds and (not batch or entry.level == ALL)  # while of others some samples are let go
        if kept_alone or WORDS[number & 255] == "bfloat16":  # which numpy lacks
            return None
        dtype = np.dtype(WORDS[number & 255])
        held = self._wanted(entry, entry.level)
        shape = (held, *entry.shape[1:]) if batch else entry.shape
        elements, size = math.prod(shape), kept_size(dtype.name, is_value=is_value)
        return Plan(batch, held, shape, dtype, elements * dtype.itemsize, elements * size)

    def _slowly(self, entry: NamedTensor, tensor: Tensor, *, is_value: bool) -> NamedSummary | None:
        """Read a tensor of any kind."""
        row = self._intake.read(tensor, entry.name, Kind.TENSOR if is_value else Kind.TENSOR_GRAD)
        if row is None:
            return None
        take = NamedSummary(entry, self._framework.dtype(tensor), is_value=is_value)
        take.row = row
        if self._framework.is_oversized(tensor):
            what = f"Samples and values of {entry.name!r}"
            self._intake.report_once(what, f"{what} are not recorded: it is a view too large to copy.")
            return take
        if entry.batch:
            assert entry.batch_dim is not None
            take.first, take.batch = sample_statistics(self.rows, self._framework, tensor, entry.batch_dim)
        elif _is_matrix(entry, take.dtype):
            take.singular = self._framework.largest_singular_value(tensor)
        if take.level >= SAMPLES:
            self._hold(take, tensor)
        return take

    def _wanted(self, entry: NamedTensor, level: int) -> int:
        """How many samples are to be held."""
        return entry.batch if level == ALL or self._holds else min(self._detail.samples, entry.batch)

    def _hold(self, take: NamedSummary, tensor: Tensor) -> None:
        """Copy as many values as are asked for and fit."""
        entry, detail = take.entry, self._detail
        wanted, few = self._wanted(entry, take.level), min(detail.samples, entry.batch)
        whole = math.prod(self._framework.shape(tensor)) * kept_size(take.dtype, is_value=take.is_value)
        for samples in (wanted, few) if wanted > few else (wanted,):
            size = samples * (whole // entry.batch) if entry.batch else whole
            if self.bytes + size <= detail.bytes_per_step:
                take.array, take.held = copied(self._framework.array(tensor), entry, samples), samples
                self.bytes += size
                break
        if take.array is None or (take.level == ALL and take.held < entry.batch):
            self.too_large[entry.name] = None
            take.level = STATISTICS if take.array is None else SAMPLES

    def _room(self, size: int) -> int:
        """Where a copy of so many bytes has room in the memory."""
        taken = (size + _ALIGNED - 1) & -_ALIGNED
        if self._used + taken > len(self._memory):
            self._memory, self._used = np.empty(max(taken, self._expected), np.uint8), 0
            self._at = self._memory.ctypes.data
        offset = self._used
        self._used += taken
        self._copied += taken
        return offset


def _is_matrix(entry: NamedTensor, dtype: str) -> bool:
    """Whether the tensor has a largest singular value."""
    return entry.batch_dim is None and len(entry.shape) == 2 and "float" in dtype
