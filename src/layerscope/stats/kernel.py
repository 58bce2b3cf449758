"""Summaries of tensors in memory, collected by the step, by the compiled kernel or else by numpy.

Both give the same bit-counts, counts and extremes, and sums that differ by at most 1e-12 of the sum of the magnitudes
(as long as no partial sum leaves float64, which then depends on the order). The compiled kernel counts subnormals
whatever the process does with them; numpy sees zeros where `torch.set_flush_denormal` is on.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

from layerscope.stats import reference, spec
from layerscope.stats.combine import Encoded, repeated
from layerscope.stats.formats import BYTES, STORED

#: From so many elements on, several threads are faster than one; for less, `threads` makes no difference.
LARGE = 1 << 20

_WIDTH = len(spec.MOMENTS)
_FIRST_ROWS = 256
_FIRST_BYTES = 1 << 20  # more than the bit-counts of one tensor can take
_BYTE_VALUES = np.stack([*BYTES.values()])
_Summarize = Callable[[list[int], int, int], int]  # see `_summarize_by_numpy`


def format_number(dtype: str) -> int:
    """What `Arena.add` calls a format: how its elements are stored, and below which magnitude they are subnormal."""
    smallest_normal = spec.SMALLEST_NORMAL[dtype]
    field = math.frexp(smallest_normal)[1] - 1 + spec.EXPONENT_BIAS if smallest_normal else 0
    return field << 8 | STORED.index(dtype)


_FLOAT64 = format_number("float64")


class Target(ctypes.Structure):
    """Where the kernel finds its memory; `target` in `_kernel.c`."""

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
    """Collects summaries without keeping an object for each; `drain` hands over what was collected.

    Several threads may add to one arena: they take turns.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._summarize = _summarize
        self._scratch = np.zeros(_SCRATCH_BYTES, np.uint8)
        self._moments = np.empty((_FIRST_ROWS, _WIDTH))
        self._ends = np.zeros(_FIRST_ROWS + 1, np.int64)  # end of each row's bit-counts << 4 | m, behind a zero
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
        """Row of the summary of `count` elements that lie at the address, one behind the other.

        `number` is the `format_number` of their type; where two share a byte, `count` is that of the bytes. The memory
        must not change meanwhile. Up to `threads` threads share a large tensor; the result does not depend on it.
        """
        return self.add_many([address, count, number], threads)

    def add_many(self, plan: list[int], threads: int = 1) -> int:
        """First row of the summaries of several tensors, made in one go: for small ones a third of the time.

        The plan holds address, count and number of each tensor (see `add`), one tensor behind the other.
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
        """Let each element of the row's tensor count so many times."""
        with self._lock:
            self._times[row] = times

    def take(self, plan: list[int], threads: int, *beside: int) -> int:
        """Row of the summary of one tensor (see `add_many`), read together with what is wanted beside it.

        That is: how many samples are in it and where their statistics and those of the batch go (see `RowArena`), and
        where a copy of its first bytes goes and how many. Only where `COMPILED`; not for formats of one byte.
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
        """Sum again, in smaller numbers, what left float64; only float64 itself holds elements that large."""
        for row in first + np.flatnonzero(np.isinf(self._moments[first : self._rows, spec.COLUMN["sum2"]])):
            address, count, _ = plan[3 * (row - first) :][:3]
            values = read_memory(address, count, "float64")
            small = reference.small_sums(values[np.isfinite(values)])
            self._moments[row, spec.COLUMN["sum3"] : spec.ADDED] = small

    def _grow(self) -> None:
        """Leave room for at least one more row, whatever its size."""
        if self._rows == len(self._moments):
            self._moments = _doubled(self._moments, self._rows)
            self._ends = _doubled(self._ends, self._rows + 1)
        else:
            self._bits = _doubled(self._bits, int(self._ends[self._rows]) >> 4)
        self._aim()

    def __len__(self) -> int:
        return self._rows

    def drain(self) -> Encoded:
        """All summaries since the last time, in arrays that belong to the caller."""
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


def _doubled(array: npt.NDArray[Any], used: int) -> npt.NDArray[Any]:  # Any: whatever the array holds
    """The used part of an array in one with twice the room."""
    larger = np.empty((2 * len(array), *array.shape[1:]), array.dtype)
    larger[:used] = array[:used]
    return larger


def read_memory(address: int, count: int, dtype: str) -> npt.NDArray[Any]:  # Any: one of the types in STORED
    """The elements at an address as numpy sees them, not copied; what numpy has no type for as floats, copied."""
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
    """Rows in the target after those of the plan's tensors (see `Arena.add_many`), as many as had room."""
    target = Target.from_address(target_at)
    for address, count, number in zip(plan[::3], plan[1::3], plan[2::3], strict=True):
        field, dtype = number >> 8, STORED[number & 255]
        smallest_normal = math.ldexp(1.0, field - spec.EXPONENT_BIAS) if field else 0.0
        summary = reference.summarize(read_memory(address, count, dtype) if count else np.zeros(0), smallest_normal)
        if not _put(summary, target):
            break
    return int(target.rows)


def _put(summary: spec.Summary, target: Target) -> bool:
    """Write one row; False if the target is full."""
    ends = (ctypes.c_int64 * (target.row_capacity + 1)).from_address(target.ends)
    used, encoded = ends[target.rows] >> 4, spec.encode(summary.bits)
    if target.rows == target.row_capacity or used + len(encoded) > target.bits_capacity:
        return False
    ctypes.memmove(target.moments + target.rows * 8 * _WIDTH, summary.moments.ctypes.data, 8 * _WIDTH)
    ctypes.memmove(target.bits + used, encoded, len(encoded))
    target.rows += 1
    ends[target.rows] = (used + len(encoded)) << 4 | summary.bits.m
    return True


def _no_take(plan: list[int], target: int, threads: int, /, *beside: int) -> int:
    raise NotImplementedError("The kernel is not compiled: a tensor is read bit by bit.")


try:
    from layerscope.stats import _kernel

    _take, _summarize, _SCRATCH_BYTES = _kernel.take, _kernel.summarize, _kernel.SCRATCH_BYTES
except ImportError:  # no compiler at installation: numpy gives the same summaries, more slowly
    _take, _summarize, _SCRATCH_BYTES = _no_take, _summarize_by_numpy, 0

#: Whether summaries come from the compiled kernel.
COMPILED = _take is not _no_take
