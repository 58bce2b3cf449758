"""Reads named tensors at the detail asked for, and makes records of what was read when the step is over."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from layerscope.capture.core.framework import Framework, Tensor
from layerscope.capture.core.named_tensors import ALL, SAMPLES, STATISTICS, Detail, NamedSummary, NamedTensor, StepData
from layerscope.capture.core.summarizer import Summarizer
from layerscope.model.number_formats import WORDS
from layerscope.model.records import (
    BATCH_STATISTICS,
    SINGULAR_MAX,
    CustomStatistics,
    Ids,
    Kind,
    SampleStats,
    TensorValues,
)
from layerscope.stats.kernel import COMPILED, RowArena, format_number

_NO_SAMPLES = np.zeros(0, np.int32)
_TOGETHER = 1 << 20  # bytes of values in one record


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
    memory = framework.in_place(tensor) if batch_dim == 0 else None
    if memory is not None and memory[2] & 255 < len(WORDS):
        address, count, number = memory
        return rows.add(address, count, number, framework.shape(tensor)[0])
    array = framework.array(tensor)
    array = np.abs(array) if np.iscomplexobj(array) else array
    array = array if array.dtype.name in WORDS else array.astype(np.float32)
    array = np.ascontiguousarray(np.moveaxis(array, batch_dim, 0))
    return rows.add(array.ctypes.data, array.size, format_number(array.dtype.name), len(array))


class NamedRecords:
    """Makes the records of what was read in a step; what the next step will need again is remembered."""

    def __init__(self, rows: RowArena) -> None:
        self._rows = rows
        self._chosen: tuple[int, ...] = ()  # samples
        self._known: dict[tuple[int, int, bool], tuple[Ids, Ids, bool]] = {}
        self._custom: dict[tuple[int, ...], tuple[Ids, tuple[str, ...]]] = {}  # series and names of each number

    def add(self, data: StepData, scale: float | None) -> None:
        """Add all that is kept beyond the summaries; `scale` is what gradients were multiplied by, if that is known."""
        if self._chosen != data.samples():
            self._chosen = data.samples()
            self._known.clear()
            self._custom.clear()
        summaries = [summary for summary in data.read if scale is not None or summary.is_value]
        scale = scale or 1.0
        values: list[tuple[int, Ids, npt.NDArray[Any]]] = []  # series, samples and array
        size = 0
        for summary in summaries:
            array, samples = self._kept(summary, data, scale)
            if array is not None:
                values.append((summary.series, samples, array))
                size += array.nbytes
            if values and (size >= _TOGETHER or summary is summaries[-1]):
                series, chosen, arrays = zip(*values, strict=True)
                data.records.append(TensorValues(data.step, series, chosen, arrays, size))
                data.bytes += size
                values, size = [], 0
        if any(summary.batch >= 0 or summary.singular is not None for summary in summaries):
            data.records.append(self._batch_statistics(summaries, data.step, scale))
        data.read = []

    def _kept(self, summary: NamedSummary, data: StepData, scale: float) -> tuple[npt.NDArray[Any] | None, Ids]:
        """Values of the chosen samples of one tensor; of those without values the statistics become a record."""
        array, samples = summary.array, _NO_SAMPLES
        if summary.entry.batch_dim is not None:
            if summary.batch < 0 or summary.level < STATISTICS:
                return None, samples
            samples, rest, is_whole = self._samples(summary.entry.batch, summary.kept, every=summary.level == ALL)
            if len(rest):
                numbers = self._rows.numbers[summary.first + rest] / (1.0 if summary.is_value else scale)
                data.records.append(SampleStats(data.step, summary.series, rest, numbers))
            if not len(samples):
                return None, samples
            array = array if is_whole or array is None else array[samples]
        is_scaled = array is not None and not summary.is_value and scale != 1.0
        return (_divided(array, scale) if is_scaled and array is not None else array), samples

    def _samples(self, batch: int, kept: int, *, every: bool) -> tuple[Ids, Ids, bool]:
        """The chosen samples with values, those without, and whether the former are all that have, in order."""
        known = self._known.get((batch, kept, every))
        if known is None:
            chosen = [sample for sample in (range(batch) if every else self._chosen) if sample < batch]
            there = [sample for sample in chosen if sample < kept]
            rest = [sample for sample in chosen if sample >= kept]
            known = np.array(there, np.int32), np.array(rest, np.int32), there == list(range(kept))
            self._known[batch, kept, every] = known
        return known

    def _batch_statistics(self, summaries: Sequence[NamedSummary], step: int, scale: float) -> CustomStatistics:
        """Statistics over the batch of those over each sample, and largest singular values."""
        batches = [summary for summary in summaries if summary.batch >= 0]
        matrices = [summary for summary in summaries if summary.singular is not None]
        numbers = self._rows.over[[summary.batch for summary in batches]]
        singular = np.array([summary.singular for summary in matrices], np.float64)
        if scale != 1.0:
            numbers[[not summary.is_value for summary in batches]] /= scale
            singular[[not summary.is_value for summary in matrices]] /= scale
        series = (*(summary.series for summary in batches), -1, *(summary.series for summary in matrices))
        known = self._custom.get(series)
        if known is None:
            self._custom.clear()
            repeated = np.repeat(np.array(series[: len(batches)], np.int32), len(BATCH_STATISTICS))
            whose = np.append(repeated, np.array(series[len(batches) + 1 :], np.int32))
            known = whose, BATCH_STATISTICS * len(batches) + (SINGULAR_MAX,) * len(matrices)
            self._custom[series] = known
        return CustomStatistics(step, *known, np.append(numbers, singular) if matrices else numbers.ravel())


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
    kept: int  # samples whose values are copied
    shape: tuple[int, ...]  # of the copy
    dtype: np.dtype[Any] | None  # None: nothing is copied
    size: int  # bytes of the copy
    counted: int  # the same as they are kept


class NamedTensorSummarizer:
    """Takes tensors in, as deep as is asked for; `start_over` with each step."""

    def __init__(self, summarizer: Summarizer, detail: Detail, *, holds: bool) -> None:
        self.rows = RowArena()
        self._summarizer = summarizer
        self._framework = summarizer.framework
        self._detail = detail
        self._holds = holds  # all samples until the step ends, for some may be chosen then
        self._lock = threading.RLock()  # forward hooks may run in several threads
        self._plans: dict[tuple[object, ...], Plan | None] = {}  # None: it takes several looks
        self._expected = self._copied = 0  # bytes of the next step's copies, if it is like the last; of this one's
        self.start_over()

    def start_over(self) -> None:
        """Forget the step."""
        self.rows.start_over()
        self.bytes = 0  # of the copied values
        self.too_large: dict[str, None] = {}  # names of which less is kept than was asked for
        self._values: set[int] = set()  # rows of what was named
        self._expected = min(self._copied, _MOST_EXPECTED) or self._expected
        self._memory = np.empty(0, np.uint8)  # for copies, which belong to the step's records
        self._at = self._used = self._copied = 0

    def read(self, entry: NamedTensor, tensor: Tensor, *, is_value: bool) -> NamedSummary | None:
        """What was read of a tensor; None if it cannot be."""
        memory = self._framework.in_place(tensor)
        with self._lock:
            row = self._summarizer.known(tensor)
            if row is not None and is_value and row in self._values:
                # It may be written through an array of numpy's, which leaves no trace.
                self._summarizer.forget(tensor)
                row = None
            plan = None if memory is None or row is not None else self._plan(entry, memory, is_value=is_value)
            if plan is None or memory is None or self.bytes + plan.counted > self._detail.bytes_per_step:
                summary = self._slowly(entry, tensor, is_value=is_value)
            else:
                summary = self._at_once(
                    NamedSummary(entry, WORDS[memory[2] & 255], is_value=is_value), tensor, memory, plan
                )
            if is_value and summary is not None:
                self._values.add(summary.row)
        return summary

    def _at_once(self, summary: NamedSummary, tensor: Tensor, memory: list[int], plan: Plan) -> NamedSummary:
        """Read a tensor that lies in one piece."""
        batch, summary.kept, shape, dtype, size, counted = plan
        offset = self._room(size) if size else 0
        numbers_at = over_at = 0
        if batch:
            summary.first, summary.batch, numbers_at, over_at = self.rows.reserve(batch)
        beside = (batch, numbers_at, over_at, self._at + offset, size)
        summary.row = self._summarizer.collector.arena.take(memory, self._framework.threads(memory[1]), *beside)
        self._summarizer.note(tensor, summary.row)
        if dtype is not None:
            summary.array = np.ndarray(shape, dtype, self._memory, offset)
            self.bytes += counted
        return summary

    def _plan(self, entry: NamedTensor, memory: list[int], *, is_value: bool) -> Plan | None:
        key = (entry.shape, entry.batch_dim, entry.level, memory[1], memory[2], is_value)
        try:
            return self._plans[key]
        except KeyError:
            if len(self._plans) >= _MOST_PLANS:
                self._plans.clear()
            plan = self._plans[key] = self._planned(entry, memory, is_value=is_value)
            return plan

    def _planned(self, entry: NamedTensor, memory: list[int], *, is_value: bool) -> Plan | None:
        (_, count, number), batch = memory, entry.batch
        several_looks = (
            not COMPILED
            or entry.batch_dim  # the samples do not lie one behind the other
            or count == 0
            or count != math.prod(entry.shape)
            or number & 255 >= len(WORDS)
            or not self._summarizer.reads_all(count)
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
        kept = self._wanted(entry, entry.level)
        shape = (kept, *entry.shape[1:]) if batch else entry.shape
        elements, size = math.prod(shape), kept_size(dtype.name, is_value=is_value)
        return Plan(batch, kept, shape, dtype, elements * dtype.itemsize, elements * size)

    def _slowly(self, entry: NamedTensor, tensor: Tensor, *, is_value: bool) -> NamedSummary | None:
        """Read a tensor of any kind."""
        row = self._summarizer.read(tensor, entry.name, Kind.TENSOR if is_value else Kind.TENSOR_GRAD)
        if row is None:
            return None
        summary = NamedSummary(entry, self._framework.dtype(tensor), is_value=is_value)
        summary.row = row
        if self._framework.is_oversized(tensor):
            what = f"Samples and values of {entry.name!r}"
            self._summarizer.report_once(what, f"{what} are not recorded: it is a view too large to copy.")
            return summary
        if entry.batch:
            assert entry.batch_dim is not None
            summary.first, summary.batch = sample_statistics(self.rows, self._framework, tensor, entry.batch_dim)
        elif _is_matrix(entry, summary.dtype):
            summary.singular = self._framework.largest_singular_value(tensor)
        if summary.level >= SAMPLES:
            self._hold(summary, tensor)
        return summary

    def _wanted(self, entry: NamedTensor, level: int) -> int:
        """How many samples are copied."""
        return entry.batch if level == ALL or self._holds else min(self._detail.samples, entry.batch)

    def _hold(self, summary: NamedSummary, tensor: Tensor) -> None:
        """Copy as many values as are asked for and fit."""
        entry, detail = summary.entry, self._detail
        wanted, few = self._wanted(entry, summary.level), min(detail.samples, entry.batch)
        whole = math.prod(self._framework.shape(tensor)) * kept_size(summary.dtype, is_value=summary.is_value)
        for samples in (wanted, few) if wanted > few else (wanted,):
            size = samples * (whole // entry.batch) if entry.batch else whole
            if self.bytes + size <= detail.bytes_per_step:
                summary.array, summary.kept = copied(self._framework.array(tensor), entry, samples), samples
                self.bytes += size
                break
        if summary.array is None or (summary.level == ALL and summary.kept < entry.batch):
            self.too_large[entry.name] = None
            summary.level = STATISTICS if summary.array is None else SAMPLES

    def _room(self, size: int) -> int:
        """Offset in the memory with room for a copy of `size` bytes."""
        room = (size + _ALIGNED - 1) & -_ALIGNED
        if self._used + room > len(self._memory):
            self._memory, self._used = np.empty(max(room, self._expected), np.uint8), 0
            self._at = self._memory.ctypes.data
        offset = self._used
        self._used += room
        self._copied += room
        return offset


def _is_matrix(entry: NamedTensor, dtype: str) -> bool:
    """Whether the tensor has a largest singular value."""
    return entry.batch_dim is None and len(entry.shape) == 2 and "float" in dtype
