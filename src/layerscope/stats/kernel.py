"""Summaries of tensors in memory, collected by the step, by the compiled kernel or else by numpy.

Both give the same bit-counts, counts and extremes, and sums that differ by at most 1e-12 of the sum of the magnitudes
(as long as no partial sum leaves float64, which then depends on the order). The compiled kernel counts subnormals
whatever the process does with them; numpy sees zeros where `torch.set_flush_denormal` is on.
"""

from __future__ import annotations

import ctypes
import math
from array import array
from collections.abc import Callable
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

from layerscope.stats import reference, spec
from layerscope.stats.combine import Encoded

#: The types that are read as they lie in memory, in the order of the kernel's numbers.
STORED = ("float32", "float64", "bfloat16", "float16", "int8", "uint8", "int16", "int32", "int64", "bool")

_WIDTH = len(spec.MOMENTS)
_ROW_BYTES = 8 * _WIDTH
_ROOM = 2 * (spec.TOP_FIELD << spec.COARSE_M) * (3 + 9)  # bytes: every bucket occupied, widest gap, widest count
_FIRST_ROWS = 256
_Summarize = Callable[[int, int, int, int, int, int], int]  # see `_summarize_by_numpy`


def format_number(stored: str, dtype: str | None = None) -> int:
    """What `Arena.add` calls a type: how its elements are stored, and below which magnitude they are subnormal.

    `dtype` names the format the values come from where that is another one: float8 read as float32.
    """
    smallest_normal = spec.SMALLEST_NORMAL[dtype or stored]
    field = math.frexp(smallest_normal)[1] - 1 + spec.EXPONENT_BIAS if smallest_normal else 0
    return field << 8 | STORED.index(stored)


class Arena:
    """Collects summaries without keeping an object for each; `drain` hands over what was collected.

    Several threads may add to one arena: they take turns.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._summarize = _summarize
        self._moments = np.empty((_FIRST_ROWS, _WIDTH))
        self._bits = np.empty(2 * _ROOM, np.uint8)
        self._scratch = np.zeros(_SCRATCH_BYTES, np.uint8)
        self._ends = array(
            "q", [0]
        )  # end of each row's bit-counts << 4 | m: one append makes a row, or it is not there
        self._find()

    def _find(self) -> None:
        """Look up the addresses once: asking numpy for them costs more than a small summary."""
        self._moments_at = self._moments.ctypes.data
        self._bits_at = self._bits.ctypes.data
        self._scratch_at = self._scratch.ctypes.data

    def add(self, address: int, count: int, number: int) -> int:
        """Row of the summary of `count` elements that lie at the address, one behind the other.

        `number` is the `format_number` of their type. The memory must not change meanwhile.
        """
        with self._lock:
            row, used = len(self._ends) - 1, self._ends[-1] >> 4
            if row == len(self._moments) or used + _ROOM > len(self._bits):
                self._grow(row, used)
            to = self._moments_at + row * _ROW_BYTES
            packed = self._summarize(address, count, number, self._scratch_at, to, self._bits_at + used)
            self._ends.append((used << 4) + packed)
            return row

    def _grow(self, rows: int, used: int) -> None:
        """Leave room for one more row, whatever its size."""
        if rows == len(self._moments):
            self._moments = np.concatenate((self._moments, np.empty_like(self._moments)))
        if used + _ROOM > len(self._bits):
            self._bits = np.concatenate((self._bits, np.empty_like(self._bits)))
        self._find()

    def __len__(self) -> int:
        return len(self._ends) - 1

    def drain(self) -> Encoded:
        """All summaries since the last time, in arrays that belong to the caller."""
        with self._lock:
            ends = np.array(self._ends, np.int64)
            self._ends = array("q", [0])
            offsets = ends >> 4
            return Encoded(
                self._moments[: len(ends) - 1].copy(),
                (ends[1:] & 15).astype(np.uint8),
                offsets,
                self._bits[: offsets[-1]].copy(),
            )


def read_memory(address: int, count: int, stored: str) -> npt.NDArray[Any]:  # Any: one of the types in STORED
    """The elements at an address as numpy sees them, not copied; bfloat16 as float32, copied."""
    storage = np.dtype("uint16" if stored == "bfloat16" else stored)
    raw = (ctypes.c_char * (count * storage.itemsize)).from_address(address)
    values = np.frombuffer(memoryview(raw).cast("B"), storage, count)
    if stored == "bfloat16":
        return (values.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return values


def _summarize_by_numpy(address: int, count: int, number: int, scratch: int, moments: int, bits: int) -> int:
    """Bytes written << 4 | m: the summary goes to the addresses `moments` and `bits`."""
    field = number >> 8
    smallest_normal = math.ldexp(1.0, field - spec.EXPONENT_BIAS) if field else 0.0
    values = read_memory(address, count, STORED[number & 255]) if count else np.zeros(0)
    summary = reference.summarize(values, smallest_normal)
    encoded = spec.encode(summary.bits)
    ctypes.memmove(moments, summary.moments.ctypes.data, summary.moments.nbytes)
    ctypes.memmove(bits, encoded, len(encoded))
    return len(encoded) << 4 | summary.bits.m


def _best() -> tuple[_Summarize, int]:
    """The fastest implementation there is, and how many bytes of zeroed scratch memory it needs."""
    try:
        from layerscope.stats import _kernel
    except ImportError:  # no compiler at installation: numpy gives the same summaries, more slowly
        return _summarize_by_numpy, 0
    return _kernel.summarize, _kernel.SCRATCH_BYTES


_summarize, _SCRATCH_BYTES = _best()

#: Whether summaries come from the compiled kernel.
COMPILED = _summarize is not _summarize_by_numpy
