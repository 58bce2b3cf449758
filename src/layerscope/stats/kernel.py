"""Summaries of memory: a float64 numpy reference, and the compiled kernel behind `Arena` and `RowArena`."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

from layerscope.model import summary_spec
from layerscope.model.number_formats import BYTES, STORED
from layerscope.model.records import BATCH_STATISTICS, SAMPLE_STATISTICS, Floats
from layerscope.stats.merging import Encoded, repeated


def summarize(values: npt.NDArray[Any], smallest_normal: float) -> summary_spec.Summary:
    """Summary of an array whose format has the given smallest normal magnitude (see `summary_spec.SMALLEST_NORMAL`).

    Values are converted to float64: exact, except for integers beyond 2**53, which are rounded.
    """
    with np.errstate(invalid="ignore"):  # a signalling NaN is a NaN
        wide = np.asarray(values).ravel().astype(np.float64)
    finite = wide[np.isfinite(wide)]
    nonzero = finite[finite != 0]
    moments = np.concatenate((_counts(wide, nonzero, smallest_normal), _sums(finite), _extremes(finite, nonzero)))
    return summary_spec.Summary(moments, _bit_counts(nonzero))


def _counts(wide: Floats, nonzero: Floats, smallest_normal: float) -> list[float]:
    finite = np.isfinite(wide).sum()
    return [
        len(wide),
        finite,
        finite - len(nonzero),
        (np.abs(nonzero) < smallest_normal).sum(),
        np.isnan(wide).sum(),
        np.isposinf(wide).sum(),
        np.isneginf(wide).sum(),
    ]


def _sums(finite: Floats) -> list[float]:
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):  # overflow is Inf, Inf - Inf is NaN
        squared = finite * finite
        fourth = squared * squared
        powers = (finite, np.abs(finite), squared, squared * finite, fourth, fourth * fourth)
        sums = [float(power.sum()) for power in powers]
        return [*sums[:3], *small_sums(finite)] if np.isinf(sums[2]) else sums


def small_sums(finite: Floats) -> list[float]:
    """The sums of y, |y| and y² of finite elements, with y = x / 2**600."""
    small = np.ldexp(finite, -summary_spec.DOWN)
    return [float(power.sum()) for power in (small, np.abs(small), small * small)]


def _extremes(finite: Floats, nonzero: Floats) -> list[float]:
    magnitude = np.abs(finite)
    return [
        finite.min() + 0.0 if len(finite) else np.nan,  # + 0.0: a negative zero is a zero
        finite.max() + 0.0 if len(finite) else np.nan,
        np.abs(nonzero).min() if len(nonzero) else np.nan,
        magnitude.max() if len(finite) else np.nan,
    ]


def _bit_counts(nonzero: Floats) -> summary_spec.BitCounts:
    coarse = summary_spec.count_codes(summary_spec.code_of(nonzero, summary_spec.COARSE_M), summary_spec.COARSE_M)
    if not 0 < len(coarse.codes) < summary_spec.FINE_BELOW:
        return coarse
    exponents = np.frexp(np.abs(nonzero))[1] - 1
    m = summary_spec.fine_m(int(exponents.min()), int(exponents.max()))
    return summary_spec.count_codes(summary_spec.code_of(nonzero, m), m)


#: From this many elements on, several threads are faster than one; below, `threads` is ignored.
LARGE = 1 << 20

_WIDTH = len(summary_spec.MOMENTS)
_FIRST_ROWS = 256
_FIRST_BYTES = 1 << 20  # more than the bit-counts of one tensor can take
_BYTE_VALUES = np.stack([*BYTES.values()])
_Summarize = Callable[[list[int], int, int], int]  # see `_summarize_by_numpy`


def format_number(dtype: str) -> int:
    """Format number for `Arena.add`: how elements are stored, and below which magnitude they are subnormal."""
    smallest_normal = summary_spec.SMALLEST_NORMAL[dtype]
    field = math.frexp(smallest_normal)[1] - 1 + summary_spec.EXPONENT_BIAS if smallest_normal else 0
    return field << 8 | STORED.index(dtype)


_FLOAT64 = format_number("float64")


class Target(ctypes.Structure):
    """Memory of the kernel; `target` in `_kernel.c`."""

    _fields_ = (
        ("scratch", ctypes.c_void_p),
        ("byte_values", ctypes.c_void_p),
        ("moments", ctypes.c_void_p),
        ("ends", ctypes.c_void_p),
        ("bits", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("row_capacity", ctypes.c_int64),
        ("bits_capacity", ctypes.c_int64),
    )


class Arena:
    """Collects summaries without an object per summary; `drain` returns them.

    Thread-safe: a lock serializes the calls.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._summarize = _summarize
        self._scratch = np.zeros(_SCRATCH_BYTES, np.uint8)
        self._moments = np.empty((_FIRST_ROWS, _WIDTH))
        self._ends = np.zeros(_FIRST_ROWS + 1, np.int64)  # end of each row's bit-counts << 4 | m, after a leading zero
        self._bits = np.empty(_FIRST_BYTES, np.uint8)
        self._rows = 0
        self._times: dict[int, int] = {}  # rows whose elements count more than once
        self._target = Target(scratch=self._scratch.ctypes.data, byte_values=_BYTE_VALUES.ctypes.data)
        self._target_at = ctypes.addressof(self._target)
        self._aim()

    def _aim(self) -> None:
        target = self._target
        target.moments, target.ends, target.bits = (
            part.ctypes.data for part in (self._moments, self._ends, self._bits)
        )
        target.row_capacity, target.bits_capacity = len(self._moments), len(self._bits)

    def add(self, address: int, count: int, number: int, threads: int = 1) -> int:
        """Summarize `count` contiguous elements at the address; returns the row.

        `number` is the `format_number` of their type. If two elements share a byte, `count` is the number of bytes. The
        memory must not change during the call. Up to `threads` threads share a large tensor; the result does not
        depend on them.
        """
        return self.add_many([address, count, number], threads)

    def add_many(self, plan: list[int], threads: int = 1) -> int:
        """Summarize several tensors in one call, which takes a third of the time for small ones; returns the first row.

        The plan is the concatenation of address, count and number of each tensor (see `add`).
        """
        with self._lock:
            first = self._rows
            self._rows = self._summarize(plan, self._target_at, threads)
            while 3 * (self._rows - first) < len(plan):
                self._grow()
                self._rows = self._summarize(plan[3 * (self._rows - first) :], self._target_at, threads)
            if _FLOAT64 in plan[2::3]:
                self._mend(first, plan)
            return first

    def repeat(self, row: int, times: int) -> None:
        """Count each element of the row's tensor `times` times."""
        with self._lock:
            self._times[row] = times

    def take(self, plan: list[int], threads: int, *beside: int) -> int:
        """Summarize one tensor (see `add_many`), with sample statistics and a copy of its bytes in the same pass.

        `beside` is the number of samples, the addresses for their statistics and those of the batch (see `RowArena`),
        the address for the copy and its size. Only if `COMPILED`; not for formats of one byte.
        """
        with self._lock:
            row = self._rows
            while (rows := _take(plan, self._target_at, threads, *beside)) == row:
                self._grow()
            self._rows = rows
            if plan[2] == _FLOAT64:
                self._mend(row, plan)
            return row

    def _mend(self, first: int, plan: list[int]) -> None:
        """Recompute overflowed sums from scaled elements; only float64 tensors have elements that large."""
        for row in first + np.flatnonzero(np.isinf(self._moments[first : self._rows, summary_spec.COLUMN["sum2"]])):
            address, count, _ = plan[3 * (row - first) :][:3]
            values = read_memory(address, count, "float64")
            small = small_sums(values[np.isfinite(values)])
            self._moments[row, summary_spec.COLUMN["sum3"] : summary_spec.ADDED] = small

    def _grow(self) -> None:
        """Make room for at least one more row of any size."""
        if self._rows == len(self._moments):
            self._moments = _doubled(self._moments, self._rows)
            self._ends = _doubled(self._ends, self._rows + 1)
        else:
            self._bits = _doubled(self._bits, int(self._ends[self._rows]) >> 4)
        self._aim()

    def __len__(self) -> int:
        return self._rows

    def drain(self) -> Encoded:
        """All summaries since the last call, in arrays that the caller owns."""
        with self._lock:
            rows, self._rows, self._target.rows = self._rows, 0, 0
            times, self._times = self._times, {}
            ends = self._ends[: rows + 1]
            offsets = ends >> 4
            drained = Encoded(
                self._moments[:rows].copy(),
                (ends[1:] & 15).astype(np.uint8),
                offsets,
                self._bits[: offsets[-1]].copy(),
            )
        return repeated(drained, times) if times else drained


def _doubled(array: npt.NDArray[Any], used: int) -> npt.NDArray[Any]:  # Any: the dtype of the array
    """The used part of an array in an array twice as long."""
    larger = np.empty((2 * len(array), *array.shape[1:]), array.dtype)
    larger[:used] = array[:used]
    return larger


def read_memory(address: int, count: int, dtype: str) -> npt.NDArray[Any]:  # Any: one of the types in STORED
    """The elements at an address as a numpy array, not copied; formats that numpy lacks are converted to floats."""
    in_bytes = dtype in BYTES
    storage = np.dtype("uint8" if in_bytes else "uint16" if dtype == "bfloat16" else dtype)
    raw = (ctypes.c_char * (count * storage.itemsize)).from_address(address)
    values = np.frombuffer(memoryview(raw).cast("B"), storage, count)
    if in_bytes:
        halves = np.stack((values & 15, values >> 4)) if dtype.endswith("_x2") else values
        return np.take(BYTES[dtype], halves)
    if dtype == "bfloat16":
        return (values.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return values


def _summarize_by_numpy(plan: list[int], target_at: int, threads: int) -> int:
    """Summarize the plan's tensors (see `Arena.add_many`) as far as there is room; returns the rows in the target."""
    target = Target.from_address(target_at)
    for address, count, number in zip(plan[::3], plan[1::3], plan[2::3], strict=True):
        field, dtype = number >> 8, STORED[number & 255]
        smallest_normal = math.ldexp(1.0, field - summary_spec.EXPONENT_BIAS) if field else 0.0
        summary = summarize(read_memory(address, count, dtype) if count else np.zeros(0), smallest_normal)
        if not _put(summary, target):
            break
    return int(target.rows)


def _put(summary: summary_spec.Summary, target: Target) -> bool:
    """Write one row; returns False if the target is full."""
    ends = (ctypes.c_int64 * (target.row_capacity + 1)).from_address(target.ends)
    used, encoded = ends[target.rows] >> 4, summary_spec.encode(summary.bits)
    if target.rows == target.row_capacity or used + len(encoded) > target.bits_capacity:
        return False
    ctypes.memmove(target.moments + target.rows * 8 * _WIDTH, summary.moments.ctypes.data, 8 * _WIDTH)
    ctypes.memmove(target.bits + used, encoded, len(encoded))
    target.rows += 1
    ends[target.rows] = (used + len(encoded)) << 4 | summary.bits.m
    return True


def _no_take(plan: list[int], target: int, threads: int, /, *beside: int) -> int:
    raise NotImplementedError("Arena.take() needs the compiled kernel.")


_rows: Callable[[int, int, int, int, int, int], None] | None
try:
    from layerscope.stats import _kernel

    _take, _summarize, _rows, _SCRATCH_BYTES = _kernel.take, _kernel.summarize, _kernel.rows, _kernel.SCRATCH_BYTES
except ImportError:  # no compiler at installation: numpy computes the same summaries, more slowly
    _take, _summarize, _rows, _SCRATCH_BYTES = _no_take, _summarize_by_numpy, None, 0

#: Whether the compiled kernel is available.
COMPILED = _rows is not None


_ROW_WIDTH = len(SAMPLE_STATISTICS)
_OVER = len(BATCH_STATISTICS)
_ROOM = 64  # batches, and sixteen times as many samples


class RowArena:
    """Statistics of the samples of many tensors, and over each batch, until `start_over`."""

    def __init__(self) -> None:
        self.numbers = np.empty((16 * _ROOM, _ROW_WIDTH))  # `SAMPLE_STATISTICS` of every sample
        self.over = np.empty((_ROOM, _OVER))  # `BATCH_STATISTICS` of every batch
        self._used = self._batches = 0
        self._aim()

    def _aim(self) -> None:
        self._numbers_at, self._over_at = self.numbers.ctypes.data, self.over.ctypes.data

    def start_over(self) -> None:
        """Discard all statistics."""
        self._used = self._batches = 0

    def reserve(self, rows: int) -> tuple[int, int, int, int]:
        """Reserve one batch of `rows` samples: index of its first sample, index of the batch, and both addresses."""
        first, batch = self._used, self._batches
        if first + rows > len(self.numbers) or batch == len(self.over):
            self.numbers = np.concatenate((self.numbers, np.empty((max(rows, len(self.numbers)), _ROW_WIDTH))))
            self.over = np.concatenate((self.over, np.empty_like(self.over)))
            self._aim()
        self._used, self._batches = first + rows, batch + 1
        return first, batch, self._numbers_at + first * 8 * _ROW_WIDTH, self._over_at + batch * 8 * _OVER

    def add(self, address: int, count: int, number: int, rows: int) -> tuple[int, int]:
        """Statistics of `count` elements at an address, split into `rows` samples; returns indices as `reserve` does.

        `number` is their `format_number`; formats of one byte are not supported. Statistics cover the finite elements;
        a sample without any has NaN.
        """
        first, batch, *at = self.reserve(rows)
        if count == 0:
            self.numbers[first : first + rows] = self.over[batch] = np.nan
        elif _rows is not None:
            _rows(address, count, number, rows, *at)
        else:
            values = read_memory(address, count, STORED[number & 255]).reshape(rows, -1).astype(np.float64)
            numbers = self.numbers[first : first + rows]
            numbers.T[:] = _by_numpy(values)
            self.over[batch] = _over(numbers)
        return first, batch


def _by_numpy(values: Floats) -> tuple[Floats, ...]:
    finite = np.isfinite(values)
    count = finite.sum(1)
    sizes = np.where(finite, np.abs(values), 0.0)
    with np.errstate(invalid="ignore", over="ignore"):
        mean = np.where(finite, values, 0.0).sum(1) / count
        away = np.where(finite, values - mean[:, None], 0.0)
        deviation = np.sqrt(np.square(away).sum(1) / count)
        return mean, sizes.sum(1) / count, deviation, np.where(count > 0, sizes.max(1), np.nan)


def _over(numbers: Floats) -> Floats:
    """Mean, standard deviation and largest magnitude of every statistic over the batch."""
    with np.errstate(invalid="ignore", over="ignore"):
        mean = numbers.mean(0)
        deviation = np.sqrt(np.square(numbers - mean).mean(0))
        over: Floats = np.stack((mean, deviation, np.abs(numbers).max(0)), 1).ravel()
    return over
